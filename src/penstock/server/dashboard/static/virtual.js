/** A virtual list: only the visible rows exist. */
import { h } from './dom.js'

const AROUND = 6

/**
 * @template T
 */
export class VirtualList {
  /**
   * @param {{label: string, rowHeight: number, header: HTMLElement, make: () => HTMLElement, show: (row: HTMLElement, item: T, index: number) => void, seen?: (items: T[]) => void, signal: AbortSignal}} how
   */
  constructor({ label, rowHeight, header, make, show, seen = () => {}, signal }) {
    this._rowHeight = rowHeight
    this._make = make
    this._show = show
    this._seen = seen
    /** @type {T[]} */
    this._items = []
    /** @type {HTMLElement[]} */
    this._rows = []
    this._space = h('div', { class: 'space', role: 'rowgroup' })
    this.element = h('div', { class: 'vlist', role: 'treegrid', 'aria-label': label, tabindex: 0 }, header, this._space)
    this._asked = 0
    this.element.addEventListener('scroll', () => this.draw(), { passive: true })
    const resized = new ResizeObserver(() => this.draw())
    resized.observe(this.element)
    signal.addEventListener('abort', () => resized.disconnect())
  }

  /** @param {T[]} items */
  set(items) {
    this._items = items
    this.element.setAttribute('aria-rowcount', String(items.length + 1))
    this._space.style.height = `${items.length * this._rowHeight}px`
    this.draw()
  }

  /** Schedule a redraw, at most once per frame. */
  draw() {
    this._asked ||= requestAnimationFrame(() => {
      this._asked = 0
      this._draw()
    })
  }

  _draw() {
    const { scrollTop, clientHeight } = this.element
    const first = Math.max(0, Math.floor(scrollTop / this._rowHeight) - AROUND)
    const end = Math.min(this._items.length, Math.ceil((scrollTop + clientHeight) / this._rowHeight) + AROUND)
    while (this._rows.length < end - first) {
      const row = this._make()
      row.style.height = `${this._rowHeight}px`
      this._rows.push(row)
      this._space.append(row)
    }
    // Reuse a row for the same item, so that it keeps the focus while others scroll by.
    const shown = new Set()
    for (let index = first; index < end; index++) {
      const row = this._rows[index % this._rows.length]
      shown.add(row)
      row.hidden = false
      row.style.transform = `translateY(${index * this._rowHeight}px)`
      row.setAttribute('aria-rowindex', String(index + 2))
      this._show(row, this._items[index], index)
    }
    for (const row of this._rows) if (!shown.has(row)) row.hidden = true
    this._seen(this._items.slice(first, end))
  }
}
