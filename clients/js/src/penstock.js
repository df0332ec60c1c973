/** The client of a server and all its APIs. */
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
 * Return a client of the server at this address, which may have a path and, in a browser, be relative to the page.
 * It sends nothing yet.
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
    /** The tree API: namespaces, tasks, queues. */
    this.tree = createTree(this._http)
    this.analytics = new Analytics(this._http)
    this.journal = new Journal(this._http)
    /** @type {Map<string, Queue>} */
    this._queues = new Map()
  }

  /** The address of the server. */
  get baseUrl() {
    return this._http.baseUrl
  }

  // Queues

  /**
   * Return a queue by name, without checking that it exists; a queue of the tree API is named `ns/task/queue`.
   * @param {string} name
   * @returns {Queue}
   */
  queue(name) {
    // Always the same object, so that concurrent calls from anywhere are batched.
    const kept = this._queues.get(name)
    if (kept) return kept
    const queue = new Queue(this._http, name)
    this._queues.set(name, queue)
    if (this._queues.size > KEPT_MAX) this._queues.delete(/** @type {string} */ (this._queues.keys().next().value))
    return queue
  }

  /**
   * Return one page of queues; pass `next` as `after` for the next page.
   * @param {{prefix?: string, limit?: number, after?: string, signal?: AbortSignal}} [options]
   * @returns {Promise<{queues: shapes.QueueInfo[], next: string | null}>}
   */
  queues({ prefix, limit, after, signal } = {}) {
    return this._http.json('GET', '/queues', { query: { prefix, limit, after }, signal })
  }

  /**
   * Yield every queue.
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
   * Return a stream by name, without checking that it exists.
   * @param {string} name
   * @returns {Stream}
   */
  stream(name) {
    return new Stream(this._http, name)
  }

  /**
   * Return one page of streams.
   * @param {{prefix?: string, limit?: number, after?: string}} [options]
   * @returns {Promise<{streams: shapes.StreamInfo[], next: string | null}>}
   */
  streams({ prefix, limit, after } = {}) {
    return this._http.json('GET', '/streams', { query: { prefix, limit, after } })
  }

  // Live

  /**
   * Yield live events over a WebSocket that reconnects.
   * @param {EventOptions} [options]
   * @returns {AsyncGenerator<shapes.LiveEvent, void, void>}
   */
  events(options) {
    return eventsOf(this.eventBatches(options))
  }

  /**
   * Yield live events in batches as they arrived, for rendering many at once.
   * @param {EventOptions} [options]
   * @returns {AsyncGenerator<shapes.LiveEvent[], void, void>}
   */
  eventBatches(options) {
    return eventBatches(this._http, options)
  }

  // Operations

  /**
   * Check that the process responds.
   * @returns {Promise<{status: 'ok'}>}
   */
  health() {
    return this._http.json('GET', '/healthz')
  }

  /**
   * Check whether the server is ready: store, disk and write-ahead log.
   * @returns {Promise<{ready: boolean, checks: Record<string, string>}>}
   */
  ready() {
    return this._http.json('GET', '/readyz', { accept: [503] })
  }

  /**
   * Return the metrics in Prometheus text format.
   * @returns {Promise<string>}
   */
  metrics() {
    return this._http.text('/metrics')
  }

  /**
   * Send any other request, with the same retries, errors and exact numbers.
   * @param {string} method
   * @param {string} path
   * @param {import('./http.js').Ask} [ask]
   * @returns {Promise<any>}
   */
  request(method, path, ask) {
    return this._http.json(method, path, ask)
  }

  /** Abort all requests in flight. */
  close() {
    this._http.close()
  }
}
