/** The way to a server and all its faces. */
import { Analytics } from './analytics.js'
import { eventBatches, eventsOf } from './events.js'
import { Http } from './http.js'
import { Journal } from './journal.js'
import { Queue } from './queue.js'
import { Stream } from './stream.js'
import { createTree } from './tree.js'

/** @import { ConnectOptions } from './http.js' */
/** @import { EventOptions } from './events.js' */
/** @import * as shapes from '../shapes.d.ts' */

const KEPT_MAX = 1_000

/**
 * A client of the server at this address, which may have a path, and in a browser may be relative to the page.
 * Nothing is sent yet.
 * @param {string} baseUrl
 * @param {ConnectOptions} [options]
 * @returns {Penstock}
 */
export function connect(baseUrl, options) {
  return new Penstock(baseUrl, options)
}

export class Penstock {
  /**
   * @param {string} baseUrl
   * @param {ConnectOptions} [options]
   */
  constructor(baseUrl, options) {
    this._http = new Http(baseUrl, options)
    /** The tree face: namespaces, tasks, queues. */
    this.tree = createTree(this._http)
    this.analytics = new Analytics(this._http)
    this.journal = new Journal(this._http)
    /** @type {Map<string, Queue>} */
    this._queues = new Map()
  }

  /** Where the server is. */
  get baseUrl() {
    return this._http.baseUrl
  }

  // Queues

  /**
   * A queue by its name, whether it is there or not; one of the tree is named `ns/task/queue`.
   * @param {string} name
   * @returns {Queue}
   */
  queue(name) {
    // The same object, so that calls from anywhere travel together.
    const kept = this._queues.get(name)
    if (kept) return kept
    const queue = new Queue(this._http, name)
    this._queues.set(name, queue)
    if (this._queues.size > KEPT_MAX) this._queues.delete(/** @type {string} */ (this._queues.keys().next().value))
    return queue
  }

  /**
   * One page of all queues; `next` is where the next goes on after.
   * @param {{prefix?: string, limit?: number, after?: string, signal?: AbortSignal}} [options]
   * @returns {Promise<{queues: shapes.QueueInfo[], next: string | null}>}
   */
  queues({ prefix, limit, after, signal } = {}) {
    return this._http.json('GET', '/queues', { query: { prefix, limit, after }, signal })
  }

  /**
   * Every queue.
   * @param {{prefix?: string, signal?: AbortSignal}} [options]
   * @returns {AsyncGenerator<shapes.QueueInfo, void, void>}
   */
  async *allQueues({ prefix, signal } = {}) {
    /** @type {string | null | undefined} */
    let after
    do {
      const page = await this.queues({ prefix, limit: 1_000, after: after ?? undefined, signal })
      yield* page.queues
      after = page.next
    } while (after)
  }

  // Streams

  /**
   * A stream by its name, whether it is there or not.
   * @param {string} name
   * @returns {Stream}
   */
  stream(name) {
    return new Stream(this._http, name)
  }

  /**
   * One page of all streams.
   * @param {{prefix?: string, limit?: number, after?: string}} [options]
   * @returns {Promise<{streams: shapes.StreamInfo[], next: string | null}>}
   */
  streams({ prefix, limit, after } = {}) {
    return this._http.json('GET', '/streams', { query: { prefix, limit, after } })
  }

  // Live

  /**
   * All that happens, as it happens, over a WebSocket that is opened again when it breaks.
   * @param {EventOptions} [options]
   * @returns {AsyncGenerator<shapes.LiveEvent, void, void>}
   */
  events(options) {
    return eventsOf(this.eventBatches(options))
  }

  /**
   * The same in the batches in which they came, for whoever has many to show.
   * @param {EventOptions} [options]
   * @returns {AsyncGenerator<shapes.LiveEvent[], void, void>}
   */
  eventBatches(options) {
    return eventBatches(this._http, options)
  }

  // Operations

  /**
   * The process answers.
   * @returns {Promise<{status: 'ok'}>}
   */
  health() {
    return this._http.json('GET', '/healthz')
  }

  /**
   * Whether store, disk and write-ahead log are fit for work.
   * @returns {Promise<{ready: boolean, checks: Record<string, string>}>}
   */
  ready() {
    return this._http.json('GET', '/readyz', { accept: [503] })
  }

  /**
   * Prometheus metrics, as text.
   * @returns {Promise<string>}
   */
  metrics() {
    return this._http.text('/metrics')
  }

  /**
   * Any other call of the server's, with the same retries, errors and exact numbers.
   * @param {string} method
   * @param {string} path
   * @param {import('./http.js').Ask} [ask]
   * @returns {Promise<any>}
   */
  request(method, path, ask) {
    return this._http.json(method, path, ask)
  }

  /** Give up on all that is under way. */
  close() {
    this._http.close()
  }
}
