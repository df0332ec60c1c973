/** Live updates for all screens, once a second; pausing freezes all of them. */

/** @import { Penstock } from './client/penstock.js' */

/**
 * @typedef {object} Changed a queue in which something happened, as it stands now
 * @property {string} name
 * @property {boolean} paused
 * @property {number} ready
 * @property {number} scheduled
 * @property {number} leased
 * @property {number} dead
 * @property {number} archived
 */

/**
 * @typedef {object} Latest
 * @property {number} at
 * @property {string} kind
 * @property {string} queue
 * @property {number} [count]
 * @property {number} [id]
 * @property {string} [uuid]
 * @property {string} [error]
 */

/**
 * @typedef {object} Digest
 * @property {number} at
 * @property {Record<string, number>} totals
 * @property {Changed[]} queues
 * @property {string[]} gone
 * @property {Latest[]} latest
 */

/** @typedef {'live' | 'paused' | 'away' | 'off'} LiveState */

const HISTORY = 300
const LATEST = 60

export class Live {
  /** @param {Penstock} client */
  constructor(client) {
    this._client = client
    /** @type {Set<(digest: Digest) => void>} */
    this._listeners = new Set()
    /** @type {Set<(state: LiveState) => void>} */
    this._watchers = new Set()
    /** @type {Digest[]} */
    this._held = []
    this.paused = false
    this.connected = false
    this.off = false
    /** Time since when the history is complete, by the server's clock. */
    this.since = Infinity
    /** Seconds in which something happened. @type {{at: number, totals: Record<string, number>}[]} */
    this.history = []
    /** Newest first. @type {Latest[]} */
    this.latest = []
    this._stop = new AbortController()
  }

  /** @returns {LiveState} */
  get state() {
    if (this.off) return 'off'
    if (this.paused) return 'paused'
    return this.connected ? 'live' : 'away'
  }

  async run() {
    const onState = (/** @type {string} */ state) => {
      this.connected = state === 'open'
      this._tell()
    }
    try {
      for await (const batch of this._client.eventBatches({ digest: true, onState, signal: this._stop.signal })) {
        for (const event of batch) this._take(/** @type {any} */ (event))
      }
    } catch {
      this.off = true
      this._tell()
    }
  }

  stop() {
    this._stop.abort()
  }

  /** @param {{event: string, data: any}} event */
  _take({ event, data }) {
    if (event === 'history') {
      this.since = data.since
      this.history = data.points.map((/** @type {number[]} */ point) => ({
        at: point[0],
        totals: Object.fromEntries(data.fields.map((/** @type {string} */ name, /** @type {number} */ n) => [name, point[n + 1]])),
      }))
    } else if (event === 'digest') {
      if (this.paused) this._hold(data)
      else this._show(data)
    }
  }

  /**
   * While paused, keep only the last minutes; the counters include what was missed.
   * @param {Digest} digest
   */
  _hold(digest) {
    this._held.push(digest)
    if (this._held.length > HISTORY) this._held.shift()
  }

  /** @param {Digest} digest */
  _show(digest) {
    this.history.push({ at: digest.at, totals: digest.totals })
    if (this.history.length > HISTORY) this.history.shift()
    this.latest = [...digest.latest, ...this.latest].slice(0, LATEST)
    for (const listener of this._listeners) listener(digest)
  }

  toggle() {
    this.paused = !this.paused
    if (!this.paused) for (const digest of this._held.splice(0)) this._show(digest)
    this._tell()
  }

  _tell() {
    for (const watcher of this._watchers) watcher(this.state)
  }

  /**
   * @param {(digest: Digest) => void} listener
   * @param {AbortSignal} signal
   */
  listen(listener, signal) {
    this._listeners.add(listener)
    signal.addEventListener('abort', () => this._listeners.delete(listener))
  }

  /** @param {(state: LiveState) => void} watcher */
  watch(watcher) {
    this._watchers.add(watcher)
    watcher(this.state)
  }
}
