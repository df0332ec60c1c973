/** One message: its payload, its state, and its history from the journal. */
import { readPayload, toBase64 } from '../client/bytes.js'
import { stringify } from '../client/json.js'
import { attempt, confirmByName } from '../dialog.js'
import { fill, h } from '../dom.js'
import { ago, count, duration, exact, plural, timeOf, when } from '../format.js'
import { jsonView } from '../json_view.js'
import { card, copyText, empty, facts, head, problem, tag } from '../parts.js'
import { go, to } from '../router.js'

/** @import { App } from '../app.js' */
/** @import { Place } from '../router.js' */

/** @type {Record<string, string>} */
const WORDS = {
  pushed: 'Pushed', leased: 'Leased', extended: 'Lease extended', acked: 'Completed', nacked: 'Failed', lapsed: 'Lease expired', dead: 'Dead',
  redriven: 'Redriven', expired: 'Expired', removed: 'Deleted', released: 'Released', forgotten: 'Removed from the archive',
}
const SEARCHES_MAX = 20

/**
 * @param {App} app
 * @param {Place} place
 * @param {AbortSignal} signal
 */
export function message(app, place, signal) {
  const [name = '', id = ''] = place.parts
  const uuid = place.query.get('uuid') ?? ''
  const crumbs = [h('a', { href: to('queues'), text: 'Queues' }), ' / ', h('a', { href: to('queue', [name]), text: name })]
  const state = h('span')
  const details = h('div', { class: 'stack' })
  const timeline = h('div', { class: 'body' }, h('p', { class: 'muted', text: 'Reading the journal…' }))
  const buttons = h('div', { class: 'row' })
  let shown = ''
  /** @type {any} */
  let pushed
  const stands = (/** @type {any} */ found) => {
    const now = found === null ? `gone ${pushed !== undefined}` : `${found.state} ${found.attempts} ${found.errors?.length} ${found.lease_expires_at}`
    if (now === shown) return
    shown = now
    fill(state, tag(found === null ? 'gone' : found.state))
    if (found !== null) show(app, found, details, buttons)
    else fill(details, gone(name, id, pushed)), fill(buttons)
  }
  const trouble = (/** @type {unknown} */ error) => {
    if (!signal.aborted) fill(details, problem(error))
  }
  if (app.server.journal) {
    const history = new MessageHistory(app, name, id, uuid, timeline, signal)
    const look = () => history.search().then((found) => {
      pushed ??= history.events.find((event) => event.kind === 'pushed')
      if (found !== undefined) stands(found)
    }).catch(trouble)
    void look()
    app.live.listen((digest) => {
      if (digest.queues.some((each) => each.name === name)) void look()
    }, signal)
  } else {
    fill(timeline, empty('No journal', 'This server runs without a journal, so there is no history.'))
    app.client.queue(name).get(Number(id)).then(stands).catch(trouble)
  }
  return h('div', {}, head(`Message ${id}`, { crumbs, after: state }, buttons),
    h('div', { class: 'split' }, details, card('History', timeline)))
}

/**
 * @param {App} app
 * @param {any} found
 * @param {Element} details
 * @param {Element} buttons
 */
function show(app, found, details, buttons) {
  const now = Date.now()
  fill(details, card('Body', h('div', { class: 'body' }, jsonView(found.payload))), found.errors?.length > 0 && errors(found.errors), about(found, now))
  const button = (/** @type {string} */ text, /** @type {() => unknown} */ onclick, kind = '') => h('button', { class: `btn ${kind}`, type: 'button', text, onclick })
  const again = async () => {
    const { moved } = await app.client.queue(found.queue).redrive({ where: { ids: [found.id] } })
    dispatchEvent(new HashChangeEvent('hashchange'))
    return moved ? 'Moved back into its queue' : 'The message was no longer dead'
  }
  const remove = async () => {
    const done = await confirmByName('Remove message', 'The message is deleted permanently, whatever its state.', String(found.id), 'Remove', () => app.client.queue(found.queue).remove(found.id))
    if (done) go(to('queue', [found.queue]))
  }
  fill(buttons, button('Copy as curl', () => void attempt(async () => (await copyText(curl(app, found)), 'Copied: pushes this message again'))),
    app.mayChange && found.state === 'dead' && button('Redrive', () => void attempt(again), 'primary'), app.mayChange && button('Remove…', () => void attempt(remove), 'danger'))
}

/**
 * Return a command that pushes the same message again.
 * @param {App} app
 * @param {any} found
 */
