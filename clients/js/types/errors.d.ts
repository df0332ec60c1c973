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
export type Details = {
    code?: string;
    hint?: string;
    field?: string;
    status?: number;
    retryAfterMs?: number;
    requestId?: string;
    maybeDone?: boolean;
    place?: unknown;
    cause?: unknown;
};
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
export declare class PenstockError extends Error {
    /** Stable error code in snake case. */
    code: string;
    /** How to solve the problem. */
    hint: string | undefined;
    /** Name of the invalid value. */
    field: string | undefined;
    /** HTTP status of the response, if there was one. */
    status: number | undefined;
    retryAfterMs: number | undefined;
    /** Request id, as in the server's log. */
    requestId: string | undefined;
    /** True if the request may have succeeded nevertheless. */
    maybeDone: boolean;
    /** Position of a damaged record. */
    place: unknown;
    /**
     * @param {string} message
     * @param {Details} [details]
     */
    constructor(message: string, details?: Details);
}
export declare class InvalidInput extends PenstockError {
}
export declare class NotFound extends PenstockError {
}
export declare class Conflict extends PenstockError {
}
export declare class LeaseLost extends Conflict {
}
export declare class OffsetTrimmed extends PenstockError {
}
export declare class TryLater extends PenstockError {
}
export declare class AccessDenied extends PenstockError {
}
export declare class Unauthorized extends AccessDenied {
}
export declare class Forbidden extends AccessDenied {
}
export declare class StoreError extends PenstockError {
}
export declare class Unreachable extends PenstockError {
}
export declare class Closed extends PenstockError {
}
export declare class ServerFault extends PenstockError {
}
/**
 * Return true if a retry may succeed.
 * @param {unknown} error
 */
export declare function isTransient(error: unknown): error is StoreError | TryLater | Unreachable;
/**
 * Return the error for an error response.
 * @param {number} status
 * @param {string} text
 * @param {Headers} headers
 * @returns {PenstockError}
 */
export declare function errorOf(status: number, text: string, headers: Headers): PenstockError;
/**
 * Return the error of one item of a batch.
 * @param {string} code
 * @param {string} message
 * @returns {PenstockError}
 */
export declare function errorOfItem(code: string, message: string): PenstockError;
