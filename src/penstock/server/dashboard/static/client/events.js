/**
 * Live events over a WebSocket, which is opened again when it breaks and goes on where it was.
 *
 * A browser can set no header of a WebSocket, so the token travels as one more subprotocol, never in the address.
 */
import { NotFound, OffsetTrimmed, PenstockError, ServerFault, Unreachable, isPassing } from './errors.js'
import { toBase64 } from './bytes.js'
import { backoffMs, pause } from './http.js'
import { parse } from './json.js'

/** @import { Http } from './http.js' */
/** @import * as shapes from '../shapes.d.ts' */

const PATH = '/ws/dashboard'
const BUFFER_MAX = 10_000
const NORMAL = 1000

/**
 * @typedef {object} EventOptions
 * @property {number} [since] the `offset` of the last event seen; without it, from now on
 * @property {boolean} [digest] instead of every event, once a second what happened in it; `since` means nothing then
 * @property {number} [bufferMax] events held for a slow reader, before the socket is closed until it has caught up; 10,000
 * @property {(state: 'open' | 'closed', error?: unknown) => void} [onState] told when it connects, and when it does not
 * @property {AbortSignal} [signal] ends it
 */

/**
 * Events in the batches in which they came, for whoever has many to show. After a gap that the server can no longer fill
 * an event `missed` says so.
 * @param {Http} http
 * @param {EventOptions} [options]
 * @returns {AsyncGenerator<shapes.LiveEvent[], void, void>}
 */
export async function* eventBatches(http, { since, digest, bufferMax = BUFFER_MAX, onState = () => {}, signal } = {}) {
  const { controller, release } = http.controller(signal)
  const place = new Place(since)
  try {
    for (let failures = 0; !controller.signal.aborted; ) {
      try {
        for await (const batch of oneSocket(http, { place, digest }, bufferMax, onState, controller.signal)) {
          failures = 0
          yield batch
        }
        onState('closed')
      } catch (error) {
        if (controller.signal.aborted) return
        if (isGone(error) && place.moved) {
          yield [place.restart(error)]
          continue
        }
        if (!isPassing(error)) throw error
        onState('closed', error)
      }
      // Also after a normal end: a server that stops takes a moment to come back.
      await pause(backoffMs(failures++), controller.signal).catch(() => {})
    }
  } finally {
    release()
  }
}

/**
 * @param {AsyncGenerator<shapes.LiveEvent[], void, void>} batches
 * @returns {AsyncGenerator<shapes.LiveEvent, void, void>}
 */
export async function* eventsOf(batches) {
  for await (const batch of batches) yield* batch
}

/** How far we have come, and what has been told beyond it. */
class Place {
  /** @param {number} [since] */
  constructor(since) {
    this.since = since
    this.moved = false
    /** Events that share the last offset: the server tells them again from there. */
    this._told = new Set()
  }

  /**
   * Whether this event is new.
   * @param {shapes.LiveEvent} event
   */
  pass(event) {
    // What `dropped` names is where the server was, which may be before what has come.
    if (event.offset === undefined || event.event === 'dropped') return true
    const name = `${event.event} ${subject(event.data)} ${event.data.timestamp}`
    if (this._told.has(name)) return false
    if (event.offset !== this.since) this._told.clear()
    this._told.add(name)
    this.since = event.offset
    this.moved = true
    return true
  }

  /**
   * Go on from now.
   * @param {Error} error
   * @returns {shapes.LiveEvent}
   */
  restart(error) {
    this.since = undefined
    this.moved = false
    this._told.clear()
    return { event: 'missed', data: { reason: error.message } }
  }
}

/**
 * Whom an event is about: a message, a worker or a queue.
 * @param {Record<string, any>} data
 */
function subject({ id, workerId, kind, ns, task, queue }) {
  return id ?? [workerId, kind, ns, task, queue].join('/')
}

/**
 * Whether the server does not have the place where we were: it keeps it no longer, or has begun a new journal.
 * @param {unknown} error
 * @returns {error is PenstockError}
 */
function isGone(error) {
  return error instanceof OffsetTrimmed || (error instanceof PenstockError && error.code === 'offset_beyond_end')
}

/**
 * Until the socket closes. Whoever reads too slowly makes it close, and gets what is there.
 * @param {Http} http
 * @param {{place: Place, digest?: boolean}} what
 * @param {number} bufferMax
 * @param {(state: 'open' | 'closed') => void} onState
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<shapes.LiveEvent[], void, void>}
 */
async function* oneSocket(http, { place, digest }, bufferMax, onState, signal) {
  const query = { since: place.since, digest }
  const socket = await openSocket(http, query)
  /** @type {shapes.LiveEvent[]} */
  let batch = []
  let opened = false
  let closed = false
  let wake = () => {}
  const close = () => socket.close(NORMAL)
  const end = () => {
    close()
    wake()
  }
  signal.addEventListener('abort', end)
  socket.onopen = () => {
    opened = true
    onState('open')
  }
  socket.onmessage = ({ data }) => {
    const event = parse(String(data))
    // Only what is new counts, so that every socket brings a slow reader further.
    if (!place.pass(event)) return
    if (batch.push(event) === bufferMax) close()
    wake()
  }
  const ended = () => {
    closed = true
    wake()
  }
  socket.onclose = ended
  // A close follows, but not on every Node where the server was not there.
  socket.onerror = ended
  try {
    if (signal.aborted) close()
    while (!signal.aborted) {
      if (batch.length > 0) {
        const taken = batch
        batch = []
        yield taken
      } else if (closed) {
        break
      } else {
        await /** @type {Promise<void>} */ (new Promise((resolve) => (wake = resolve)))
      }
    }
    if (!opened && !signal.aborted) throw await refusal(http, query, signal)
  } finally {
    signal.removeEventListener('abort', end)
    close()
  }
}

/**
 * @param {Http} http
 * @param {{since?: number, digest?: boolean}} query
 * @returns {Promise<WebSocket>}
 */
async function openSocket(http, query) {
  const url = http.url(PATH, query).replace(/^http/, 'ws')
  const protocols = ['penstock']
  if (http.token) protocols.push(`bearer.${base64url(http.token)}`)
  // Node has one of its own from version 22 on.
  const kind = globalThis.WebSocket ?? (await import('./websocket_node.js')).NodeWebSocket
  return new kind(url, protocols)
}

/**
 * Why the server would not: a browser does not tell, so it is asked the same as a plain request.
 * @param {Http} http
 * @param {{since?: number, digest?: boolean}} query
 * @param {AbortSignal} signal
 * @returns {Promise<PenstockError>}
 */
async function refusal(http, query, signal) {
  try {
    await http.text(PATH, { query, signal, accept: [426] })
  } catch (error) {
    if (error instanceof NotFound) {
      return new NotFound('this server tells no events', { code: error.code, hint: 'was it started without a journal?' })
    }
    return error instanceof PenstockError ? error : new ServerFault(String(error), { cause: error })
  }
  return new Unreachable(`${http.baseUrl} does not open a WebSocket`, { code: 'unreachable' })
}

/** @param {string} text */
function base64url(text) {
  return toBase64(new TextEncoder().encode(text)).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '')
}
