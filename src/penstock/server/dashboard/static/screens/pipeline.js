/** Pipeline: the lag of the lake's tables, the readers of the journal, and how to start it. */
import { every, fill, h, rows } from '../dom.js'
import { ago, bytes, count } from '../format.js'
import { card, command, empty, facts, head, problem, table, tag } from '../parts.js'

/** @import { App } from '../app.js' */
/** @import { Place } from '../router.js' */

const REFRESH_MS = 5000

/**
 * @param {App} app
 * @param {Place} place
 * @param {AbortSignal} signal
 */
export function pipeline(app, place, signal) {
  const body = h('div', { class: 'stack' })
  const tables = table('Tables', ['Table', ['Rows', 'num'], ['Newest', 'num'], ['Lag, records', 'num'], ['Files', 'num wide'], ['Size', 'num wide']])
  const readers = table('Readers', ['Reader', ['Position', 'num'], ['Lag, records', 'num'], ['Last seen', 'wide'], ['Kind', 'wide']])
  const expectations = table('Expectations', ['Model', 'Expectation', ['Result', 'num'], ['Action', 'wide'], ['Checked', 'wide']])
  const state = h('span')
  const look = async () => {
    if (!app.server.journal) {
      fill(body, h('div', { class: 'card' }, empty('This server has no journal', 'The pipeline reads the journal. Start the server without --no-journal.', 'penstock serve')))
      return
    }
    try {
      const found = await app.client.request('GET', '/pipeline', { signal })
      if (!signal.aborted) draw(found)
    } catch (error) {
      if (!signal.aborted) fill(body, problem(error))
    }
  }
  const draw = (/** @type {any} */ found) => {
    const now = Date.now()
    const start = app.server.store === 'sqlite' ? '--data ./penstock-data' : '--store "$PENSTOCK_STORE"'
    fill(state, found.exists && found.running !== null && tag(found.running ? 'ok' : 'scheduled', found.running ? 'running' : 'not running'))
    rows(tables.body, found.tables, (/** @type {any} */ each) => each.table, (each) => h('tr', { title: each.about },
      h('td', { class: 'main clip mono', text: each.table }), h('td', { class: 'num', text: count(each.rows) }), h('td', { class: 'num', text: ago(each.newest_ms, now) }),
      h('td', { class: each.lag > 0 ? 'num warn' : 'num', text: count(each.lag) }), h('td', { class: 'num wide', text: count(each.files) }), h('td', { class: 'num wide', text: bytes(each.bytes) })))
    rows(readers.body, found.readers, (/** @type {any} */ each) => each.consumer, (each) => h('tr', {},
      h('td', { class: 'main clip mono', text: each.consumer }), h('td', { class: 'num', text: each.offset === null ? 'none yet' : count(each.offset) }), h('td', { class: 'num', text: count(each.lag) }),
      h('td', { class: 'wide', text: ago(each.seen_at, now) }), h('td', { class: 'wide', text: each.kind })))
    rows(expectations.body, found.expectations, (/** @type {any} */ each) => `${each.model} ${each.expectation}`, (each) => h('tr', {},
      h('td', { class: 'main clip mono', text: each.model }), h('td', { class: 'clip mono', text: each.expectation }),
      h('td', { class: each.passed ? 'num' : 'num warn', text: each.passed ? 'passed' : `${count(each.failed)} failed` }),
      h('td', { class: 'wide', text: each.action }), h('td', { class: 'wide', text: ago(each.checked_at, now) })))
    fill(body, !found.installed && h('div', { class: 'card' }, empty('The tables cannot be read', 'The packages that read them are not installed on this server.', `pip install 'penstock-mq[spark]'`)),
      found.installed && !found.exists && h('div', { class: 'card' }, empty('There is no lake yet', 'The pipeline turns everything that passed through the queues into tables, with Spark. If it is killed, the next run continues where it stopped.',
        `penstock pipeline run ${start}`, `penstock pipeline run ${start} --continuous`)),
      found.last_error && h('p', { class: 'problem', text: `Spark logged an error ${ago(found.last_error_at, now)}: ${found.last_error}` }),
      found.exists && card('Tables', h('div', { class: 'scroll' }, tables.element), h('code', { class: 'muted xsmall clip', text: found.lake })),
      found.expectations.length > 0 && card('Expectations', h('div', { class: 'scroll' }, expectations.element)),
      card('Journal', h('div', {}, h('div', { class: 'body' }, facts([['Next offset', count(found.next)]])), found.readers.length > 0 ? h('div', { class: 'scroll' }, readers.element) : empty('No readers', 'A pipeline that runs shows here, with how far it is behind.'))),
      found.exists && card('Commands', h('div', { class: 'body stack' }, command(`penstock pipeline run ${start} --continuous`), command(`penstock pipeline sql ${start} "SELECT * FROM gold.queue_minutes ORDER BY minute DESC LIMIT 20"`), command(`penstock pipeline report ${start}`))))
  }
  void every(REFRESH_MS, signal, look, app.frozen)
  return h('div', {}, head('Pipeline', { after: state }), body)
}
