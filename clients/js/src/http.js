/**
 * Sends requests: retries where that is safe, and throws the server's errors as exceptions.
 *
 * When the caller cancels a request, it is aborted, so that the server can stop working on it.
 */
import { Closed, InvalidInput, PenstockError, ServerFault, TryLater, Unreachable, errorOf, isTransient } from './errors.js'
import { parse, stringify } from './json.js'

const BACKOFF_MS = 100
const BACKOFF_MS_MAX = 5_000
const RETRY_AFTER_MS_MAX = 60_000
const SETTING_MAX = 24 * 3_600_000
/** Codes of errors that a smaller batch may not cause. */
export const FULL = ['queue_full', 'rate_limited']

/**
 * @typedef {object} ConnectOptions
 * @property {string} [token] admin token or API key
 * @property {number} [timeout] milliseconds for one request, in addition to its long-poll wait; default 30,000
 * @property {number} [retryAttempts] number of retries; default 3
 * @property {typeof fetch} [fetch] replacement for the global fetch
 */

/**
 * @typedef {Record<string, unknown>} Query values that are undefined or null are left out
 */

/**
 * @typedef {object} Ask
 * @property {Query | (() => Query)} [query] a function is called for every attempt
 * @property {unknown} [body] sent as JSON
 * @property {BodyInit} [raw] body sent as it is; set its type in `headers`
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal]
 * @property {number} [waitMs] how long the server may wait before it responds
 * @property {boolean} [repeatable] the request is idempotent; default true
 * @property {boolean} [share] throw a full queue's error without retries, so that the caller can send fewer messages
 * @property {number[]} [accept] error statuses that are returned, not thrown
 */

export class Http {
  /**
   * @param {string} baseUrl
   * @param {ConnectOptions} [options]
   */
  constructor(baseUrl, { token, timeout = 30_000, retryAttempts = 3, fetch } = {}) {
    this.baseUrl = absolute(baseUrl)
    this.token = token
    this._timeout = positive('timeout', timeout)
    this._retryAttempts = positive('retryAttempts', retryAttempts)
    this._fetch = fetch ?? globalThis.fetch.bind(globalThis)
    /** @type {Set<AbortController>} */
    this._inFlight = new Set()
    this.closed = false
  }

  /** Abort all requests in flight. */
  close() {
    this.closed = true
    for (const controller of this._inFlight) controller.abort(closedError())
  }

  /**
   * Return a signal that aborts with this client or with the caller's signal; call `release` when done with it.
   * @param {AbortSignal} [signal]
   * @returns {{controller: AbortController, release: () => void}}
   */
  controller(signal) {
    const controller = new AbortController()
    const abort = () => controller.abort(signal?.reason)
    if (this.closed) controller.abort(closedError())
    else if (signal?.aborted) abort()
    this._inFlight.add(controller)
    signal?.addEventListener('abort', abort)
    const release = () => {
      this._inFlight.delete(controller)
      signal?.removeEventListener('abort', abort)
    }
    return { controller, release }
  }

  /**
   * Return the JSON of the response; undefined if it is empty.
   * @param {string} method
   * @param {string} path
   * @param {Ask} [ask]
   * @returns {Promise<any>}
   */
  async json(method, path, ask) {
    return (await this.ask(method, path, ask)).value
  }

  /**
   * Return the JSON of the response; `repeated` is true if an earlier attempt may have succeeded as well.
   * @param {string} method
   * @param {string} path
   * @param {Ask} [ask]
   * @returns {Promise<{value: any, repeated: boolean}>}
   */
  async ask(method, path, ask = {}) {
    const { answer, repeated } = await this._try(method, path, ask, readText)
    try {
      return { value: answer === '' ? undefined : parse(answer), repeated }
    } catch (cause) {
      const hint = 'is that a Penstock server of this version?'
      throw new ServerFault(`cannot decode the response of ${this.baseUrl}`, { cause, hint })
    }
  }

  /**
   * Return the response as text.
   * @param {string} path
   * @param {Ask} [ask]
   * @returns {Promise<string>}
   */
  async text(path, ask = {}) {
    return (await this._try('GET', path, ask, readText)).answer
  }

  /**
   * Return the response itself, to be streamed; call `release` when done with it.
   * @param {string} method
   * @param {string} path
   * @param {Ask} [ask]
   * @returns {Promise<{response: Response, release: () => void}>}
   */
  async stream(method, path, ask = {}) {
    const { controller, release } = this.controller(ask.signal)
    try {
      const { answer } = await this._attempts(method, path, ask, controller.signal, async (response) => response)
      return { response: answer, release }
    } catch (error) {
      release()
      throw error
    }
  }

  /**
   * @template T
   * @param {string} method
   * @param {string} path
   * @param {Ask} ask
   * @param {(response: Response) => Promise<T>} read
   * @returns {Promise<{answer: T, repeated: boolean}>}
   */
  async _try(method, path, ask, read) {
    const { controller, release } = this.controller(ask.signal)
    try {
      return await this._attempts(method, path, ask, controller.signal, read)
    } finally {
      release()
    }
  }

