/** Processes messages, several at a time, across server outages, until stopped. */
import { InvalidInput, isTransient } from './errors.js'
import { backoffMs, pause } from './http.js'

/** @import { Http } from './http.js' */

const CONCURRENCY_MAX = 10_000

/**
 * @template Message
 * @typedef {object} Work
 * @property {(limit: number, signal: AbortSignal) => Promise<Message[]>} lease leases messages, waiting for the first
 * @property {(message: Message) => Promise<unknown>} handle
 * @property {(message: Message) => Promise<unknown>} done
 * @property {(message: Message, error: unknown) => Promise<unknown>} failed
 * @property {(messages: Message[]) => Promise<unknown>} [release] releases messages that were not started
 */

/**
 * @typedef {object} ConsumeOptions
 * @property {number} [concurrency] messages processed at the same time; default 1
 * @property {AbortSignal} [signal] stops the consumer, as `stop()` does
 * @property {(error: unknown) => void} [onError] called for errors that do not end the consumer
 */

/**
 * @template Message
 * @typedef {(message: Message) => unknown} Handler
 */

const OPTIONS = ['concurrency', 'signal', 'onError']

/**
 * Check the handler and options of a `consume` and return them. A handler that is not a function would fail every
 * message, so it is refused before the first lease.
 * @template {object} Given
 * @param {Given} given
 * @param {string} usage
 * @param {string[]} own options in addition to those of every consumer
 * @returns {Given}
 */
export function checkConsume(given, usage, own) {
  const { handler, ...options } = /** @type {any} */ (Object(given))
  if (typeof handler !== 'function') {
    throw new TypeError(`the handler must be a function, got ${handler === null ? 'null' : typeof handler}; call ${usage}`)
  }
  const known = [...own, ...OPTIONS]
  const unknown = Object.keys(options).find((name) => !known.includes(name))
  if (unknown !== undefined) throw new TypeError(`unknown option ${unknown}; the options are ${known.join(', ')}`)
  return given
}

/** @template Message */
export class Consumer {
  /**
   * @param {Work<Message>} work
   * @param {Http} http
   * @param {ConsumeOptions} options
   */
  constructor(work, http, { concurrency = 1, signal, onError = () => {} }) {
    if (!Number.isInteger(concurrency) || concurrency < 1 || concurrency > CONCURRENCY_MAX) {
      throw new InvalidInput(`concurrency must be a whole number from 1 to ${CONCURRENCY_MAX}`, { field: 'concurrency' })
    }
    this._work = work
    this._concurrency = concurrency
    this._onError = onError
    const { controller, release } = http.controller(signal)
    this._ending = controller
    /** @type {Set<Promise<void>>} */
    this._running = new Set()
    /** Settles when the consumer has ended: stopped, or after a permanent error. */
    this.done = this._run().finally(release)
    // A caller may ignore `ended`, so its rejection must not count as unhandled.
    this.done.catch(() => {})
  }

  /**
   * Stop leasing, and finish messages in progress.
   * @returns {Promise<void>}
   */
  stop() {
    this._ending.abort()
    return this.done
  }

  async _run() {
    for (let failures = 0; !this._ending.signal.aborted; ) {
      try {
        const room = this._concurrency - this._running.size
        if (room === 0) {
          await Promise.race(this._running)
          continue
        }
        await this._begin(await this._work.lease(room, this._ending.signal))
        failures = 0
      } catch (error) {
        if (this._ending.signal.aborted) break
        if (!isTransient(error)) {
          await Promise.all(this._running)
          throw error
        }
        this._onError(error)
        await pause(backoffMs(failures++), this._ending.signal).catch(() => {})
      }
    }
    await Promise.all(this._running)
  }

  /** @param {Message[]} messages */
  async _begin(messages) {
    if (this._ending.signal.aborted && this._work.release && messages.length > 0) {
      await this._work.release(messages).catch(this._onError)
      return
    }
    for (const message of messages) {
      const working = this._handle(message).finally(() => this._running.delete(working))
      this._running.add(working)
    }
  }

  /** @param {Message} message */
  async _handle(message) {
    try {
      try {
        await this._work.handle(message)
      } catch (error) {
        this._onError(error)
        await this._work.failed(message, error)
        return
      }
      await this._work.done(message)
    } catch (error) {
      // The lease expires and the message is redelivered.
      this._onError(error)
    }
  }
}

/**
 * Return the text of an error.
 * @param {unknown} error
 */
export function errorText(error) {
  const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error)
  return text.slice(0, 4_096)
}

/**
 * Return the start of the error's stack, which has the innermost calls, if there is one.
 * @param {unknown} error
 * @returns {string | undefined}
 */
export function errorStack(error) {
  return error instanceof Error && error.stack ? error.stack.slice(0, 8_192) : undefined
}
