/**
 * What can go wrong, as a tree. Each error has a stable `code` and, where there is one, a `hint` on what to do.
 *
 * PenstockError
 * ├── InvalidInput     a value that can never be accepted; `field` names it
 * ├── NotFound         no such queue, message, stream or consumer
 * ├── Conflict         it exists already, or is in use
 * │   └── LeaseLost    the lease has passed, or is another's
 * ├── OffsetTrimmed    those records are no longer kept
 * ├── TryLater         full, or too fast; `retryAfterMs`
 * ├── AccessDenied
 * │   ├── Unauthorized no credential, or an unknown one
 * │   └── Forbidden    a credential without that right
 * ├── StoreError       the server cannot reach its store
 * ├── Unreachable      no answer; `maybeDone`
 * ├── Closed           this client was closed meanwhile
 * └── ServerFault      an answer that makes no sense, or a fault in the server
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
    /** Stable, in snake case. */
    code: string;
    /** What to do about it. */
    hint: string | undefined;
    /** The value that was wrong. */
    field: string | undefined;
    /** Of the HTTP answer, if there was one. */
    status: number | undefined;
    retryAfterMs: number | undefined;
    /** Stands in the server's log line. */
    requestId: string | undefined;
    /** Whether what was asked may have been carried out all the same. */
    maybeDone: boolean;
    /** Of a damaged record. */
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
 * The error that an answer means.
 * @param {number} status
 * @param {string} text
 * @param {Headers} headers
 * @returns {PenstockError}
 */
export declare function errorOf(status: number, text: string, headers: Headers): PenstockError;
/**
 * The error of one item of many.
 * @param {string} code
 * @param {string} message
 * @returns {PenstockError}
 */
export declare function errorOfItem(code: string, message: string): PenstockError;
