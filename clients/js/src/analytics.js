/** The tree API's analytics, `/api/v1/analytics`: now, or over a window with `from`, `to` and `interval`. */

/** @import { Http } from './http.js' */
/** @import * as shapes from '../shapes.d.ts' */

export class Analytics {
  /** @param {Http} http */
  constructor(http) {
    this._http = http
  }

  /**
   * Return all queues, with their options and counts.
   * @param {shapes.PageOfHistory} [query]
   * @returns {Promise<{queues: shapes.TreeQueue[], next?: string}>}
   */
  queues(query) {
    return this._get('queues', query)
  }

  /**
   * Return a namespace and its queues.
   * @param {string} ns
   * @param {shapes.PageOfHistory} [query]
   * @returns {Promise<{namespace: string, totals: shapes.TreeStats, queues: shapes.TreeQueue[], next?: string}>}
   */
  namespace(ns, query) {
    return this._get(`ns/${encodeURIComponent(ns)}`, query)
  }

  /**
   * Return a task and its queues.
   * @param {string} ns
   * @param {string} task
   * @param {shapes.PageOfHistory} [query]
   * @returns {Promise<{namespace: string, task: string, totals: shapes.TreeStats, queues: shapes.TreeQueue[], next?: string}>}
   */
  task(ns, task, query) {
    return this._get(`ns/${encodeURIComponent(ns)}/task/${encodeURIComponent(task)}`, query)
  }

  /**
   * Return the number of pending and processing messages by queue.
   * @param {shapes.PageOfHistory} [query]
   * @returns {Promise<{depths: shapes.QueueDepth[], next?: string}>}
   */
  queueDepths(query) {
    return this._get('queue-depths', query)
  }

  /**
   * Return the number of completed messages over time, in all queues, newest first.
   * @param {shapes.History} [query]
   * @returns {Promise<{throughput: shapes.ThroughputPoint[]}>}
   */
  throughput(query) {
    return this._get('throughput', query)
  }

  /**
   * Return wait and processing times by queue, in milliseconds.
   * @param {shapes.PageOfHistory} [query]
   * @returns {Promise<{latency: shapes.QueueLatency[], next?: string}>}
   */
  latency(query) {
    return this._get('latency', query)
  }

  /**
   * @param {string} what
   * @param {shapes.PageOfHistory} [query]
   */
  _get(what, { from, to, ...rest } = {}) {
    const query = { from: instant(from), to: instant(to), ...rest }
    return this._http.json('GET', `/api/v1/analytics/${what}`, { query })
  }
}

/** @param {Date | string | undefined} time */
function instant(time) {
  return time instanceof Date ? time.toISOString() : time
}
