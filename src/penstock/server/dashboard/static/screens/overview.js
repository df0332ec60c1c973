/** Overview: throughput, backlog and latency. */
import { Chart, rates, TIME_STEPS } from '../chart.js'
import { every, fill, h, rows, say } from '../dom.js'
import { clock, count, duration, percent, plural, rate, short } from '../format.js'
import { card, empty, head, problem, segmented, table, tag, tiles } from '../parts.js'
import { go, keep, to } from '../router.js'

/** @import { App } from '../app.js' */
/** @import { Digest } from '../live.js' */
/** @import { Place } from '../router.js' */

/** @type {[string, string, number, number][]} name, text, minutes, minutes a step */
const SPANS = [
  ['5m', '5 min', 5, 1], ['1h', '1 h', 60, 1], ['6h', '6 h', 360, 5], ['24h', '24 h', 1440, 15], ['7d', '7 d', 10_080, 120], ['30d', '30 d', 43_200, 480],
]
const REFRESH_MS = 4000
const FAILURES = ['failed', 'deadLetter']
const LIVE_SECONDS = 300
const WINDOW_MS = 10_000

/**
 * @param {App} app
 * @param {Place} place
 * @param {AbortSignal} signal
 */
export function overview(app, place, signal) {
  /** The roll-ups: the steps, and when they were loaded. @type {Steps} */
  let minutes = { times: [], points: [], at: 0 }
  let span = SPANS.find(([name]) => name === place.query.get('span')) ?? SPANS[1]
  const figures = tiles('Now', [['in', 'In'], ['out', 'Out'], ['waiting', 'Waiting'], ['oldest', 'Oldest waiting'], ['errors', 'Failed deliveries'], ['dead', 'Dead letters']])
  const charts = {
    flow: new Chart('Messages a second, in, out and failed', 'messages/s', [
      { name: 'In', colour: '--chart-in', filled: true }, { name: 'Out', colour: '--chart-out' }, { name: 'Failed', colour: '--chart-bad' }], rate, signal),
    depth: new Chart('Messages waiting and leased', 'messages', [
      { name: 'Waiting', colour: '--chart-wait', filled: true }, { name: 'Leased', colour: '--chart-hold' }], short, signal),
    wait: latencyChart('Wait, from push to lease', signal),
    service: latencyChart('Service, from lease to completion', signal),
  }
  const busiest = table('Busiest queues', ['Queue', ['In', 'num'], ['Out', 'num'], ['Failed', 'num wide'], ['Waiting', 'num'], ['Dead', 'num wide']])
  const trouble = h('div')
  const said = h('span', { class: 'muted small num' })
  const nothing = h('div', { class: 'card', hidden: true }, empty('There are no messages yet', 'Create a queue and push a first message. It appears here at once.',
    'penstock queue create emails', `penstock message enqueue --queue emails --payload '{"to": "ada"}'`))
  const feed = h('ol', { class: 'stream-list', 'aria-label': 'Latest events' })
  const body = h('div', { class: 'stack' }, figures.element,
    h('div', { class: 'grid2' }, chartCard('Throughput', charts.flow), chartCard('Depth', charts.depth)),
    h('div', { class: 'grid2' }, chartCard('Wait', charts.wait), chartCard('Service', charts.service)),
    h('div', { class: 'split' }, card('Busiest queues', busiest.element), card('Latest', feed)))

  const look = async () => {
    try {
      const query = { minutes: span[2], step_minutes: span[3] }
      const found = await app.client.request('GET', '/api/v1/analytics/overview', { query, signal })
      if (app.frozen() && body.dataset.shown) return
      body.dataset.shown = span[0]
      fill(trouble)
      nothing.hidden = found.queues > 0
      body.hidden = found.queues === 0
      draw(found)
    } catch (error) {
      if (!signal.aborted) fill(trouble, problem(error))
    }
  }
  /** @param {any} found */
  const draw = (found) => {
    const { totals } = found
    const ended = totals.completed + totals.failed
    figures.set.waiting(short(totals.pending), '', `${short(totals.processing)} leased`)
    say(said, plural(found.queues, 'queue'))
    figures.set.oldest(...unit(duration(found.oldestAgeMs)), found.paused > 0 ? `${plural(found.paused, 'queue')} paused` : 'nothing paused')
    figures.set.errors(percent(ended ? totals.failed / ended : 0), '%', `${count(totals.failed)} in ${span[1]}`, totals.failed > 0 ? 'warn' : '')
    figures.set.dead(short(totals.deadLetter), '', `${count(totals.died)} died in ${span[1]}`, totals.deadLetter > 0 ? 'bad' : '')
    const points = [...found.series].reverse()
    const times = points.map((point) => Date.parse(point.timestamp) / 1000)
    const at = Date.parse(found.timestamp)
    minutes = { times, points, at }
    now(app, figures, at, minutes)
    if (span[0] === '5m') seconds(app, charts.flow, minutes)
    else charts.flow.set(times, ['pushed', 'completed', 'failed'].map((name) => rates(times, points.map((point) => point[name]), at)))
    charts.depth.set(times, ['pending', 'processing'].map((name) => points.map((point) => point[name])))
    for (const kind of /** @type {('wait' | 'service')[]} */ (['wait', 'service'])) {
      charts[kind].set(times, ['p50', 'p95', 'p99'].map((name) => points.map((point) => point[kind][name])))
    }
    rows(busiest.body, found.busiest, (each) => each.queue, row)
  }
  /** @param {Digest} digest */
  const tell = (digest) => {
    now(app, figures, digest.at, minutes)
    if (span[0] === '5m') seconds(app, charts.flow, minutes)
    latest(feed, app)
  }
  app.live.listen(tell, signal)
  latest(feed, app)
  void every(REFRESH_MS, signal, look, app.frozen)
  const choose = (/** @type {string} */ name) => {
    span = SPANS.find((each) => each[0] === name) ?? span
    keep({ span: name })
    delete body.dataset.shown
    void look()
  }
  return h('div', {}, head('Overview', { after: said }, segmented('Time span', SPANS.map(([name, text]) => [name, text]), span[0], choose)), trouble, nothing, body)
}

