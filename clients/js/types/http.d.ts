/** Codes that fewer messages may not meet. */
export declare const FULL: string[];
export type ConnectOptions = {
    /**
     * the server's, or a queue's key
     */
    token?: string;
    /**
     * milliseconds for one request, beyond what it asks the server to wait; 30,000
     */
    timeout?: number;
    /**
     * how often to try again; 3
     */
    retryAttempts?: number;
    /**
     * another than the global one
     */
    fetch?: typeof fetch;
};
export type Query = Record<string, unknown>;
export type Ask = {
    /**
     * as a function, it is asked anew for every attempt
     */
    query?: Query | (() => Query);
    /**
     * sent as JSON
     */
    body?: unknown;
    /**
     * sent as it is; with `headers` that say what it is
     */
    raw?: BodyInit;
    headers?: Record<string, string>;
    signal?: AbortSignal;
    /**
     * how long the server may wait before it answers
     */
    waitMs?: number;
    /**
     * carried out twice it does no harm; true
     */
    repeatable?: boolean;
    /**
     * a full queue is for the caller to see, who then tries with less
     */
    share?: boolean;
    /**
     * statuses that are answers, too
     */
    accept?: number[];
};
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
export declare class Http {
    baseUrl: string;
    token: string | undefined;
    _timeout: number;
    _retryAttempts: number;
    _fetch: typeof fetch;
    /** @type {Set<AbortController>} */
    _underWay: Set<AbortController>;
    closed: boolean;
    /**
     * @param {string} baseUrl
     * @param {ConnectOptions} [options]
     */
    constructor(baseUrl: string, { token, timeout, retryAttempts, fetch }?: ConnectOptions);
    /** Give up on all that is under way. */
    close(): void;
    /**
     * A signal that is aborted with this client, or by the caller's; call `release` when it is no longer needed.
     * @param {AbortSignal} [signal]
     * @returns {{controller: AbortController, release: () => void}}
     */
    controller(signal?: AbortSignal): {
        controller: AbortController;
        release: () => void;
    };
    /**
     * The answer's JSON; undefined of an empty one.
     * @param {string} method
     * @param {string} path
     * @param {Ask} [ask]
     * @returns {Promise<any>}
     */
    json(method: string, path: string, ask?: Ask): Promise<any>;
    /**
     * The answer's JSON, and whether an earlier attempt may have been carried out as well.
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
     * The answer as text.
     * @param {string} path
     * @param {Ask} [ask]
     * @returns {Promise<string>}
     */
    text(path: string, ask?: Ask): Promise<string>;
    /**
     * The answer itself, to be read as it comes, for as long as it takes; `release` it then.
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
 * Wait, unless the signal ends it, with its reason.
 * @param {number} ms
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
export declare function pause(ms: number, signal: AbortSignal): Promise<void>;
/**
 * How much is left of a wait that begins now, whenever it is asked: a poll that has to be repeated waits no longer.
 * @param {number} ms
 * @returns {() => number}
 */
export declare function remaining(ms: number): () => number;
