/** Codes of errors that a smaller batch may not cause. */
export declare const FULL: string[];
export type ConnectOptions = {
    /**
     * admin token or API key
     */
    token?: string;
    /**
     * milliseconds for one request, in addition to its long-poll wait; default 30,000
     */
    timeout?: number;
    /**
     * number of retries; default 3
     */
    retryAttempts?: number;
    /**
     * replacement for the global fetch
     */
    fetch?: typeof fetch;
};
export type Query = Record<string, unknown>;
export type Ask = {
    /**
     * a function is called for every attempt
     */
    query?: Query | (() => Query);
    /**
     * sent as JSON
     */
    body?: unknown;
    /**
     * body sent as it is; set its type in `headers`
     */
    raw?: BodyInit;
    headers?: Record<string, string>;
    signal?: AbortSignal;
    /**
     * how long the server may wait before it responds
     */
    waitMs?: number;
    /**
     * the request is idempotent; default true
     */
    repeatable?: boolean;
    /**
     * throw a full queue's error without retries, so that the caller can send fewer messages
     */
    share?: boolean;
    /**
     * error statuses that are returned, not thrown
     */
    accept?: number[];
};
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
export declare class Http {
    baseUrl: string;
    token: string | undefined;
    _timeout: number;
    _retryAttempts: number;
    _fetch: typeof fetch;
    /** @type {Set<AbortController>} */
    _inFlight: Set<AbortController>;
    closed: boolean;
    /**
     * @param {string} baseUrl
     * @param {ConnectOptions} [options]
     */
    constructor(baseUrl: string, { token, timeout, retryAttempts, fetch }?: ConnectOptions);
    /** Abort all requests in flight. */
    close(): void;
    /**
     * Return a signal that aborts with this client or with the caller's signal; call `release` when done with it.
     * @param {AbortSignal} [signal]
     * @returns {{controller: AbortController, release: () => void}}
     */
    controller(signal?: AbortSignal): {
        controller: AbortController;
        release: () => void;
    };
    /**
     * Return the JSON of the response; undefined if it is empty.
     * @param {string} method
     * @param {string} path
     * @param {Ask} [ask]
     * @returns {Promise<any>}
     */
    json(method: string, path: string, ask?: Ask): Promise<any>;
    /**
     * Return the JSON of the response; `repeated` is true if an earlier attempt may have succeeded as well.
     * @param {string} method
     * @param {string} path
     * @param {Ask} [ask]
     * @returns {Promise<{value: any, repeated: boolean}>}
     */
    ask(method: string, path: string, ask?: Ask): Promise<{
        value: any;
        repeated: boolean;
    }>;
    /**
     * Return the response as text.
     * @param {string} path
     * @param {Ask} [ask]
     * @returns {Promise<string>}
     */
    text(path: string, ask?: Ask): Promise<string>;
    /**
     * Return the response itself, to be streamed; call `release` when done with it.
     * @param {string} method
     * @param {string} path
     * @param {Ask} [ask]
     * @returns {Promise<{response: Response, release: () => void}>}
     */
    stream(method: string, path: string, ask?: Ask): Promise<{
        response: Response;
        release: () => void;
    }>;
    /**
     * @template T
     * @param {string} method
     * @param {string} path
     * @param {Ask} ask
     * @param {(response: Response) => Promise<T>} read
     * @returns {Promise<{answer: T, repeated: boolean}>}
     */
    _try<T>(method: string, path: string, ask: Ask, read: (response: Response) => Promise<T>): Promise<{
        answer: T;
        repeated: boolean;
    }>;
    /**
     * @template T
     * @param {string} method
     * @param {string} path
     * @param {Ask} ask
     * @param {AbortSignal} signal
     * @param {(response: Response) => Promise<T>} read
     * @returns {Promise<{answer: T, repeated: boolean}>}
     */
    _attempts<T>(method: string, path: string, ask: Ask, signal: AbortSignal, read: (response: Response) => Promise<T>): Promise<{
        answer: T;
        repeated: boolean;
    }>;
    /**
     * @template T
     * @param {string} method
     * @param {string} path
     * @param {Ask} ask
     * @param {AbortSignal} signal
     * @param {(response: Response) => Promise<T>} read
     * @returns {Promise<T>}
     */
    _once<T>(method: string, path: string, ask: Ask, signal: AbortSignal, read: (response: Response) => Promise<T>): Promise<T>;
    /** @param {Ask} ask */
    _headers(ask: Ask): Record<string, string>;
    /**
     * @param {string} path
     * @param {Query | (() => Query)} [query]
     */
    url(path: string, query?: Query | (() => Query)): string;
}
/** @param {number} attempt */
export declare function backoffMs(attempt: number): number;
/**
 * Sleep; reject with the signal's reason if it aborts.
 * @param {number} ms
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
export declare function pause(ms: number, signal: AbortSignal): Promise<void>;
/**
 * Start a wait and return a function for its remaining time, so that a retried poll does not wait longer in total.
 * @param {number} ms
 * @returns {() => number}
 */
export declare function remaining(ms: number): () => number;
