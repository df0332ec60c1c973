/** One queue of the queue face, `/queues/{name}`. Data has the server's names: `delay_ms`, `max_attempts`. */
import { newKey, readPayload, sentPayload } from './bytes.js'
import { Consumer, checkConsume, errorStack, errorText } from './consumer.js'
import { InvalidInput, LeaseLost, NotFound, TryLater } from './errors.js'
import { FULL, remaining } from './http.js'
import { Joiner, sendOrSplit } from './joiner.js'
import { stringify } from './json.js'
import { ndjson } from './ndjson.js'

/** @import { Http } from './http.js' */
/** @import { ConsumeOptions, Handler } from './consumer.js' */
/** @import * as shapes from '../shapes.d.ts' */

const JOINED_BYTES_MAX = 4 << 20
/** Of a message beside its payload; so that not too many travel together, either. */
const OVERHEAD_BYTES = 4 << 10
const WAIT_MS = 20_000
const REDRIVE_MS_MAX = 24 * 3_600_000
const EXTENSIONS_PER_LEASE = 3

/** @typedef {ConsumeOptions & {visibility_ms?: number, worker?: string}} QueueConsumeOptions */

export class Queue {
  /**
   * @param {Http} http
   * @param {string} name
   */
  constructor(http, name) {
    if (typeof name !== 'string' || name === '') throw new InvalidInput('a queue has a name', { field: 'name' })
    this.name = name
    this._http = http
    this._path = `/queues/${encodeURIComponent(name)}`
    /** @type {Joiner<shapes.NewMessage & {bytes: number}, shapes.Receipt>} */
    this._pushes = new Joiner((entries) => this._pushJoined(entries), {
      weigh: ({ bytes }) => bytes + OVERHEAD_BYTES,
      weightMax: JOINED_BYTES_MAX,
    })
    /** @type {Record<string, Joiner<shapes.SettleItem, shapes.Settled>>} */
    this._settles = {}
    for (const verb of ['ack', 'nack', 'release']) {
      this._settles[verb] = new Joiner((items) => this._settleJoined(verb, items), {
        weigh: ({ error }) => String(error ?? '').length + OVERHEAD_BYTES,
        weightMax: JOINED_BYTES_MAX,
      })
    }
  }

  // The queue itself

  /**
   * Make it; nothing happens if it is there just so.
   * @param {shapes.QueueOptions} [options]
   * @returns {Promise<shapes.QueueInfo>}
   */
  create(options = {}) {
    return this._http.json('POST', '/queues', { body: { name: this.name, ...options } })
  }

  /** @returns {Promise<shapes.QueueInfo>} */
  info() {
    return this._http.json('GET', this._path)
  }

  /** @returns {Promise<shapes.QueueStats>} */
  stats() {
    return this._http.json('GET', `${this._path}/stats`)
  }

  /**
   * Change the options that are given.
   * @param {shapes.QueueOptions} changes
   * @returns {Promise<shapes.QueueInfo>}
   */
  configure(changes) {
    return this._http.json('PATCH', this._path, { body: changes })
  }

  /**
   * Delete it; with `force`, also what it holds.
   * @param {{force?: boolean}} [options]
   * @returns {Promise<{dropped: string, messages: number}>}
   */
  drop({ force } = {}) {
    return this._http.json('DELETE', this._path, { query: { force }, repeatable: false })
  }

  /**
   * Stop leases, not pushes.
   * @returns {Promise<shapes.QueueInfo>}
   */
  pause() {
    return this._http.json('POST', `${this._path}/pause`)
  }

  /** @returns {Promise<shapes.QueueInfo>} */
  resume() {
    return this._http.json('POST', `${this._path}/resume`)
  }

  /**
   * Remove all that is still to be leased; `dry_run` counts.
   * @param {{dry_run?: boolean}} [options]
   * @returns {Promise<{purged: number, dry_run: boolean}>}
   */
  purge({ dry_run } = {}) {
    return this._http.json('POST', `${this._path}/purge`, { query: { dry_run } })
  }

  /** Give free space back. @returns {Promise<{status: 'ok'}>} */
  compact() {
    return this._http.json('POST', `${this._path}/compact`)
  }

