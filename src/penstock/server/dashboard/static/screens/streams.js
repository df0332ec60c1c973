/** Streams: logs with any number of readers. */
import { ask } from '../dialog.js'
import { every, fill, h, rows } from '../dom.js'
import { bytes, count, short } from '../format.js'
import { icon } from '../icons.js'
import { card, empty, field, head, problem, table } from '../parts.js'
import { go, to } from '../router.js'

/** @import { App } from '../app.js' */
/** @import { Place } from '../router.js' */

const REFRESH_MS = 3000
const SHOWN_MAX = 1000

/**
 * @param {App} app
 * @param {Place} place
 * @param {AbortSignal} signal
 */
export function streams(app, place, signal) {
  const list = table('Streams', ['Stream', ['Records', 'num'], ['Next offset', 'num'], ['Size', 'num'], ['Segments', 'num'], ['Consumers', 'num']])
  const none = h('div')
  const look = async () => {
    try {
      const page = await app.client.streams({ limit: SHOWN_MAX })
      if (signal.aborted) return
      rows(list.body, page.streams, (each) => each.name, row)
      list.element.hidden = page.streams.length === 0
      fill(none, page.streams.length === 0 && empty('There are no streams yet', 'A stream keeps its records, so that any number of consumers can read all of them in order.',
        'penstock stream create clicks', `penstock stream append clicks --record '{"page": "/"}'`))
    } catch (error) {
      if (!signal.aborted) fill(none, problem(error))
    }
  }
  void every(REFRESH_MS, signal, look, app.frozen)
  const fresh = app.mayChange && h('button', { class: 'btn primary', type: 'button', onclick: () => void newStream(app) }, icon('plus'), 'New stream')
  return h('div', {}, head('Streams', {}, fresh), card('All streams', h('div', {}, list.element, none)))
}

/** @param {any} each */
function row(each) {
  const address = to('stream', [each.name])
  const values = [count(each.next - each.first), count(each.next), bytes(each.bytes), count(each.segment_count), short(each.consumer_count)]
  return h('tr', { class: 'link', onclick: () => go(address) }, h('td', { class: 'main clip' }, h('a', { href: address, text: each.name })),
    values.map((text) => h('td', { class: 'num', text })))
}

/** @param {App} app */
async function newStream(app) {
  const name = field('Name', h('input', { type: 'text', autocomplete: 'off', autofocus: true, spellcheck: 'false' }))
  const input = /** @type {HTMLInputElement} */ (name.input)
  const submit = () => app.client.stream(input.value.trim()).create()
  const done = await ask('New stream', name.element, { action: 'Create', submit, ready: () => input.value.trim() !== '' })
  if (done) go(to('stream', [input.value.trim()]))
}
