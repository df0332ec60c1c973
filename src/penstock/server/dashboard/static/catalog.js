/** All queues, loaded once and updated by digests, for the list, the search and the dead letters. */

/** @import { Penstock } from './client/penstock.js' */
/** @import { Digest, Live } from './live.js' */

/**
 * @typedef {object} Entry
 * @property {string} name
 * @property {boolean} paused
 * @property {number} priority
 * @property {number} ready
 * @property {number} scheduled
 * @property {number} leased
 * @property {number} dead
 */

const PAGE = 1000
/** The server's own queues, which are not shown. */
const CANARY = 'penstock.canary'

export class Catalog {
  /**
   * @param {Penstock} client
   * @param {Live} live
   */
  constructor(client, live) {
    this._client = client
    /** @type {Map<string, Entry>} */
    this.queues = new Map()
    this.complete = false
    /** Incremented when a queue is added or removed. */
    this.version = 0
    /** @type {unknown} */
    this.error = undefined
    /** @type {Set<() => void>} */
    this._listeners = new Set()
    /** @type {Promise<void> | undefined} */
    this._loading = undefined
    live.listen((digest) => this._update(digest), new AbortController().signal)
    let before = false
    let lost = false
    live.watch(() => {
      lost = lost || (before && !live.connected)
      before = live.connected
      // No digest covers the time while the connection was down.
      if (live.connected && lost && this._loading !== undefined) {
        lost = false
        void this.reload()
      }
    })
  }

  /** Start loading, unless it has started already. */
  load() {
    this._loading ??= this._load().catch((error) => {
      this.error = error
      this._loading = undefined
      this._tell()
    })
    return this._loading
  }

  reload() {
    this._loading = undefined
    return this.load()
  }

  async _load() {
    /** @type {string | undefined} */
    let after
    const found = new Set()
    do {
      const page = await this._client.queues({ limit: PAGE, after })
      for (const info of page.queues) {
        found.add(info.name)
        this.put(info)
      }
      after = page.next ?? undefined
      this._tell()
    } while (after)
    for (const name of this.queues.keys()) if (!found.has(name)) this._drop(name)
    this.complete = true
    this.error = undefined
    this._tell()
  }

  /** @param {any} info as the server shows a queue */
  put(info) {
    const { name, paused, ready, scheduled, leased, dead } = info
    if (name === CANARY) return
    const priority = info.options?.priority
    const there = this.queues.get(name)
    if (there !== undefined) {
      Object.assign(there, { paused, ready, scheduled, leased, dead, priority: priority ?? there.priority })
      return
    }
    this.queues.set(name, { name, paused, ready, scheduled, leased, dead, priority: priority ?? 0 })
    this.version += 1
  }

  /** @param {string} name */
  _drop(name) {
    if (this.queues.delete(name)) this.version += 1
  }

  /** @param {Digest} digest */
  _update(digest) {
    if (this._loading === undefined) return
    for (const changed of digest.queues) this.put(changed)
    for (const name of digest.gone) this._drop(name)
    this._tell()
  }

  /** Update after a change made in this dashboard. */
  touched() {
    this._tell()
  }

  _tell() {
    for (const listener of this._listeners) listener()
  }

  /**
   * @param {() => void} listener
   * @param {AbortSignal} signal
   */
  listen(listener, signal) {
    this._listeners.add(listener)
    signal.addEventListener('abort', () => this._listeners.delete(listener))
  }

  get dead() {
    let sum = 0
    for (const entry of this.queues.values()) sum += entry.dead
    return sum
  }
}