  // Pushing

  /**
   * Push one message. A Uint8Array is pushed as bytes, anything else as JSON, in which a BigInt is a whole number;
   * what JSON cannot hold (undefined, NaN, a function, a promise) is refused.
   * Pushes that come at the same time travel together, and a repeated request is never a second message.
   * @param {unknown} payload
   * @param {shapes.PushOptions} [options]
   * @returns {Promise<shapes.Receipt>}
   */
  async push(payload, options = {}) {
    const message = { ...options, ...sentPayload(payload) }
    return this._pushes.join({ ...message, bytes: stringify(message.payload).length })
  }

  /**
   * Push many, all or none.
   * @param {shapes.NewMessage[]} messages
   * @returns {Promise<shapes.Receipt[]>}
   */
  async pushMany(messages) {
    if (messages.length === 0) return []
    return this._pushAll(messages.map((message) => ({ ...message, ...sentPayload(message.payload) })), false)
  }

  /** @param {(shapes.NewMessage & {bytes: number})[]} entries */
  _pushJoined(entries) {
    const messages = entries.map(({ bytes: _, ...message }) => message)
    return sendOrSplit(
      messages,
      (some) => this._pushAll(some, some.length > 1),
      (error) => error instanceof InvalidInput || (error instanceof TryLater && FULL.includes(error.code)),
    )
  }

  /**
   * @param {shapes.NewMessage[]} messages
   * @param {boolean} share
   * @returns {Promise<shapes.Receipt[]>}
   */
  async _pushAll(messages, share) {
    const body = { messages, request_key: newKey() }
    const pushed = await this._http.json('POST', `${this._path}/messages`, { body, share })
    const again = new Set(pushed.duplicates)
    return messages.map(({ idempotency_key }, position) => ({
      id: pushed.message_ids[position],
      // Without a key of the user's it is our own repeated request, which the user need not know of.
      duplicate: idempotency_key !== undefined && again.has(position),
    }))
  }

  // Consuming

  /**
   * Lease up to `batch` messages, waiting up to `wait_ms` for the first.
   * @param {shapes.LeaseOptions} [options]
   * @returns {Promise<shapes.LeasedMessage[]>}
   */
  async lease({ batch, wait_ms = WAIT_MS, visibility_ms, worker, signal } = {}) {
    const left = remaining(wait_ms)
    const query = () => ({ batch, wait_ms: left(), visibility_ms, worker })
    const polled = await this._http.json('POST', `${this._path}/poll`, { query, waitMs: wait_ms, signal })
    return polled.messages.map(readPayload)
  }

  /**
   * Done. Acks that come at the same time travel together.
   * @param {shapes.Lease} message
   * @returns {Promise<shapes.Settled>}
   */
  ack({ id, token }) {
    return this._settles.ack.join({ id, token })
  }

  /**
   * Failed: it comes again after `delay_ms`, or the queue's back-off, or dies: now with `dead`, and dropped with `discard`.
   * @param {shapes.Lease} message
   * @param {shapes.Failed} [options]
   * @returns {Promise<shapes.Settled>}
   */
  nack({ id, token }, { delay_ms, error, traceback, dead, discard } = {}) {
    return this._settles.nack.join({ id, token, delay_ms, error, traceback, dead, discard })
  }

  /**
   * Give back what was not begun: no attempt is used up.
   * @param {shapes.Lease} message
   * @returns {Promise<shapes.Settled>}
   */
  release({ id, token }) {
    return this._settles.release.join({ id, token })
  }

  /**
   * Keep a lease for `ms` from now, or as long as the queue says.
   * @param {shapes.Lease} message
   * @param {number} [ms]
   * @returns {Promise<{lease_expires_at: number}>}
   */
  async extend({ id, token }, ms) {
    const { lease_expires_at } = await this._http.json('POST', `${this._path}/extend`, { body: { id, token, ms } })
    return { lease_expires_at }
  }