  /**
   * @template T
   * @param {string} method
   * @param {string} path
   * @param {Ask} ask
   * @param {AbortSignal} signal
   * @param {(response: Response) => Promise<T>} read
   * @returns {Promise<{answer: T, repeated: boolean}>}
   */
  async _attempts(method, path, ask, signal, read) {
    let repeated = false
    for (let attempt = 0; ; attempt++) {
      try {
        return { answer: await this._once(method, path, ask, signal, read), repeated }
      } catch (error) {
        if (!(error instanceof PenstockError)) throw error
        repeated = error.maybeDone = repeated || error.maybeDone
        const once = repeated && ask.repeatable === false
        if (once || attempt >= this._retryAttempts || !isRetryable(error, ask)) throw error
        await pause(backoffMs(attempt) + (error.retryAfterMs ?? 0), signal)
      }
    }
  }

  /**
   * @template T
   * @param {string} method
   * @param {string} path
   * @param {Ask} ask
   * @param {AbortSignal} signal
   * @param {(response: Response) => Promise<T>} read
   * @returns {Promise<T>}
   */
  async _once(method, path, ask, signal, read) {
    signal.throwIfAborted()
    const attempt = new AbortController()
    const giveUp = () => attempt.abort(signal.reason)
    signal.addEventListener('abort', giveUp)
    let late = false
    const seconds = (this._timeout + (ask.waitMs ?? 0)) / 1000
    const timer = setTimeout(() => {
      late = true
      attempt.abort()
    }, seconds * 1000)
    try {
      const response = await this._fetch(this.url(path, ask.query), {
        method,
        headers: this._headers(ask),
        body: ask.raw ?? (ask.body === undefined ? undefined : stringify(ask.body)),
        signal: attempt.signal,
      })
      if (response.status >= 400 && !ask.accept?.includes(response.status)) {
        throw errorOf(response.status, await response.text(), response.headers)
      }
      return await read(response)
    } catch (cause) {
      if (cause instanceof PenstockError) throw cause
      if (signal.aborted) throw signal.reason
      const why = late ? `within ${seconds} s` : `(${reasonOf(cause)})`
      throw new Unreachable(`${this.baseUrl} does not respond ${why}`, { code: 'unreachable', maybeDone: true, cause })
    } finally {
      clearTimeout(timer)
      if (read === readText) signal.removeEventListener('abort', giveUp)
    }
  }

  /** @param {Ask} ask */
  _headers(ask) {
    /** @type {Record<string, string>} */
    const headers = { ...ask.headers }
    if (ask.body !== undefined) headers['content-type'] = 'application/json'
    if (this.token) headers.authorization = `Bearer ${headerText(this.token)}`
    return headers
  }

  /**
   * @param {string} path
   * @param {Query | (() => Query)} [query]
   */
  url(path, query = {}) {
    const given = Object.entries(typeof query === 'function' ? query() : query).filter(([, value]) => value !== undefined && value !== null)
    if (given.length === 0) return this.baseUrl + path
    return `${this.baseUrl}${path}?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`
  }
}

/** @param {Response} response */
const readText = (response) => response.text()

/** @param {number} attempt */
export function backoffMs(attempt) {
  const longest = Math.min(BACKOFF_MS_MAX, BACKOFF_MS * 2 ** attempt)
  return longest / 2 + (Math.random() * longest) / 2
}

/**
 * @param {PenstockError} error
 * @param {Ask} ask
 */
function isRetryable(error, ask) {
  if ((error.retryAfterMs ?? 0) > RETRY_AFTER_MS_MAX) return false
  const shared = ask.share && error instanceof TryLater && FULL.includes(error.code)
  return isTransient(error) && !shared
}

/**
 * Sleep; reject with the signal's reason if it aborts.
 * @param {number} ms
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer)
      reject(signal.reason)
    }
    const timer = setTimeout(() => {
      signal.removeEventListener('abort', end)
      resolve()
    }, ms)
    if (signal.aborted) end()
    else signal.addEventListener('abort', end, { once: true })
  })
}

/**
 * Start a wait and return a function for its remaining time, so that a retried poll does not wait longer in total.
 * @param {number} ms
 * @returns {() => number}
 */
export function remaining(ms) {
  const until = Date.now() + ms
  return () => Math.max(0, until - Date.now())
}

function closedError() {
  return new Closed('this client is closed', { code: 'closed' })
}

/** @param {string} baseUrl */
function absolute(baseUrl) {
  const page = /** @type {any} */ (globalThis).location?.href
  try {
    const url = new URL(baseUrl, page)
    if (!/^https?:$/.test(url.protocol)) throw new TypeError(url.protocol)
    return url.origin + url.pathname.replace(/\/+$/, '')
  } catch (cause) {
    throw new InvalidInput(`${JSON.stringify(baseUrl)} is not an http(s) address`, { field: 'baseUrl', cause })
  }
}

/**
 * @param {string} field
 * @param {number} value
 */
function positive(field, value) {
  if (typeof value === 'number' && value >= 0 && value <= SETTING_MAX) return value
  throw new InvalidInput(`${field} must be a number from 0 to ${SETTING_MAX}`, { code: 'invalid_value', field })
}

/**
 * Encode text as UTF-8 with one character per byte, as fetch headers require.
 * @param {string} text
 */
function headerText(text) {
  return String.fromCharCode(...new TextEncoder().encode(text))
}

/** @param {unknown} cause */
function reasonOf(cause) {
  const error = /** @type {any} */ (cause)
  return error?.cause?.code ?? error?.cause?.message ?? error?.message ?? String(cause)
}
