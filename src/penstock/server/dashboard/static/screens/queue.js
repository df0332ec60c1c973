/** One queue: counts, charts, messages, options and actions. */
import { Chart, rates } from '../chart.js'
import { ask, attempt, confirmByName } from '../dialog.js'
import { every, fill, h } from '../dom.js'
import { ago, count, duration, percent, plural, rate, short, when } from '../format.js'
import { icon } from '../icons.js'
import { preview } from '../json_view.js'
import { optionsForm } from '../options.js'
import { card, empty, field, head, problem, segmented, table, tag, tiles } from '../parts.js'
import { go, keep, to } from '../router.js'
import { parse } from '../client/json.js'
import { exportQueue } from '../save.js'
import { chartCard } from './overview.js'
import { setPaused } from './queues.js'

/** @import { App } from '../app.js' */
/** @import { Place } from '../router.js' */

const REFRESH_MS = 3000
const STATES = ['ready', 'scheduled', 'leased', 'dead', 'archived']
/** @type {[string, string, number, number][]} */
const SPANS = [['1h', '1 h', 60, 1], ['24h', '24 h', 1440, 15], ['7d', '7 d', 10_080, 120]]

/**
 * @param {App} app
 * @param {Place} place
 * @param {AbortSignal} signal
 */
export function queue(app, place, signal) {
  const name = place.parts[0] ?? ''
  const tab = place.query.get('tab') ?? 'messages'
  const path = name.split('/')
  const crumbs = [h('a', { href: to('queues'), text: 'Queues' }), path.slice(0, -1).map((part, n) => [' / ',
    h('a', { href: to('queues', [], { filter: `${path.slice(0, n + 1).join('/')}/` }), text: part })])]
  const state = tag('paused')
  state.hidden = true
  const pause = h('button', { class: 'btn', type: 'button', hidden: true })
  const figures = tiles('Counts', [['ready', 'Ready'], ['scheduled', 'Scheduled'], ['leased', 'Leased'], ['dead', 'Dead letters'], ['in', 'In'], ['out', 'Out'], ['oldest', 'Oldest'], ['errors', 'Failed']])
  const charts = plots(app, name, signal)
  const trouble = h('div')
  const times = h('div', { class: 'keys grow' })
  const body = h('div', { class: 'stack' }, figures.element, charts.element, h('div', { class: 'row' }, times, charts.picker))

  const look = async () => {
    try {
      const stats = /** @type {any} */ (await app.client.queue(name).stats())
      if (signal.aborted || (app.frozen() && body.dataset.shown)) return
      body.dataset.shown = 'yes'
      fill(trouble)
      body.hidden = below.hidden = false
      drawStats(figures, stats)
      state.hidden = !stats.paused
      pause.hidden = !app.mayChange
      fill(pause, icon(stats.paused ? 'play' : 'pause'), stats.paused ? 'Resume' : 'Pause')
      pause.onclick = async () => (await setPaused(app, name, !stats.paused)) && look()
      fill(times, ['wait', 'service'].flatMap((kind) => ['p50', 'p95', 'p99'].map((p) =>
        h('span', {}, `${kind} ${p}`, h('b', { text: duration(stats.latency[`${kind}_ms`]?.[p]) })))), h('span', { text: 'over 15 min' }))
    } catch (error) {
      if (signal.aborted) return
      body.hidden = below.hidden = /** @type {any} */ (error).status === 404
      fill(trouble, /** @type {any} */ (error).status === 404
        ? h('div', { class: 'card' }, empty(`There is no queue ${name}`, 'It was deleted, or has not been created yet.', `penstock queue create ${name}`)) : problem(error))
    }
  }
  const tabs = h('nav', { class: 'tabs', 'aria-label': 'Queue' }, [['messages', 'Messages'], ['options', 'Options']].map(([id, text]) =>
    h('a', { href: to('queue', [name], { tab: id }), 'aria-current': id === tab ? 'page' : null, text })))
  const below = h('div', { class: 'stack' }, tabs, tab === 'options' ? card('Options', optionsForm(app, name, signal)) : messages(app, name, place, signal))
  void every(REFRESH_MS, signal, look, app.frozen)
  app.live.listen((digest) => {
    const mine = digest.queues.find((each) => each.name === name)
    if (mine !== undefined) drawCounts(figures, mine)
  }, signal)
  return h('div', {}, head(path.at(-1) ?? name, { crumbs, after: state }, pause, actions(app, name)), trouble, body, below)
}