export function curl(app, found) {
  const binary = found.payload instanceof Uint8Array
  const body = { payload: binary ? toBase64(found.payload) : found.payload, encoding: binary ? 'base64' : undefined, priority: found.priority || undefined, headers: found.headers }
  const quoted = (/** @type {string} */ text) => `'${text.replaceAll("'", `'\\''`)}'`
  const token = app.server.guarded ? ` -H "Authorization: Bearer $PENSTOCK_TOKEN"` : ''
  const url = `${app.client.baseUrl}/queues/${encodeURIComponent(found.queue)}/messages`
  return `curl -X POST ${quoted(url)} -H 'content-type: application/json'${token} -d ${quoted(stringify(body))}`
}

/** @param {any[]} failures newest first */
function errors(failures) {
  return card('Errors', h('ol', { class: 'stream-list' }, failures.map((failure) => h('li', {}, h('time', { text: when(failure.at), title: exact(failure.at) }),
    h('span', { class: 'muted xsmall num once', text: `attempt ${failure.attempt}` }), h('span', { class: 'wrap grow mono bad', text: failure.error }),
    failure.traceback && h('details', { class: 'grow traceback' }, h('summary', { class: 'muted xsmall', text: 'Traceback' }), h('pre', { class: 'wrap mono xsmall', text: failure.traceback }))))))
}

/**
 * @param {any} found
 * @param {number} now
 */
function about(found, now) {
  const time = (/** @type {number | undefined} */ at) => (at === undefined ? '–' : h('time', { title: exact(at), text: `${when(at)} · ${at > now ? `in ${duration(at - now)}` : ago(at, now)}` }))
  /** @type {[string, any][]} */
  const entries = [['Id', count(found.id)], ['UUID', h('code', { text: found.uuid })], ['Pushed', time(found.created_at)], ['Attempts', count(found.attempts)], ['Priority', count(found.priority)]]
  if (found.state === 'scheduled') entries.push(['Ready', time(found.available_at)])
  if (found.expires_at) entries.push(['Expires', time(found.expires_at)])
  if (found.first_leased_at) entries.push(['Waited', duration(found.first_leased_at - found.created_at)])
  if (found.state === 'leased') entries.push(['Leased', time(found.leased_at)], ['Lease ends', time(found.lease_expires_at)], ['Held by', found.worker ?? 'a consumer without a name'])
  if (found.finished_at) entries.push(['Ended', time(found.finished_at)])
  if (found.reason) entries.push(['Reason', found.reason])
  if (found.idempotency_key) entries.push(['Key', h('code', { text: found.idempotency_key })])
  const headers = Object.entries(found.headers ?? {})
  return card('About', h('div', { class: 'body stack' }, facts(entries), headers.length > 0 && [h('h3', { text: 'Headers' }), facts(headers.map(([name, value]) => [name, h('code', { text: String(value) })]))]))
}

/**
 * @param {string} name
 * @param {string} id
 * @param {any} pushed
 */
function gone(name, id, pushed) {
  const text = pushed === undefined ? 'The journal has no record of it, or no longer.' : 'It was completed or deleted; this is its history from the journal.'
  return [h('div', { class: 'card' }, empty(`Message ${id} is no longer in ${name}`, text)),
    pushed !== undefined && pushed.payload !== undefined && card('Body, as it was pushed', h('div', { class: 'body' }, jsonView(pushed.payload)))]
}

/** A message's history from the journal; each search continues where the last one ended. */
class MessageHistory {
  /**
   * @param {App} app
   * @param {string} name
   * @param {string} id
   * @param {string} uuid
   * @param {Element} place
   * @param {AbortSignal} signal
   */
  constructor(app, name, id, uuid, place, signal) {
    this._ask = (/** @type {any} */ query) => app.client.request('GET', `/queues/${encodeURIComponent(name)}/messages/${id}/events`, { query, signal })
    this._at = uuid ? timeOf(uuid) : undefined
    this._signal = signal
    /** @type {any[]} */
    this.events = []
    /** @type {number | undefined} */
    this._from = undefined
    this._busy = false
    this._list = h('ol', { class: 'timeline', 'aria-label': 'History' })
    this._said = h('p', { class: 'muted xsmall', role: 'status', text: 'Reading the journal…' })
    this._on = h('button', { class: 'btn small', type: 'button', text: 'Search further', hidden: true, onclick: () => void this.search() })
    fill(place, this._list, this._said, this._on)
  }

  /** @returns {Promise<any>} the message as it stands, null if it is gone; undefined if another search is under way */
  async search() {
    if (this._busy || this._signal.aborted) return undefined
    this._busy = true
    this._on.hidden = true
    try {
      for (let n = 0; ; n++) {
        const found = await this._ask({ from: this._from, at: this._at })
        this._from = found.end
        this.events.push(...found.events.map(readPayload))
        if (found.events.length > 0) fill(this._list, this.events.map((event, at) => line(event, this.events[at - 1])))
        this._said.textContent = found.next !== null ? `Searched until ${when(found.searched_until)}…` : this.events.length === 0 ? 'The journal has no record of it.' : ''
        this._on.hidden = found.next === null || n + 1 < SEARCHES_MAX
        if (found.next === null || n + 1 >= SEARCHES_MAX) return found.message && readPayload(found.message)
      }
    } finally {
      this._busy = false
    }
  }
}

/**
 * @param {any} event
 * @param {any} before
 */
function line(event, before) {
  const notes = []
  if (event.kind === 'leased') notes.push(`attempt ${event.attempts}`, event.details?.worker && `by ${event.details.worker}`, event.until && `until ${when(event.until)}`)
  if (event.kind === 'nacked' && event.until) notes.push(`again at ${when(event.until)}`)
  if (event.kind === 'acked' && event.leased_at) notes.push(`after ${duration(event.at - event.leased_at)}`, event.pushed_at && `${duration(event.at - event.pushed_at)} from push`)
  if (event.kind === 'dead') notes.push(plural(event.attempts ?? 0, 'attempt'))
  if (event.kind === 'redriven' && event.details?.by) notes.push(`by ${event.details.by}`)
  const since = before === undefined ? '' : `+${duration(event.at - before.at)}`
  return h('li', {}, h('time', { title: exact(event.at), datetime: exact(event.at) }, when(event.at), h('br'), since), h('span', { class: `mark ${event.kind}` }),
    h('div', { class: 'stack tight' }, h('div', {}, h('strong', { text: WORDS[event.kind] ?? event.kind }), ' ', h('span', { class: 'muted', text: notes.filter(Boolean).join(' · ') })),
      event.details?.error && h('code', { class: 'wrap bad', text: event.details.error })))
}