  /**
   * Ack, nack and push, here or to other queues, all or nothing.
   * @param {shapes.Transaction} transaction
   * @returns {Promise<{acked: number, nacked: number, message_ids: number[], duplicates: number[]}>}
   */
  transact({ ack = [], nack = [], push = [] }) {
    const body = {
      ack: ack.map(({ id, token, queue }) => ({ id, token, queue })),
      nack: nack.map(({ id, token, queue, delay_ms, error, traceback, dead, discard }) => ({ id, token, queue, delay_ms, error, traceback, dead, discard })),
      push: push.map((message) => ({ ...message, ...sentPayload(message.payload) })),
    }
    // Done twice, the second would find its leases gone, or push again.
    return this._http.json('POST', `${this._path}/transact`, { body, repeatable: false })
  }

  /**
   * Work off messages until stopped: those whose handler returns are acked, those whose handler throws are nacked with
   * the error, and leases are kept for as long as the handler takes. Also called as `consume({ handler, ...options })`.
   * @param {Handler<shapes.LeasedMessage> | QueueConsumeOptions & {handler: Handler<shapes.LeasedMessage>}} handler
   * @param {QueueConsumeOptions} [options]
   * @returns {Consumer<shapes.LeasedMessage>}
   */
  consume(handler, options) {
    const given = handler !== null && typeof handler === 'object' && !options ? handler : { ...options, handler }
    const usage = 'consume(handler, options) or consume({ handler, ...options })'
    const checked = checkConsume(given, usage, ['visibility_ms', 'worker'])
    return this._consume(/** @type {QueueConsumeOptions & {handler: Handler<shapes.LeasedMessage>}} */ (checked))
  }

  /** @param {QueueConsumeOptions & {handler: Handler<shapes.LeasedMessage>}} given */
  _consume({ handler, visibility_ms, worker, ...options }) {
    const onError = options.onError ?? (() => {})
    let leaseMs = visibility_ms ?? 0
    /** @type {(message: shapes.LeasedMessage) => Promise<unknown>} */
    const handle = async (message) => {
      const keep = setInterval(
        () => this.extend(message, visibility_ms).catch(onError),
        Math.max(100, leaseMs / EXTENSIONS_PER_LEASE),
      )
      try {
        return await handler(message)
      } finally {
        clearInterval(keep)
      }
    }
    const work = {
      lease: async (/** @type {number} */ batch, /** @type {AbortSignal} */ signal) => {
        // Not from when it expires: the server's clock may be another.
        leaseMs ||= (await this.info()).visibility_ms
        return this.lease({ batch, visibility_ms, worker, signal })
      },
      handle,
      done: (/** @type {shapes.LeasedMessage} */ message) => this.ack(message),
      failed: (/** @type {shapes.LeasedMessage} */ message, /** @type {unknown} */ error) =>
        this.nack(message, { error: errorText(error), traceback: errorStack(error) }),
      giveBack: (/** @type {shapes.LeasedMessage[]} */ messages) =>
        Promise.all(messages.map((message) => this.release(message))),
    }
    return new Consumer(work, this._http, options)
  }

  /**
   * @param {string} verb
   * @param {shapes.SettleItem[]} items
   * @returns {Promise<(shapes.Settled | Error)[]>}
   */
  _settleJoined(verb, items) {
    return sendOrSplit(items, (some) => this._settleAll(verb, some), (error) => error instanceof InvalidInput)
  }

  /**
   * @param {string} verb
   * @param {shapes.SettleItem[]} items
   * @returns {Promise<(shapes.Settled | Error)[]>}
   */
  async _settleAll(verb, items) {
    // The server remembers for a while what a token did: a repeated request gets the first attempt's results.
    const { value, repeated } = await this._http.ask('POST', `${this._path}/${verb}`, { body: { items } })
    return value.results.map((/** @type {shapes.Settled} */ settled) => {
      if (settled.result === 'stale') {
        // What is still there was not acked.
        const maybeDone = repeated && verb !== 'ack'
        return new LeaseLost(`the lease on message ${settled.id} is no longer yours`, { code: 'lease_lost', maybeDone })
      }
      if (settled.result === 'unknown') {
        const error = `there is no message ${settled.id} in ${this.name}`
        return new NotFound(error, { code: 'unknown_message', maybeDone: repeated })
      }
      return settled
    })
  }