/**
 * @param {any} figures
 * @param {any} stats
 */
function drawStats(figures, stats) {
  drawCounts(figures, stats)
  const [last] = [stats.rates['1m']]
  figures.set.in(rate(last.pushed), '/s', 'last minute')
  figures.set.out(rate(last.acked), '/s', 'last minute')
  const [number, ...unit] = duration(stats.oldest_age_ms).split(' ')
  figures.set.oldest(number, unit.join(' '), stats.head_age_ms === null ? 'nothing is ready' : `next: ${duration(stats.head_age_ms)}`)
  figures.set.errors(percent(stats.error_rate), '%', 'last 15 min', stats.error_rate > 0 ? 'warn' : '')
}

/**
 * @param {any} figures
 * @param {any} counts
 */
function drawCounts(figures, counts) {
  figures.set.ready(short(counts.ready))
  figures.set.scheduled(short(counts.scheduled))
  figures.set.leased(short(counts.leased))
  figures.set.dead(short(counts.dead), '', '', counts.dead > 0 ? 'bad' : '')
}

/**
 * @param {App} app
 * @param {string} name
 * @param {AbortSignal} signal
 */
function plots(app, name, signal) {
  let span = SPANS[0]
  const flow = new Chart('Messages a second, in, out and failed', 'messages/s', [
    { name: 'In', colour: '--chart-in', filled: true }, { name: 'Out', colour: '--chart-out' }, { name: 'Failed', colour: '--chart-bad' }], rate, signal)
  const depth = new Chart('Messages waiting', 'messages', [{ name: 'Waiting', colour: '--chart-wait', filled: true }], short, signal)
  const look = async () => {
    const query = { queues: name, minutes: span[2], step_minutes: span[3] }
    const found = await app.client.request('GET', '/api/v1/analytics/sparks', { query, signal }).catch(() => undefined)
    const mine = found?.sparks[0]
    if (mine === undefined) return
    const end = Math.floor(Date.now() / 60_000) + 1
    const at = mine.pushed.map((/** @type {number} */ _, /** @type {number} */ n) => (end - span[2] + n * span[3]) * 60)
    flow.set(at, ['pushed', 'completed', 'failed'].map((kind) => rates(at, mine[kind], Date.now())))
    depth.set(at, [mine.pending])
  }
  void every(REFRESH_MS * 3, signal, look, app.frozen)
  const choose = (/** @type {string} */ chosen) => {
    span = SPANS.find(([id]) => id === chosen) ?? span
    void look()
  }
  const picker = segmented('Time span', SPANS.map(([id, text]) => [id, text]), span[0], choose)
  return { picker, element: h('div', { class: 'grid2' }, chartCard('Throughput', flow), chartCard('Depth', depth)) }
}

/**
 * Show messages without leasing them.
 * @param {App} app
 * @param {string} name
 * @param {Place} place
 * @param {AbortSignal} signal
 */
function messages(app, name, place, signal) {
  let state = place.query.get('state') ?? 'ready'
  /** @type {string | undefined} */
  let after
  const list = table('Messages', [['Id', 'num'], 'Body', ['Attempts', 'num wide'], ['Priority', 'num wide'], ['Age', 'num'], ['Next', 'wide']])
  const none = h('div')
  const more = h('button', { class: 'btn small', type: 'button', text: 'More', hidden: true, onclick: () => look() })
  const look = async () => {
    try {
      const page = await app.client.queue(name).peek({ state: /** @type {any} */ (state), limit: 25, after })
      if (signal.aborted) return
      if (after === undefined) fill(list.body)
      list.body.append(...page.messages.map((message) => row(app, message)))
      after = page.next ?? undefined
      more.hidden = after === undefined
      list.element.hidden = list.body.childElementCount === 0
      fill(none, list.element.hidden && empty(`No ${state} messages`, 'Choose another state, or push a message.', `penstock message enqueue --queue ${name} --payload '{"hello": "world"}'`))
    } catch (error) {
      if (!signal.aborted) fill(none, problem(error))
    }
  }
  const again = () => {
    after = undefined
    void look()
  }
  again()
  const choose = (/** @type {string} */ chosen) => {
    state = chosen
    keep({ state })
    again()
  }
  const refresh = h('button', { class: 'btn small', type: 'button', text: 'Refresh', onclick: again })
  return card('Messages', h('div', {}, list.element, none, h('div', { class: 'row more' }, more)),
    segmented('State', STATES.map((id) => [id, id]), state, choose), refresh)
}