/**
 * @param {string} title
 * @param {Chart} chart
 */
export const chartCard = (title, chart) => card(title, h('div', { class: 'body plot' }, chart.element), chart.keys)

/**
 * @param {string} title
 * @param {AbortSignal} signal
 */
export function latencyChart(title, signal) {
  const lines = ['p50', 'p95', 'p99'].map((name) => ({ name, colour: `--chart-${name}` }))
  return new Chart(title, 'time', lines, duration, signal, TIME_STEPS)
}

/** @param {string} text @returns {[string, string]} */
function unit(text) {
  const [number, ...rest] = text.split(' ')
  return [number, rest.join(' ')]
}

/** @typedef {{times: number[], points: any[], at: number}} Steps */

/**
 * Return the rates in and out per second: over the last ten seconds once observed, until then over the last minute.
 * @param {App} app
 * @param {any} figures
 * @param {number} at by the server's clock: the browser's may be another
 * @param {Steps} steps
 */
function now(app, figures, at, steps) {
  if (app.live.state !== 'off' && at - app.live.since >= WINDOW_MS) {
    const last = app.live.history.at(-1)?.at ?? 0
    const recent = app.live.history.filter((each) => each.at > last - WINDOW_MS && each.at > at - 1.5 * WINDOW_MS)
    const sum = (/** @type {string} */ name) => recent.reduce((total, each) => total + each.totals[name], 0)
    figures.set.in(rate(sum('pushed') / (WINDOW_MS / 1000)), '/s', 'over 10 s')
    figures.set.out(rate(sum('acked') / (WINDOW_MS / 1000)), '/s', 'over 10 s')
  } else if (steps.times.length > 1) {
    // The last complete step and the current one, as for the rates of a queue.
    const [last, current] = steps.points.slice(-2)
    const step = steps.times[1] - steps.times[0]
    const seconds = step + Math.max(0, steps.at / 1000 - (steps.times.at(-1) ?? 0))
    const note = step === 60 ? 'last minute' : `last ${duration(step * 1000)}`
    figures.set.in(rate((last.pushed + current.pushed) / seconds), '/s', note)
    figures.set.out(rate((last.completed + current.completed) / seconds), '/s', note)
  }
}

/**
 * @param {Steps} steps
 * @param {string} name
 */
const stepRates = ({ times, points, at }, name) => rates(times, points.map((point) => point[name]), at)

/**
 * Return the last five minutes by second, and by minute for the time before this page was open.
 * @param {App} app
 * @param {Chart} chart
 * @param {Steps} minutes
 */
function seconds(app, chart, minutes) {
  const end = Math.floor((app.live.history.at(-1)?.at ?? minutes.at) / 1000)
  const begin = Math.floor(app.live.since / 1000)
  const rolled = (/** @type {string} */ name) => {
    const found = stepRates(minutes, name)
    return new Map(minutes.times.map((time, n) => [Math.floor(time / 60), found[n]]))
  }
  const bySecond = new Map(app.live.history.map((each) => [Math.floor(each.at / 1000), each.totals]))
  const times = Array.from({ length: LIVE_SECONDS }, (_, n) => end - LIVE_SECONDS + 1 + n)
  const line = (/** @type {(totals: Record<string, number>) => number} */ of, /** @type {string} */ name) => {
    const before = rolled(name)
    return times.map((time) => {
      const totals = bySecond.get(time)
      if (totals !== undefined) return of(totals)
      return time < begin ? (before.get(Math.floor(time / 60)) ?? null) : 0
    })
  }
  chart.set(times, [line((t) => t.pushed, 'pushed'), line((t) => t.acked, 'completed'), line((t) => t.nacked + t.lapsed, 'failed')])
}

/**
 * @param {Element} list
 * @param {App} app
 */
function latest(list, app) {
  const shown = app.live.latest.slice(0, 9)
  if (shown.length === 0) {
    fill(list, h('li', { class: 'muted', text: app.live.off ? 'This server has no journal, so there are no live events.' : 'Waiting for events…' }))
    return
  }
  fill(list, shown.map((event) => {
    const name = event.count && event.count > 1 ? `${event.queue} × ${event.count}` : event.queue
    const address = event.kind.startsWith('worker') ? to('workers') : event.id === undefined ? to('queue', [event.queue]) : to('message', [event.queue, event.id], { uuid: event.uuid })
    return h('li', {}, h('time', { text: clock(event.at) }), tag(event.kind.split(' ')[0], event.kind), h('a', { class: 'clip', href: address, text: name }),
      event.error && h('span', { class: 'clip grow muted xsmall', text: event.error }))
  }))
}

/** @param {any} each */
function row(each) {
  const address = to('queue', [each.queue])
  const cells = ['pushed', 'completed', 'failed', 'pending', 'deadLetter'].map((name) => {
    const [width, tone] = FAILURES.includes(name) ? ['wide', 'bad'] : ['', '']
    return h('td', { class: `num ${width} ${each[name] > 0 ? tone : 'zero'}`, 'data-cell': name, text: short(each[name]) })
  })
  return h('tr', { class: 'link', onclick: () => go(address) }, h('td', { class: 'main clip' }, h('a', { href: address, text: each.queue })), cells)
}
