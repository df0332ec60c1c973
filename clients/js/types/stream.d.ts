import type { Http } from './http.js';
import type * as shapes from '../shapes.d.ts';
export declare class Stream {
    name: string;
    _http: Http;
    _path: string;
    /**
     * @param {Http} http
     * @param {string} name
     */
    constructor(http: Http, name: string);
    /**
     * Make it; nothing happens if it is there just so.
     * @param {shapes.StreamOptions} [options]
     * @returns {Promise<shapes.StreamInfo>}
     */
    create(options?: shapes.StreamOptions): Promise<shapes.StreamInfo>;
    /**
     * With its segments and consumers.
     * @returns {Promise<shapes.StreamDetail>}
     */
    info(): Promise<shapes.StreamDetail>;
    /**
     * @param {shapes.StreamOptions} changes
     * @returns {Promise<shapes.StreamInfo>}
     */
    configure(changes: shapes.StreamOptions): Promise<shapes.StreamInfo>;
    /**
     * Delete it; with `force`, also one that has consumers.
     * @param {{force?: boolean}} [options]
     * @returns {Promise<{dropped: string}>}
     */
    drop({ force }?: {
        force?: boolean;
    }): Promise<{
        dropped: string;
    }>;
    /**
     * Remove the oldest segments that nobody needs.
     * @param {{before?: number, force?: boolean}} [options]
     * @returns {Promise<shapes.Trimmed>}
     */
    trim(options?: {
        before?: number;
        force?: boolean;
    }): Promise<shapes.Trimmed>;
    /**
     * Append records, together: strings as text, Uint8Arrays as bytes, anything else as JSON. Answered when on disk; a
     * repeated request appends nothing, nor does one with the same `key` within 15 minutes.
     * @param {unknown[]} records
     * @param {{key?: string}} [options]
     * @returns {Promise<shapes.Appended>}
     */
    append(records: unknown[], { key }?: {
        key?: string;
    }): Promise<shapes.Appended>;
    /**
     * Records from an offset on, by default the earliest kept, waiting up to `wait_ms` for the first.
     * @param {shapes.ReadOptions} [options]
     * @returns {Promise<shapes.RecordPage>}
     */
    read({ from, limit, wait_ms, signal }?: shapes.ReadOptions): Promise<shapes.RecordPage>;
    /**
     * The records after a consumer's position, waiting up to `wait_ms` for the first.
     * @param {string} consumer
     * @param {{limit?: number, wait_ms?: number, signal?: AbortSignal}} [options]
     * @returns {Promise<shapes.RecordPage>}
     */
    next(consumer: string, { limit, wait_ms, signal }?: {
        limit?: number;
        wait_ms?: number;
        signal?: AbortSignal;
    }): Promise<shapes.RecordPage>;
    /**
     * Every record from an offset on, and those that come, through outages of the server, until the signal ends it.
     * @param {{from?: number, limit?: number, signal?: AbortSignal}} [options]
     * @returns {AsyncGenerator<shapes.StreamRecord, void, void>}
     */
    follow({ from, limit, signal }?: {
        from?: number;
        limit?: number;
        signal?: AbortSignal;
    }): AsyncGenerator<shapes.StreamRecord, void, void>;
    /**
     * As `follow`, from a consumer's position on, which is committed when the next page is asked for: what was handed
     * out before the loop was left comes again.
     * @param {string} consumer
     * @param {{limit?: number, signal?: AbortSignal}} [options]
     * @returns {AsyncGenerator<shapes.StreamRecord, void, void>}
     */
    consume(consumer: string, { limit, signal }?: {
        limit?: number;
        signal?: AbortSignal;
    }): AsyncGenerator<shapes.StreamRecord, void, void>;
    /**
     * @param {AbortSignal | undefined} signal
     * @param {(ending: AbortSignal) => Promise<shapes.StreamRecord[]>} read
     * @returns {AsyncGenerator<shapes.StreamRecord, void, void>}
     */
    _pages(signal: AbortSignal | undefined, read: (ending: AbortSignal) => Promise<shapes.StreamRecord[]>): AsyncGenerator<shapes.StreamRecord, void, void>;
    /** @returns {Promise<shapes.StreamConsumer[]>} */
    consumers(): Promise<shapes.StreamConsumer[]>;
    /**
     * Make a consumer, with a unique id unless one is given.
     * @param {string} [consumer]
     * @returns {Promise<shapes.StreamConsumer>}
     */
    addConsumer(consumer?: string): Promise<shapes.StreamConsumer>;
    /**
     * Where it stands.
     * @param {string} consumer
     * @returns {Promise<shapes.StreamConsumer>}
     */
    consumer(consumer: string): Promise<shapes.StreamConsumer>;
    /**
     * Commit a position: the last record processed. It never moves back without `force`.
     * @param {string} consumer
     * @param {number} offset
     * @param {{force?: boolean}} [options]
     * @returns {Promise<shapes.StreamConsumer>}
     */
    commit(consumer: string, offset: number, { force }?: {
        force?: boolean;
    }): Promise<shapes.StreamConsumer>;
    /**
     * @param {string} consumer
     * @returns {Promise<void>}
     */
    forget(consumer: string): Promise<void>;
}