/**
 * @param {App} app
 * @param {any} message
 */
function row(app, message) {
  const address = to('message', [message.queue, message.id], { uuid: message.uuid })
  const next = { ready: 'now', scheduled: when(message.available_at), leased: `until ${when(message.lease_expires_at)}`, dead: message.error ?? message.reason ?? '' }
  return h('tr', { class: 'link', onclick: () => go(address) }, h('td', { class: 'num' }, h('a', { href: address, text: String(message.id) })),
    h('td', { class: 'rest clip mono', text: preview(message.payload) }), h('td', { class: 'num wide', text: count(message.attempts) }), h('td', { class: 'num wide', text: count(message.priority) }),
    h('td', { class: 'num', text: ago(message.created_at, Date.now()).replace(' ago', '') }), h('td', { class: 'clip wide some', text: next[/** @type {'ready'} */ (message.state)] ?? when(message.finished_at) }))
}

/**
 * @param {App} app
 * @param {string} name
 */
function actions(app, name) {
  const button = (/** @type {string} */ text, /** @type {() => unknown} */ onclick, kind = '') => h('button', { class: `btn ${kind}`, type: 'button', text, onclick })
  const take = button('Export', () => void attempt(() => exportQueue(app, name)))
  if (!app.mayChange) return take
  const purge = async () => {
    const { purged } = await app.client.queue(name).purge({ dry_run: true })
    await confirmByName('Purge', `${plural(purged, 'message')} will be deleted permanently. Leased and dead messages stay.`, name, 'Purge', () => app.client.queue(name).purge())
  }
  const remove = async () => {
    const done = await confirmByName('Delete queue', 'The queue and all its messages are deleted, including leased, dead and archived ones.', name, 'Delete', () => app.client.queue(name).drop({ force: true }))
    if (done) go(to('queues'))
  }
  return [button('Push a message', () => void push(app, name), 'primary'), take, button('Purge…', () => void attempt(purge), 'danger'), button('Delete…', () => void attempt(remove), 'danger')]
}

/**
 * @param {App} app
 * @param {string} name
 */
async function push(app, name) {
  const body = field('Body, as JSON', h('textarea', { value: '{\n  "hello": "world"\n}', spellcheck: 'false', autofocus: true }))
  const delay = field('Delay, ms', h('input', { type: 'text', inputmode: 'numeric', value: '0' }))
  const priority = field('Priority', h('input', { type: 'text', inputmode: 'numeric', value: '0' }))
  const read = (/** @type {any} */ each) => each.input.value
  /** @type {any} */
  let receipt
  const submit = async () => {
    receipt = await app.client.queue(name).push(parse(read(body)), { delay_ms: Number(read(delay)), priority: Number(read(priority)) })
  }
  const ready = () => {
    try {
      parse(read(body))
      body.refuse()
      return [delay, priority].every((each) => /^-?\d+$/.test(read(each).trim()))
    } catch (error) {
      body.refuse(String(/** @type {any} */ (error).message))
      return false
    }
  }
  const done = await ask(`Push to ${name}`, h('div', { class: 'stack' }, body.element, h('div', { class: 'fields' }, delay.element, priority.element)), { action: 'Push', submit, ready })
  if (done) go(to('message', [name, receipt.id], { uuid: receipt.uuid }))
}
