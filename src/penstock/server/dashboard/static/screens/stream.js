/** One stream: its segments, its consumers with their lag, and its records from any offset. */
import { confirmByName } from '../dialog.js'
import { every, fill, h, rows } from '../dom.js'
import { ago, bytes, count, exact, when } from '../format.js'
import { jsonView, preview } from '../json_view.js'
import { card, empty, head, problem, table, tiles } from '../parts.js'
import { go, keep, to } from '../router.js'

/** @import { App } from '../app.js' */
/** @import { Place } from '../router.js' */

const REFRESH_MS = 2000
const PAGE = 20

/**
 * @param {App} app
 * @param {Place} place
 * @param {AbortSignal} signal
 */
export function stream(app, place, signal) {
  const name = place.parts[0] ?? ''
  const log = app.client.stream(name)
  const figures = tiles('Size', [['records', 'Records kept'], ['first', 'First offset'], ['next', 'Next offset'], ['bytes', 'Size'], ['rate', 'Appended'], ['lag', 'Greatest lag']])
  const segments = h('div', { class: 'segments', role: 'img' })
  const consumers = table('Consumers', ['Consumer', ['Position', 'num'], ['Lag', 'num'], 'Last seen'])
  const none = h('div')
  const trouble = h('div')
  const body = h('div', { class: 'stack' }, figures.element, h('div', { class: 'grid2' },
    card('Segments', h('div', { class: 'body stack tight' }, segments, h('p', { class: 'muted small', text: 'Oldest first. The last one is being written; sealed ones never change.' }))),
    card('Consumers', h('div', {}, consumers.element, none))), records(app, log, place, signal))
  /** @type {{at: number, next: number} | undefined} */
  let before
  const look = async () => {
    try {
      const info = /** @type {any} */ (await log.info())
      if (signal.aborted) return
      fill(trouble)
      const now = Date.now()
      figures.set.records(count(info.next - info.first))
      figures.set.first(count(info.first))
      figures.set.next(count(info.next))
      figures.set.bytes(...split(bytes(info.bytes)))
      if (before) figures.set.rate(count(Math.round(((info.next - before.next) * 1000) / Math.max(1, now - before.at))), '/s')
      figures.set.lag(count(Math.max(0, ...info.consumers.map((/** @type {any} */ each) => each.lag))))
      before = { at: now, next: info.next }
      drawSegments(segments, info.segments)
      rows(consumers.body, info.consumers, (/** @type {any} */ each) => each.consumer, (each) => h('tr', {},
        h('td', { class: 'main clip', text: each.kind === 'consumer' ? each.consumer : `${each.consumer} (${each.kind})` }),
        h('td', { class: 'num', text: each.offset === null ? 'none yet' : count(each.offset) }), h('td', { class: 'num', text: count(each.lag) }),
        h('td', { text: ago(each.seen_at, now) + (each.expired ? ', expired' : '') })))
      consumers.element.hidden = info.consumers.length === 0
      fill(none, info.consumers.length === 0 && empty('There are no consumers', 'A consumer continues at its committed offset, even after a restart.', `curl '${app.client.baseUrl}/streams/${encodeURIComponent(name)}/next?consumer=me'`))
    } catch (error) {
      if (!signal.aborted) fill(trouble, problem(error))
    }
  }
  void every(REFRESH_MS, signal, look, app.frozen)
  const remove = async () => {
    if (await confirmByName('Delete stream', 'All its records and committed offsets are deleted permanently.', name, 'Delete', () => log.drop({ force: true }))) go(to('streams'))
  }
  const button = app.mayChange && h('button', { class: 'btn danger', type: 'button', text: 'Delete…', onclick: () => void remove() })
  return h('div', {}, head(name, { crumbs: h('a', { href: to('streams'), text: 'Streams' }) }, button), trouble, body)
}

/** @param {string} text @returns {[string, string]} */
const split = (text) => /** @type {[string, string]} */ (text.split(' '))

/**
 * @param {Element} place
 * @param {any[]} segments
 */
function drawSegments(place, segments) {
  place.setAttribute('aria-label', `${segments.length} segments`)
  const shown = segments.slice(-120)
  fill(place, shown.map((segment) => {
    const bar = h('i', { class: segment.sealed ? '' : 'open', title: `from ${count(segment.first)}: ${count(segment.records)} records, ${bytes(segment.bytes)}${segment.sealed ? '' : ', being written'}` })
    bar.style.flexGrow = String(Math.max(1, segment.bytes))
    return bar
  }))
}

/**
 * @param {App} app
 * @param {any} log
 * @param {Place} place
 * @param {AbortSignal} signal
 */
function records(app, log, place, signal) {
  const list = h('ol', { class: 'stream-list', 'aria-label': 'Records' })
  const input = h('input', { type: 'text', inputmode: 'numeric', 'aria-label': 'From offset', placeholder: 'offset', autocomplete: 'off' })
  /** @type {number | undefined} */
  let from = place.query.has('from') ? Number(place.query.get('from')) : undefined
  const look = async () => {
    try {
      const info = await log.info()
      from = Math.min(Math.max(from ?? info.next - PAGE, info.first), Math.max(info.first, info.next - 1))
      const page = await log.read({ from, limit: PAGE })
      if (signal.aborted) return
      input.value = String(from)
      keep({ from: String(from) })
      fill(list, page.records.length > 0 ? page.records.map(record) : h('li', { class: 'muted', text: 'There are no records here.' }))
    } catch (error) {
      if (!signal.aborted) fill(list, h('li', {}, problem(error)))
    }
  }
  const move = (/** @type {number | undefined} */ to) => {
    from = to
    void look()
  }
  const form = h('form', { class: 'row', onsubmit: (/** @type {Event} */ event) => (event.preventDefault(), /^\d+$/.test(input.value.trim()) && move(Number(input.value))) },
    h('button', { class: 'btn small', type: 'button', text: 'Earlier', onclick: () => move(Math.max(0, (from ?? 0) - PAGE)) }), h('div', { class: 'short' }, input),
    h('button', { class: 'btn small', type: 'submit', text: 'Go' }), h('button', { class: 'btn small', type: 'button', text: 'Later', onclick: () => move((from ?? 0) + PAGE) }),
    h('button', { class: 'btn small', type: 'button', text: 'Newest', onclick: () => move(undefined) }))
  void look()
  return card('Records', list, form)
}

/** @param {any} each */
function record(each) {
  return h('li', {}, h('span', { class: 'num muted', text: count(each.offset) }), h('time', { title: exact(each.timestamp), text: when(each.timestamp) }), h('details', { class: 'grow' }, h('summary', { class: 'clip mono', text: preview(each.data) }), jsonView(each.data)))
}
