/** Time-series charts and sparklines. */
import { h, svg } from './dom.js'
import { clock, when } from './format.js'
import uPlot from './vendor/uplot.js'

/**
 * @typedef {object} Line
 * @property {string} name
 * @property {string} colour the name of a custom property
 * @property {boolean} [filled]
 */

const HEIGHT = 172
const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, ...Array.from({ length: 12 }, (_, n) => [1, 2, 5].map((of) => of * 10 ** n)).flat()]
const MINUTE = 60_000
export const TIME_STEPS = [
  ...[1, 10, 100, 1000].flatMap((of) => [of, 2 * of, 5 * of]), ...[10, 15, 30].map((seconds) => seconds * 1000),
  ...[1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440].map((minutes) => minutes * MINUTE), ...[2, 5, 10, 20, 50].map((days) => days * 1440 * MINUTE),
]
const dark = matchMedia('(prefers-color-scheme: dark)')

export class Chart {
  /**
   * @param {string} title
   * @param {string} unit of its values, as the axis shows it
   * @param {Line[]} lines
   * @param {(value: number) => string} format
   * @param {AbortSignal} signal ends it
   * @param {number[]} [steps] between lines of the grid
   */
  constructor(title, unit, lines, format, signal, steps = STEPS) {
    this._steps = steps
    this._lines = lines
    this._format = format
    /** @type {(number | null)[][]} */
    this._data = [[], ...lines.map(() => [])]
    this._none = h('p', { class: 'none', text: 'No data in this time range' })
    this._keys = lines.map((line) => h('b', { class: 'num', text: '–' }))
    this.keys = h('div', { class: 'keys' }, lines.map((line, n) => {
      const swatch = h('i')
      swatch.style.background = `var(${line.colour})`
      return h('span', {}, swatch, line.name, ' ', this._keys[n])
    }))
    this.element = h('div', { class: 'chart', role: 'img', 'aria-label': title }, h('span', { class: 'unit', text: unit }), this._none)
    this._resized = new ResizeObserver(() => this._fit())
    this._resized.observe(this.element)
    const redraw = () => this._make()
    dark.addEventListener('change', redraw)
    signal.addEventListener('abort', () => {
      dark.removeEventListener('change', redraw)
      this._resized.disconnect()
      this._plot?.destroy()
    })
  }

  /**
   * @param {number[]} times in seconds
   * @param {(number | null)[][]} values of each line
   */
  set(times, values) {
    this._data = [times, ...values]
    this._none.hidden = values.some((line) => line.some((value) => value !== null && value !== 0))
    if (this._plot === undefined) this._make()
    else this._plot.setData(this._data)
    this._say(null)
  }

  /** @param {number | null | undefined} at the place of which the keys tell; without one, the last value of each */
  _say(at) {
    this._keys.forEach((key, n) => {
      const values = this._data[n + 1]
      const value = at === null || at === undefined ? values.filter((each) => each !== null).at(-1) : values[at]
      key.textContent = value === null || value === undefined ? '–' : this._format(value)
    })
  }

  _fit() {
    if (this._plot !== undefined && this.element.clientWidth > 0) {
      this._plot.setSize({ width: this.element.clientWidth, height: HEIGHT })
    } else if (this._data[0].length > 0) {
      this._make()
    }
  }

  _make() {
    if (this.element.clientWidth === 0) return
    this._plot?.destroy()
    const style = getComputedStyle(document.documentElement)
    const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim()
    const axis = { stroke: colour('--muted'), grid: { stroke: colour('--grid'), width: 1 }, ticks: { show: false }, font: `11px ${style.getPropertyValue('--sans')}` }
    const options = {
      width: this.element.clientWidth,
      height: HEIGHT,
      padding: [22, 26, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
      scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ top) => [0, top > 0 ? top * 1.12 : 1] } },
      series: [{}, ...this._lines.map((line) => ({
        stroke: colour(line.colour),
        width: 1.6,
        fill: line.filled ? `${colour(line.colour)}1f` : undefined,
        points: { size: 4, show: (/** @type {any} */ plot, /** @type {number} */ n) => isSparse(plot.data[n]) },
        spanGaps: true,
      }))],
      axes: [
        { ...axis, size: 28, space: 70, grid: { show: false }, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((t) => this._tick(t)) },
        { ...axis, size: 54, space: 34, incrs: this._steps, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(this._format) },
      ],
      hooks: { setCursor: [(/** @type {any} */ plot) => this._say(plot.cursor.idx)] },
    }
    this._plot = new /** @type {any} */ (uPlot)(options, this._data, this.element)
  }

  /** @param {number} seconds */
  _tick(seconds) {
    const times = this._data[0]
    const span = /** @type {number} */ (times.at(-1)) - /** @type {number} */ (times[0])
    return span <= 900 ? clock(seconds * 1000) : when(seconds * 1000).replace(/:00$/, '')
  }
}

/**
 * Return true if there are too few values for a line.
 * @param {(number | null)[]} values
 */
const isSparse = (values) => values.reduce((/** @type {number} */ n, value) => n + (value === null ? 0 : 1), 0) < 4

/**
 * Return the rate per second of each step. The last step is still running, so it is left out while it is short.
 * @param {number[]} times in seconds
 * @param {number[]} counts
 * @param {number} now in milliseconds, by the server's clock
 */
export function rates(times, counts, now) {
  const step = times.length > 1 ? times[1] - times[0] : 60
  return counts.map((value, n) => {
    const seconds = Math.min(step, now / 1000 - times[n])
    return seconds < step / 4 ? null : value / seconds
  })
}

/** @param {string} label */
export function sparkline(label) {
  const area = svg('path', { class: 'area' })
  const line = svg('path')
  const element = svg('svg', { class: 'spark', viewBox: '0 0 100 20', preserveAspectRatio: 'none', role: 'img', 'aria-label': label }, area, line)
  return {
    element,
    /** @param {number[]} values */
    set(values) {
      const most = Math.max(1, ...values)
      const step = 100 / Math.max(1, values.length - 1)
      const points = values.map((value, n) => `${(n * step).toFixed(1)} ${(19 - (value / most) * 17).toFixed(1)}`)
      const path = points.length > 0 ? `M${points.join('L')}` : ''
      line.setAttribute('d', path)
      area.setAttribute('d', path && `${path}L100 20L0 20Z`)
    },
  }
}
