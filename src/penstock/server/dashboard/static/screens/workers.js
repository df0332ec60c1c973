/** Workers: the servers of this fleet and the named consumers, with their leases. */
import { every, fill, h, rows, say } from '../dom.js'
import { ago, count, plural } from '../format.js'
import { card, empty, head, problem, table, tag } from '../parts.js'
import { to } from '../router.js'

/** @import { App } from '../app.js' */
/** @import { Place } from '../router.js' */

const REFRESH_MS = 3000
const SHOWN_MAX = 500

/**
 * @param {App} app
 * @param {Place} place
 * @param {AbortSignal} signal
 */
export function workers(app, place, signal) {
  const servers = table('Servers', ['Server', 'Host', ['Process', 'num wide'], ['Version', 'wide'], ['Started', 'wide'], 'Heartbeat'])
  const consumers = table('Consumers', ['Consumer', ['Through', 'wide'], ['Host', 'wide'], ['Holds', 'num'], ['Queues', 'wide'], 'Heartbeat'])
  const noServers = h('div')
  const noConsumers = h('div')
  const said = h('span', { class: 'muted small num', role: 'status' })
  const look = async () => {
    try {
      const page = await app.client.request('GET', '/workers', { query: { limit: SHOWN_MAX }, signal })
      if (signal.aborted) return
      draw(page.workers)
    } catch (error) {
      if (signal.aborted) return
      if (/** @type {any} */ (error).status === 404) draw([])
      else fill(noServers, problem(error))
    }
  }
  const draw = (/** @type {any[]} */ all) => {
    const now = Date.now()
    const mine = all.filter((each) => each.kind === 'server')
    const theirs = all.filter((each) => each.kind === 'consumer')
    rows(servers.body, mine, keyOf, (each) => h('tr', {}, h('td', { class: 'main clip', text: each.name }), h('td', { text: each.host ?? '–' }),
      h('td', { class: 'num wide', text: each.pid ?? '–' }), h('td', { class: 'wide', text: each.version ?? '–' }),
      h('td', { class: 'wide', text: ago(each.started_at, now) }), h('td', {}, heartbeat(each, now))))
    rows(consumers.body, theirs, keyOf, (each) => h('tr', {}, h('td', { class: 'main clip', text: each.name }), h('td', { class: 'wide', text: each.server ?? 'the store itself' }),
      h('td', { class: 'wide', text: [each.host, each.pid].filter((part) => part !== null).join(' · ') || '–' }), h('td', { class: 'num', text: count(each.leases) }),
      h('td', { class: 'wide wrap' }, each.queues.slice(0, 6).map(link)), h('td', {}, heartbeat(each, now))))
    servers.element.hidden = mine.length === 0
    consumers.element.hidden = theirs.length === 0
    say(said, `${plural(mine.length, 'server')}, ${plural(theirs.length, 'consumer')}`)
    fill(noServers, mine.length === 0 && empty('No server has registered', 'Servers register when they start.'))
    fill(noConsumers, theirs.length === 0 && empty('There are no named consumers', 'Consumers that lease with a name are listed here.', 'penstock message poll --queue emails --worker me'))
  }
  void every(REFRESH_MS, signal, look, app.frozen)
  return h('div', {}, head('Workers', { after: said }), card('Consumers', h('div', {}, consumers.element, noConsumers)), card('Servers', h('div', {}, servers.element, noServers)))
}

/** @param {any} each */
const keyOf = (each) => `${each.name} ${each.server ?? ''} ${each.started_at}`

/** @param {{queue: string, leases: number}} held the name of a queue, or of a namespace, which ends with a slash */
function link({ queue, leases }) {
  const address = queue.endsWith('/') ? to('queues', [], { filter: queue }) : to('queue', [queue])
  return [h('a', { href: address, text: queue }), leases > 0 ? ` ${leases} ` : ' ']
}

/**
 * @param {any} each
 * @param {number} now
 */
function heartbeat(each, now) {
  const late = now > (each.seen_at + each.stale_at) / 2
  return tag(late ? 'lapsed' : 'ok', ago(each.seen_at, now))
}
