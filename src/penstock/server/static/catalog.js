/** All queues, loaded once and kept up to date by digests: for the list, the search and the dead letters. */

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
    /** @type {unknown} */
    this.error = undefined
    /** @type {Set<() => void>} */
    this._listeners = new Set()
    /** @type {Promise<void> | undefined} */
    this._loading = undefined
    live.listen((digest) => this._update(digest), new AbortController().signal)
    let connected = true
    live.watch(() => {
      // What happened while the line was cut, no digest tells.
      if (live.connected && !connected && this.complete) void this.reload()
      connected = live.connected
    })
  }

  /** Begin to load, if nobody has yet. */
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
    for (const name of this.queues.keys()) if (!found.has(name)) this.queues.delete(name)
    this.complete = true
    this.error = undefined
    this._tell()
  }

  /** @param {any} info as the server shows a queue */
  put(info) {
    const { name, paused, ready, scheduled, leased, dead } = info
    this.queues.set(name, { name, paused, ready, scheduled, leased, dead, priority: info.options?.priority ?? 0 })
  }

  /** @param {Digest} digest */
  _update(digest) {
    if (this._loading === undefined) return
    for (const changed of digest.queues) {
      const { name, paused, ready, scheduled, leased, dead } = changed
      const priority = this.queues.get(name)?.priority ?? 0
      this.queues.set(name, { name, paused, ready, scheduled, leased, dead, priority })
    }
    for (const name of digest.gone) this.queues.delete(name)
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
