/**
 * One request and its answer: retried where that is safe, with the server's errors as exceptions.
 *
 * What a caller gives up on is aborted, so that the server knows that nobody listens.
 */
import { Closed, InvalidInput, PenstockError, ServerFault, TryLater, Unreachable, errorOf, isPassing } from './errors.js'
import { parse, stringify } from './json.js'

const BACKOFF_MS = 100
const BACKOFF_MS_MAX = 5_000
const RETRY_AFTER_MS_MAX = 60_000
const SETTING_MAX = 24 * 3_600_000
/** Codes that fewer messages may not meet. */
export const FULL = ['queue_full', 'rate_limited']

/**
 * @typedef {object} ConnectOptions
 * @property {string} [token] the server's, or a queue's key
 * @property {number} [timeout] milliseconds for one request, beyond what it asks the server to wait; 30,000
 * @property {number} [retryAttempts] how often to try again; 3
 * @property {typeof fetch} [fetch] another than the global one
 */

/**
 * @typedef {Record<string, unknown>} Query values that are undefined or null are left out
 */

/**
 * @typedef {object} Ask
 * @property {Query | (() => Query)} [query] as a function, it is asked anew for every attempt
 * @property {unknown} [body] sent as JSON
 * @property {BodyInit} [raw] sent as it is; with `headers` that say what it is
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal]
 * @property {number} [waitMs] how long the server may wait before it answers
 * @property {boolean} [repeatable] carried out twice it does no harm; true
 * @property {boolean} [share] a full queue is for the caller to see, who then tries with less
 * @property {number[]} [accept] statuses that are answers, too
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
    this._underWay = new Set()
    this.closed = false
  }

  /** Give up on all that is under way. */
  close() {
    this.closed = true
    for (const controller of this._underWay) controller.abort(closedError())
  }

  /**
   * A signal that is aborted with this client, or by the caller's; call `release` when it is no longer needed.
   * @param {AbortSignal} [signal]
   * @returns {{controller: AbortController, release: () => void}}
   */
  controller(signal) {
    const controller = new AbortController()
    const abort = () => controller.abort(signal?.reason)
    if (this.closed) controller.abort(closedError())
    else if (signal?.aborted) abort()
    this._underWay.add(controller)
    signal?.addEventListener('abort', abort)
    const release = () => {
      this._underWay.delete(controller)
      signal?.removeEventListener('abort', abort)
    }
    return { controller, release }
  }

  /**
   * The answer's JSON; undefined of an empty one.
   * @param {string} method
   * @param {string} path
   * @param {Ask} [ask]
   * @returns {Promise<any>}
   */
  async json(method, path, ask) {
    return (await this.ask(method, path, ask)).value
  }

  /**
   * The answer's JSON, and whether an earlier attempt may have been carried out as well.
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
      const hint = 'is that a Penstock server, and of this version?'
      throw new ServerFault(`${this.baseUrl} answered what cannot be read`, { cause, hint })
    }
  }

  /**
   * The answer as text.
   * @param {string} path
   * @param {Ask} [ask]
   * @returns {Promise<string>}
   */
  async text(path, ask = {}) {
    return (await this._try('GET', path, ask, readText)).answer
  }

  /**
   * The answer itself, to be read as it comes, for as long as it takes; `release` it then.
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
        if (once || attempt >= this._retryAttempts || !worthAnother(error, ask)) throw error
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
      throw new Unreachable(`${this.baseUrl} does not answer ${why}`, { code: 'unreachable', maybeDone: true, cause })
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
function worthAnother(error, ask) {
  if ((error.retryAfterMs ?? 0) > RETRY_AFTER_MS_MAX) return false
  const shared = ask.share && error instanceof TryLater && FULL.includes(error.code)
  return isPassing(error) && !shared
}

/**
 * Wait, unless the signal ends it, with its reason.
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
 * How much is left of a wait that begins now, whenever it is asked: a poll that has to be repeated waits no longer.
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
    throw new InvalidInput(`${JSON.stringify(baseUrl)} is no http(s) address`, { field: 'baseUrl', cause })
  }
}

/**
 * @param {string} field
 * @param {number} value
 */
function positive(field, value) {
  if (typeof value === 'number' && value >= 0 && value <= SETTING_MAX) return value
  throw new InvalidInput(`${field} is a number from 0 to ${SETTING_MAX}`, { code: 'invalid_value', field })
}

/**
 * A header holds bytes, a character each; ours are UTF-8.
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
