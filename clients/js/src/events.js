/**
 * Live events over a WebSocket that reconnects and resumes where it stopped.
 *
 * A browser cannot set headers of a WebSocket, so the token is sent as a subprotocol, never in the URL.
 */
import { NotFound, OffsetTrimmed, PenstockError, ServerFault, Unreachable, isTransient } from './errors.js'
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
 * @property {number} [since] the `offset` of the last event seen; default: only new events
 * @property {boolean} [digest] receive one summary per second instead of every event; ignores `since`
 * @property {number} [bufferMax] events buffered for a slow reader before the socket closes until it catches up; default 10,000
 * @property {(state: 'open' | 'closed', error?: unknown) => void} [onState] called on connect and disconnect
 * @property {AbortSignal} [signal] ends the events
 */

/**
 * Yield events in batches as they arrived, for rendering many at once. An event `missed` marks a gap that the server can
 * no longer fill.
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
        if (isOffsetGone(error) && place.moved) {
          yield [place.restart(error)]
          continue
        }
        if (!isTransient(error)) throw error
        onState('closed', error)
      }
      // Waits after a normal close too, because a restarting server takes a moment to come back.
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

/** Tracks the last offset and the events seen at it. */
class Place {
  /** @param {number} [since] */
  constructor(since) {
    this.since = since
    this.moved = false
    /** Events at the last offset, which the server sends again after a reconnect. */
    this._seen = new Set()
  }

  /**
   * Return true if the event is new.
   * @param {shapes.LiveEvent} event
   */
  pass(event) {
    // `dropped` names the server's position, which may be before events that have already arrived.
    if (event.offset === undefined || event.event === 'dropped') return true
    const name = `${event.event} ${subject(event.data)} ${event.data.timestamp}`
    if (this._seen.has(name)) return false
    if (event.offset !== this.since) this._seen.clear()
    this._seen.add(name)
    this.since = event.offset
    this.moved = true
    return true
  }

  /**
   * Continue with new events only.
   * @param {Error} error
   * @returns {shapes.LiveEvent}
   */
  restart(error) {
    this.since = undefined
    this.moved = false
    this._seen.clear()
    return { event: 'missed', data: { reason: error.message } }
  }
}

/**
 * Return the subject of an event: a message, a worker or a queue.
 * @param {Record<string, any>} data
 */
function subject({ id, workerId, kind, ns, task, queue }) {
  return id ?? [workerId, kind, ns, task, queue].join('/')
}

/**
 * Return true if the server no longer has our offset: it was trimmed, or the journal is a new one.
 * @param {unknown} error
 * @returns {error is PenstockError}
 */
function isOffsetGone(error) {
  return error instanceof OffsetTrimmed || (error instanceof PenstockError && error.code === 'offset_beyond_end')
}

/**
 * Yield events until the socket closes. It closes for a slow reader, which still gets what is buffered.
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
    // Only new events count, so that a slow reader makes progress with every socket.
    if (!place.pass(event)) return
    if (batch.push(event) === bufferMax) close()
    wake()
  }
  const ended = () => {
    closed = true
    wake()
  }
  socket.onclose = ended
  // A close event follows, except on some versions of Node if the server was unreachable.
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
  // Node has a built-in WebSocket since version 22.
  const kind = globalThis.WebSocket ?? (await import('./websocket_node.js')).NodeWebSocket
  return new kind(url, protocols)
}

/**
 * Return the reason why the server refused the WebSocket. A browser does not report it, so ask with a plain request.
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
      return new NotFound('this server has no live events', { code: error.code, hint: 'start it with a journal' })
    }
    return error instanceof PenstockError ? error : new ServerFault(String(error), { cause: error })
  }
  return new Unreachable(`${http.baseUrl} did not open a WebSocket`, { code: 'unreachable' })
}

/** @param {string} text */
function base64url(text) {
  return toBase64(new TextEncoder().encode(text)).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '')
}
