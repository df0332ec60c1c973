/**
 * The errors of the client. Each has a stable `code` and, where possible, a `hint` of what to do.
 *
 * PenstockError
 * ├── InvalidInput     a value that can never be accepted; `field` names it
 * ├── NotFound         no such queue, message, stream or consumer
 * ├── Conflict         the object exists already, or is in use
 * │   └── LeaseLost    the lease has expired, or belongs to another consumer
 * ├── OffsetTrimmed    the records were removed by retention
 * ├── TryLater         full or rate-limited; `retryAfterMs`
 * ├── AccessDenied
 * │   ├── Unauthorized no credential, or an unknown one
 * │   └── Forbidden    a credential without the right
 * ├── StoreError       the server cannot reach its store
 * ├── Unreachable      no response; `maybeDone`
 * ├── Closed           this client was closed
 * └── ServerFault      an invalid response, or an internal error of the server
 */

/**
 * @typedef {object} Details
 * @property {string} [code]
 * @property {string} [hint]
 * @property {string} [field]
 * @property {number} [status]
 * @property {number} [retryAfterMs]
 * @property {string} [requestId]
 * @property {boolean} [maybeDone]
 * @property {unknown} [place]
 * @property {unknown} [cause]
 */

export class PenstockError extends Error {
  /**
   * @param {string} message
   * @param {Details} [details]
   */
  constructor(message, details = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause })
    this.name = new.target.name
    /** Stable error code in snake case. */
    this.code = details.code ?? 'error'
    /** How to solve the problem. */
    this.hint = details.hint
    /** Name of the invalid value. */
    this.field = details.field
    /** HTTP status of the response, if there was one. */
    this.status = details.status
    this.retryAfterMs = details.retryAfterMs
    /** Request id, as in the server's log. */
    this.requestId = details.requestId
    /** True if the request may have succeeded nevertheless. */
    this.maybeDone = details.maybeDone ?? false
    /** Position of a damaged record. */
    this.place = details.place
  }
}

export class InvalidInput extends PenstockError {}
export class NotFound extends PenstockError {}
export class Conflict extends PenstockError {}
export class LeaseLost extends Conflict {}
export class OffsetTrimmed extends PenstockError {}
export class TryLater extends PenstockError {}
export class AccessDenied extends PenstockError {}
export class Unauthorized extends AccessDenied {}
export class Forbidden extends AccessDenied {}
export class StoreError extends PenstockError {}
export class Unreachable extends PenstockError {}
export class Closed extends PenstockError {}
export class ServerFault extends PenstockError {}

/**
 * Return true if a retry may succeed.
 * @param {unknown} error
 */
export function isTransient(error) {
  return error instanceof Unreachable || error instanceof TryLater || error instanceof StoreError
}

/** @type {Record<number, typeof PenstockError>} */
const BY_STATUS = {
  400: InvalidInput,
  401: Unauthorized,
  403: Forbidden,
  404: NotFound,
  405: InvalidInput,
  406: InvalidInput,
  409: Conflict,
  410: OffsetTrimmed,
  411: InvalidInput,
  413: InvalidInput,
  415: InvalidInput,
  422: InvalidInput,
  429: TryLater,
  431: InvalidInput,
  502: Unreachable,
  503: StoreError,
  504: Unreachable,
}

/** @type {Record<string, typeof PenstockError>} */
const BY_CODE = {
  lease_lost: LeaseLost,
  unknown_queue: NotFound,
  queue_full: TryLater,
  rate_limited: TryLater,
  store_error: StoreError,
  forbidden: Forbidden,
}

/**
 * Return the error for an error response.
 * @param {number} status
 * @param {string} text
 * @param {Headers} headers
 * @returns {PenstockError}
 */
export function errorOf(status, text, headers) {
  /** @type {any} */
  let body
  try {
    body = JSON.parse(text)
  } catch {
    body = undefined
  }
  const known = typeof body?.error === 'string' && typeof body.code === 'string'
  const retryAfter = Number(headers.get('retry-after') ?? NaN)
  const details = {
    ...(known ? { code: body.code, hint: body.hint, field: body.field, place: body.place } : {}),
    maybeDone: known ? body.maybe_done === true : status >= 500,
    status,
    retryAfterMs: Number.isFinite(retryAfter) ? retryAfter * 1000 : undefined,
    requestId: headers.get('x-request-id') ?? undefined,
  }
  const kind = (known && BY_CODE[body.code]) || BY_STATUS[status] || ServerFault
  return new kind(known ? body.error : `the server responded with ${status}`, details)
}

/**
 * Return the error of one item of a batch.
 * @param {string} code
 * @param {string} message
 * @returns {PenstockError}
 */
export function errorOfItem(code, message) {
  return new (BY_CODE[code] ?? InvalidInput)(message, { code })
}