  // Looking and removing

  /**
   * Look at messages without leasing them.
   * @param {{state?: shapes.State, limit?: number, after?: string}} [options]
   * @returns {Promise<shapes.MessagePage>}
   */
  async peek({ state, limit, after } = {}) {
    return readPage(await this._http.json('GET', `${this._path}/peek`, { query: { state, limit, after } }))
  }

  /**
   * @param {number} id
   * @returns {Promise<shapes.Message>}
   */
  async get(id) {
    return readPayload(await this._http.json('GET', `${this._path}/messages/${id}`))
  }

  /**
   * @param {number} id
   * @returns {Promise<void>}
   */
  async remove(id) {
    await this._http.json('DELETE', `${this._path}/messages/${id}`)
  }

  /**
   * All that is in the queue, as it is at one moment.
   * @param {{signal?: AbortSignal}} [options]
   * @returns {AsyncGenerator<shapes.Message, void, void>}
   */
  async *export({ signal } = {}) {
    const { response, release } = await this._http.stream('GET', `${this._path}/export`, { signal })
    try {
      for await (const message of ndjson(response)) yield readPayload(message)
    } finally {
      release()
    }
  }

  /**
   * Take an export back. What was taken already is not taken again.
   * @param {Iterable<shapes.Message> | AsyncIterable<shapes.Message>} messages
   * @returns {Promise<{imported: number, duplicates: number, skipped: number}>}
   */
  async import(messages) {
    const done = { imported: 0, duplicates: 0, skipped: 0 }
    const send = async (/** @type {string} */ raw) => {
      const headers = { 'content-type': 'application/x-ndjson' }
      const part = await this._http.json('POST', `${this._path}/import`, { raw, headers })
      done.imported += part.imported
      done.duplicates += part.duplicates
      done.skipped += part.skipped
    }
    let lines = ''
    for await (const message of messages) {
      lines += `${stringify({ ...message, ...sentPayload(message.payload) })}\n`
      if (lines.length >= JOINED_BYTES_MAX) {
        await send(lines)
        lines = ''
      }
    }
    await send(lines)
    return done
  }

  // Dead letters

  /**
   * Newest first, with their errors.
   * @param {{limit?: number, after?: string}} [options]
   * @returns {Promise<shapes.MessagePage>}
   */
  async deadLetters({ limit, after } = {}) {
    return readPage(await this._http.json('GET', `${this._path}/dlq`, { query: { limit, after } }))
  }

  /**
   * Give dead letters a new life in their queue. At a low rate it takes long: aborting the signal stops it.
   * @param {shapes.Redrive} [redrive]
   * @returns {Promise<shapes.Redriven>}
   */
  redrive({ where = {}, rate_per_s, dry_run, signal } = {}) {
    const body = { where, rate_per_s, dry_run }
    return this._http.json('POST', `${this._path}/dlq/requeue`, { body, signal, waitMs: REDRIVE_MS_MAX })
  }

  /**
   * @param {{dry_run?: boolean}} [options]
   * @returns {Promise<{purged: number, dry_run: boolean}>}
   */
  purgeDeadLetters({ dry_run } = {}) {
    return this._http.json('POST', `${this._path}/dlq/purge`, { query: { dry_run } })
  }

  // Keys

  /** @returns {Promise<shapes.Key[]>} */
  async keys() {
    return (await this._http.json('GET', `${this._path}/keys`)).keys
  }

  /**
   * Make an API key; the answer is the only place where it is shown.
   * @param {{name?: string, rights?: ('push' | 'consume' | 'admin')[]}} [options]
   * @returns {Promise<shapes.Key & {key: string}>}
   */
  addKey(options = {}) {
    return this._http.json('POST', `${this._path}/keys`, { body: options, repeatable: false })
  }

  /**
   * @param {string} id
   * @returns {Promise<void>}
   */
  async removeKey(id) {
    await this._http.json('DELETE', `${this._path}/keys/${encodeURIComponent(id)}`)
  }
}

/**
 * @param {shapes.MessagePage} page
 * @returns {shapes.MessagePage}
 */
function readPage(page) {
  page.messages.forEach(readPayload)
  return page
}
