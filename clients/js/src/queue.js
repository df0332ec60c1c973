/** A queue, `/queues/{name}`. Options and fields have the server's names: `delay_ms`, `max_attempts`. */
import { newKey, readPayload, sentPayload } from './bytes.js'
import { Consumer, checkConsume, errorStack, errorText } from './consumer.js'
import { InvalidInput, LeaseLost, NotFound, TryLater } from './errors.js'
import { FULL, remaining } from './http.js'
import { Batcher, sendOrSplit } from './batcher.js'
import { stringify } from './json.js'
import { ndjson } from './ndjson.js'

/** @import { Http } from './http.js' */
/** @import { ConsumeOptions, Handler } from './consumer.js' */
/** @import * as shapes from '../shapes.d.ts' */

const JOINED_BYTES_MAX = 4 << 20
/** Bytes counted for a message in addition to its payload, which also limits the number of messages in a batch. */
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
    if (typeof name !== 'string' || name === '') throw new InvalidInput('the name of the queue is missing', { field: 'name' })
    this.name = name
    this._http = http
    this._path = `/queues/${encodeURIComponent(name)}`
    /** @type {Batcher<shapes.NewMessage & {bytes: number}, shapes.Receipt>} */
    this._pushes = new Batcher((entries) => this._pushJoined(entries), {
      weigh: ({ bytes }) => bytes + OVERHEAD_BYTES,
      weightMax: JOINED_BYTES_MAX,
    })
    /** @type {Record<string, Batcher<shapes.SettleItem, shapes.Settled>>} */
    this._settles = {}
    for (const verb of ['ack', 'nack', 'release']) {
      this._settles[verb] = new Batcher((items) => this._settleJoined(verb, items), {
        weigh: ({ error }) => String(error ?? '').length + OVERHEAD_BYTES,
        weightMax: JOINED_BYTES_MAX,
      })
    }
  }

  // Administration

  /**
   * Create the queue; does nothing if it exists with the same options.
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
   * Change the given options.
   * @param {shapes.QueueOptions} changes
   * @returns {Promise<shapes.QueueInfo>}
   */
  configure(changes) {
    return this._http.json('PATCH', this._path, { body: changes })
  }

  /**
   * Delete the queue; with `force`, even if it holds messages.
   * @param {{force?: boolean}} [options]
   * @returns {Promise<{dropped: string, messages: number}>}
   */
  drop({ force } = {}) {
    return this._http.json('DELETE', this._path, { query: { force }, repeatable: false })
  }

  /**
   * Pause the queue: messages are no longer leased, but still accepted.
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
   * Delete all ready and scheduled messages; `dry_run` only counts them.
   * @param {{dry_run?: boolean}} [options]
   * @returns {Promise<{purged: number, dry_run: boolean}>}
   */
  purge({ dry_run } = {}) {
    return this._http.json('POST', `${this._path}/purge`, { query: { dry_run } })
  }

  /** Return free space to the file system. @returns {Promise<{status: 'ok'}>} */
  compact() {
    return this._http.json('POST', `${this._path}/compact`)
  }

  // Pushing

  /**
   * Push one message. A Uint8Array is pushed as bytes, anything else as JSON, in which a BigInt is a whole number;
   * values that JSON cannot express (undefined, NaN, a function, a promise) are refused.
   * Concurrent pushes are batched, and a retry never adds a second message.
   * @param {unknown} payload
   * @param {shapes.PushOptions} [options]
   * @returns {Promise<shapes.Receipt>}
   */
  async push(payload, options = {}) {
    const message = { ...options, ...sentPayload(payload) }
    return this._pushes.join({ ...message, bytes: stringify(message.payload).length })
  }

  /**
   * Push messages, all or none.
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
      // Without a key from the user, the duplicate is the client's own retry: do not report it.
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
   * Acknowledge a message. Concurrent acks are batched.
   * @param {shapes.Lease} message
   * @returns {Promise<shapes.Settled>}
   */
  ack({ id, token }) {
    return this._settles.ack.join({ id, token })
  }

  /**
   * Report failure: retry after `delay_ms` (default: the queue's backoff), or dead-letter the message after its last
   * attempt. `dead` dead-letters it now, `discard` deletes it.
   * @param {shapes.Lease} message
   * @param {shapes.Failed} [options]
   * @returns {Promise<shapes.Settled>}
   */
  nack({ id, token }, { delay_ms, error, traceback, dead, discard } = {}) {
    return this._settles.nack.join({ id, token, delay_ms, error, traceback, dead, discard })
  }

  /**
   * Return a message to the queue; the delivery does not count as an attempt.
   * @param {shapes.Lease} message
   * @returns {Promise<shapes.Settled>}
   */
  release({ id, token }) {
    return this._settles.release.join({ id, token })
  }

  /**
   * Extend a lease to `ms` from now (default: the queue's lease time).
   * @param {shapes.Lease} message
   * @param {number} [ms]
   * @returns {Promise<{lease_expires_at: number}>}
   */
  async extend({ id, token }, ms) {
    const { lease_expires_at } = await this._http.json('POST', `${this._path}/extend`, { body: { id, token, ms } })
    return { lease_expires_at }
  }

  /**
   * Ack, nack and push (to this or other queues) in one transaction.
   * @param {shapes.Transaction} transaction
   * @returns {Promise<{acked: number, nacked: number, message_ids: number[], duplicates: number[]}>}
   */
  transact({ ack = [], nack = [], push = [] }) {
    const body = {
      ack: ack.map(({ id, token, queue }) => ({ id, token, queue })),
      nack: nack.map(({ id, token, queue, delay_ms, error, traceback, dead, discard }) => ({ id, token, queue, delay_ms, error, traceback, dead, discard })),
      push: push.map((message) => ({ ...message, ...sentPayload(message.payload) })),
    }
    // Not idempotent: a second attempt would find the leases settled, or push the messages again.
    return this._http.json('POST', `${this._path}/transact`, { body, repeatable: false })
  }

  /**
   * Process messages until stopped: a message is acked if its handler returns and nacked with the error if it throws;
   * its lease is extended while the handler runs. Can also be called as `consume({ handler, ...options })`.
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
        // The lease time is not computed from the message's expiry, because the server's clock may differ.
        leaseMs ||= (await this.info()).visibility_ms
        return this.lease({ batch, visibility_ms, worker, signal })
      },
      handle,
      done: (/** @type {shapes.LeasedMessage} */ message) => this.ack(message),
      failed: (/** @type {shapes.LeasedMessage} */ message, /** @type {unknown} */ error) =>
        this.nack(message, { error: errorText(error), traceback: errorStack(error) }),
      release: (/** @type {shapes.LeasedMessage[]} */ messages) =>
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
    // The server remembers for a while what a token did, so a retry gets the results of the first attempt.
    const { value, repeated } = await this._http.ask('POST', `${this._path}/${verb}`, { body: { items } })
    return value.results.map((/** @type {shapes.Settled} */ settled) => {
      if (settled.result === 'stale') {
        // The message still exists, so no earlier attempt acked it.
        const maybeDone = repeated && verb !== 'ack'
        return new LeaseLost(`the lease on message ${settled.id} is no longer yours`, { code: 'lease_lost', maybeDone })
      }
      if (settled.result === 'unknown') {
        const error = `message ${settled.id} does not exist in queue '${this.name}'`
        return new NotFound(error, { code: 'unknown_message', maybeDone: repeated })
      }
      return settled
    })
  }

  // Reading and deleting

  /**
   * Return messages without leasing them.
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
   * Yield a snapshot of all messages of the queue.
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
   * Import messages from an export. Messages that the queue holds already are not added again.
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
   * Return dead letters, newest first, with their errors.
   * @param {{limit?: number, after?: string}} [options]
   * @returns {Promise<shapes.MessagePage>}
   */
  async deadLetters({ limit, after } = {}) {
    return readPage(await this._http.json('GET', `${this._path}/dlq`, { query: { limit, after } }))
  }

  /**
   * Move dead letters back into their queue. At a low rate this takes long; abort the signal to stop it.
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
   * Create an API key; only this response contains it.
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
