/** Queues as a tree: filter, sort, pause. */
import { sparkline } from '../chart.js'
import { ask, attempt } from '../dialog.js'
import { fill, h, say } from '../dom.js'
import { count, plural, short } from '../format.js'
import { icon } from '../icons.js'
import { card, empty, field, head, problem, tag } from '../parts.js'
import { go, keep, to } from '../router.js'
import { countUp, flatten, growTree } from '../tree.js'
import { VirtualList } from '../virtual.js'

/** @import { App } from '../app.js' */
/** @import { Place } from '../router.js' */
/** @import { Order, Twig } from '../tree.js' */

/** @type {[Order, string, string][]} */
const COLUMNS = [['ready', 'Ready', ''], ['scheduled', 'Scheduled', 'wide'], ['leased', 'Leased', ''], ['dead', 'Dead', ''], ['priority', 'Priority', 'wide']]
const OPEN_MAX = 300
const SPARK_MS = 15_000
const SPARKS_MAX = 80

/**
 * @param {App} app
 * @param {Place} place
 * @param {AbortSignal} signal
 */
export function queues(app, place, signal) {
  let order = /** @type {Order} */ (place.query.get('sort') ?? 'name')
  let filter = place.query.get('filter') ?? ''
  let version = -1
  let root = growTree([], '')
  /** @type {Map<string, boolean>} */
  const opened = new Map()
  const sparks = new Sparks(app, signal, () => list.draw())
  const isOpen = (/** @type {string} */ path) => opened.get(path) ?? (filter !== '' || app.catalog.queues.size <= OPEN_MAX)
  const toggle = (/** @type {Twig} */ twig) => {
    opened.set(twig.path, !isOpen(twig.path))
    draw()
  }
  /** @type {VirtualList<Twig>} */
  const list = new VirtualList({
    label: 'Queues', rowHeight: 38, signal, header: header(() => order, (chosen) => {
      order = chosen
      keep({ filter, sort: order })
      draw()
    }),
    make: () => makeRow(app, toggle), seen: (twigs) => sparks.want(twigs),
    show: (row, twig) => showRow(row, twig, isOpen(twig.path), sparks),
  })
  const said = h('span', { class: 'muted small num', role: 'status' })
  const none = h('div')
  const draw = () => {
    if (app.catalog.version !== version) {
      version = app.catalog.version
      root = growTree(app.catalog.queues.values(), filter)
    }
    countUp(root)
    const shown = flatten(root, order, isOpen)
    list.set(shown)
    const all = app.catalog.queues.size
    say(said, filter === '' ? plural(all, 'queue') : `${count(root.queues)} of ${plural(all, 'queue')}`)
    list.element.hidden = shown.length === 0
    fill(none, app.catalog.error ? problem(app.catalog.error) : shown.length === 0 && nothing(app, filter))
  }
  app.catalog.listen(() => (app.frozen() ? undefined : draw()), signal)
  void app.catalog.load()
  draw()
  const input = h('input', {
    type: 'search', placeholder: 'Filter', 'aria-label': 'Filter queues', value: filter, autocomplete: 'off',
    oninput: () => {
      filter = input.value.trim()
      version = -1
      keep({ filter, sort: order })
      list.element.scrollTop = 0
      draw()
    },
  })
  const fresh = app.mayChange && h('button', { class: 'btn primary', type: 'button', onclick: () => newQueue(app) }, icon('plus'), 'New queue')
  const box = card('All queues', h('div', {}, list.element, none), said, h('div', {}, input))
  return h('div', {}, head('Queues', {}, fresh), box)
}

/**
 * @param {() => Order} current
 * @param {(order: Order) => void} choose
 */
function header(current, choose) {
  const row = h('div', { class: 'vhead cols', role: 'row' })
  const title = (/** @type {Order} */ name, /** @type {string} */ text, /** @type {string} */ kind) => {
    const cell = h('span', { role: 'columnheader', class: kind, 'data-order': name }, h('button', {
      type: 'button', onclick: () => (choose(name), tell()),
    }, text))
    return cell
  }
  const tell = () => {
    for (const cell of row.querySelectorAll('[data-order]')) {
      const name = cell.getAttribute('data-order')
      const chosen = name === current()
      cell.setAttribute('aria-sort', !chosen ? 'none' : name === 'name' ? 'ascending' : 'descending')
      const button = /** @type {HTMLElement} */ (cell.firstElementChild)
      button.textContent = (button.textContent ?? '').replace(/ [↓↑]$/, '') + (chosen ? (name === 'name' ? ' ↑' : ' ↓') : '')
    }
  }
  fill(row, title('name', 'Name', ''), h('span', { role: 'columnheader', class: 'wide muted xsmall', text: 'In, last hour' }),
    COLUMNS.map(([name, text, kind]) => title(name, text, `num ${kind}`)), h('span', { role: 'columnheader', class: 'wide' }, h('span', { class: 'hidden-label', text: 'Actions' })))
  tell()
  return row
}

/**
 * @param {App} app
 * @param {(twig: Twig) => void} toggle
 */
function makeRow(app, toggle) {
  const line = sparkline('Pushed in the last hour')
  const twist = h('button', { class: 'twist', type: 'button', text: '▶', onclick: (/** @type {Event} */ e) => (e.stopPropagation(), toggle(row.twig)) })
  const link = h('a', { class: 'clip' })
  const state = tag('paused')
  const alert = tag('dead', 'old messages')
  const pause = h('button', {
    class: 'btn small', type: 'button',
    onclick: (/** @type {Event} */ event) => {
      event.stopPropagation()
      void setPaused(app, row.twig.entry.name, !row.twig.entry.paused)
    },
  })
  const cells = COLUMNS.map(([name, , kind]) => h('span', { role: 'gridcell', class: `num ${kind}`, 'data-cell': name }))
  const row = /** @type {any} */ (h('div', {
    class: 'vrow cols link', role: 'row',
    onclick: (/** @type {MouseEvent} */ event) => {
      if (/** @type {HTMLElement} */ (event.target).closest('a, button')) return
      if (row.twig.entry) go(to('queue', [row.twig.entry.name]))
      else toggle(row.twig)
    },
  }, h('span', { role: 'gridcell', class: 'name' }, twist, link, state, alert),
    h('span', { role: 'gridcell', class: 'wide' }, line.element), cells, h('span', { role: 'gridcell', class: 'wide num' }, app.mayChange && pause)))
  row.parts = { line, twist, link, state, alert, pause, cells, name: row.firstElementChild }
  return row
}

/**
 * @param {any} row
 * @param {Twig} twig
 * @param {boolean} isOpen
 * @param {Sparks} sparks
 */
function showRow(row, twig, isOpen, sparks) {
  const { line, twist, link, state, alert, pause, cells, name } = row.parts
  const { entry } = twig
  row.twig = twig
  row.setAttribute('aria-level', String(twig.level))
  name.style.paddingLeft = `${(twig.level - 1) * 18}px`
  twist.style.visibility = entry ? 'hidden' : 'visible'
  if (entry) {
    row.removeAttribute('aria-expanded')
    twist.removeAttribute('aria-expanded')
    link.href = to('queue', [entry.name])
    say(link, twig.name)
  } else {
    row.setAttribute('aria-expanded', String(isOpen))
    twist.setAttribute('aria-expanded', String(isOpen))
    link.removeAttribute('href')
    say(link, `${twig.name} (${count(twig.queues)})`)
  }
  twist.setAttribute('aria-label', `${isOpen ? 'Close' : 'Open'} ${twig.path}`)
  state.hidden = !entry?.paused
  pause.hidden = !entry
  say(pause, entry?.paused ? 'Resume' : 'Pause')
  for (const cell of cells) {
    const kind = cell.getAttribute('data-cell')
    const value = kind === 'priority' ? (entry?.priority ?? 0) : twig[/** @type {'ready'} */ (kind)]
    say(cell, kind === 'priority' && !entry ? '' : short(value))
    cell.classList.toggle('zero', value === 0)
    cell.classList.toggle('bad', kind === 'dead' && value > 0)
  }
  const seen = entry && sparks.of(entry.name)
  const known = seen?.pushed
  alert.hidden = !seen?.alert
  line.element.style.visibility = known ? 'visible' : 'hidden'
  if (known && row.drawn !== known) line.set(known)
  row.drawn = known
}

/** Sparklines of the visible queues. */
class Sparks {
  /**
   * @param {App} app
   * @param {AbortSignal} signal
   * @param {() => void} redraw
   */
  constructor(app, signal, redraw) {
    this._app = app
    this._signal = signal
    this._redraw = redraw
    /** @type {Map<string, {pushed: number[], alert: boolean, at: number}>} */
    this._known = new Map()
    this._timer = 0
  }

  /** @param {string} name */
  of(name) {
    return this._known.get(name)
  }

  /** @param {Twig[]} twigs */
  want(twigs) {
    clearTimeout(this._timer)
    if (!this._signal.aborted) this._timer = window.setTimeout(() => void this._look(twigs), 200)
  }

  /** @param {Twig[]} twigs */
  async _look(twigs) {
    const old = Date.now() - SPARK_MS
    const names = twigs.flatMap(({ entry }) => (entry && (this._known.get(entry.name)?.at ?? 0) < old ? [entry.name] : [])).slice(0, SPARKS_MAX)
    if (names.length === 0 || this._app.frozen() || this._signal.aborted) return
    try {
      const query = { queues: names.join(','), minutes: 60, step_minutes: 2 }
      const found = await this._app.client.request('GET', '/api/v1/analytics/sparks', { query, signal: this._signal })
      for (const each of found.sparks) {
        this._known.set(each.queue.name, { pushed: each.pushed, alert: each.age_alert, at: Date.now() })
        this._app.catalog.put(each.queue)
      }
      this._redraw()
    } catch {
      // A missing sparkline is harmless; the screen itself reports the error.
    }
  }
}

/**
 * @param {App} app
 * @param {string} name
 * @param {boolean} paused
 */
export function setPaused(app, name, paused) {
  return attempt(async () => {
    const queue = app.client.queue(name)
    app.catalog.put(await (paused ? queue.pause() : queue.resume()))
    app.catalog.touched()
    return paused ? `${name} is paused: pushes go on, messages are not leased` : `${name} is resumed`
  })
}

/**
 * @param {App} app
 * @param {string} filter
 */
function nothing(app, filter) {
  if (filter !== '') return empty('No queue has that in its name', 'Try a shorter text.')
  if (!app.catalog.complete) return h('p', { class: 'empty', text: 'Loading…' })
  return empty('There are no queues yet', 'Create one, or push to it with the tree API.', 'penstock queue create emails')
}

/** @param {App} app */
async function newQueue(app) {
  const name = field('Name', h('input', { type: 'text', autocomplete: 'off', autofocus: true, spellcheck: 'false' }), 'Such as emails, or namespace/task/queue')
  const input = /** @type {HTMLInputElement} */ (name.input)
  const submit = async () => app.catalog.put(await app.client.queue(input.value.trim()).create())
  const done = await ask('New queue', name.element, { action: 'Create', submit, ready: () => input.value.trim() !== '' })
  if (done) go(to('queue', [input.value.trim()]))
}
