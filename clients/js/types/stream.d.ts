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
     * Create the stream; does nothing if it exists with the same options.
     * @param {shapes.StreamOptions} [options]
     * @returns {Promise<shapes.StreamInfo>}
     */
    create(options?: shapes.StreamOptions): Promise<shapes.StreamInfo>;
    /**
     * Return the stream with its segments and consumers.
     * @returns {Promise<shapes.StreamDetail>}
     */
    info(): Promise<shapes.StreamDetail>;
    /**
     * @param {shapes.StreamOptions} changes
     * @returns {Promise<shapes.StreamInfo>}
     */
    configure(changes: shapes.StreamOptions): Promise<shapes.StreamInfo>;
    /**
     * Delete the stream; with `force`, even if it has consumers.
     * @param {{force?: boolean}} [options]
     * @returns {Promise<{dropped: string}>}
     */
    drop({ force }?: {
        force?: boolean;
    }): Promise<{
        dropped: string;
    }>;
    /**
     * Remove the oldest segments that no consumer needs.
     * @param {{before?: number, force?: boolean}} [options]
     * @returns {Promise<shapes.Trimmed>}
     */
    trim(options?: {
        before?: number;
        force?: boolean;
    }): Promise<shapes.Trimmed>;
    /**
     * Append records, all or none: strings as text, Uint8Arrays as bytes, anything else as JSON. Resolves once they are
     * durable; neither a retry nor another append with the same `key` within 15 minutes adds them again.
     * @param {unknown[]} records
     * @param {{key?: string}} [options]
     * @returns {Promise<shapes.Appended>}
     */
    append(records: unknown[], { key }?: {
        key?: string;
    }): Promise<shapes.Appended>;
    /**
     * Read records from an offset, by default the earliest, waiting up to `wait_ms` for the first.
     * @param {shapes.ReadOptions} [options]
     * @returns {Promise<shapes.RecordPage>}
     */
    read({ from, limit, wait_ms, signal }?: shapes.ReadOptions): Promise<shapes.RecordPage>;
    /**
     * Read the records after a consumer's offset, waiting up to `wait_ms` for the first.
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
     * Yield every record from an offset, and new ones as they arrive, across server outages, until the signal aborts.
     * @param {{from?: number, limit?: number, signal?: AbortSignal}} [options]
     * @returns {AsyncGenerator<shapes.StreamRecord, void, void>}
     */
    follow({ from, limit, signal }?: {
        from?: number;
        limit?: number;
        signal?: AbortSignal;
    }): AsyncGenerator<shapes.StreamRecord, void, void>;
    /**
     * Like `follow`, from a consumer's offset, which is committed when the loop asks for the next page: records yielded
     * since the last commit are read again.
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
     * Create a consumer, with a unique id unless one is given.
     * @param {string} [consumer]
     * @returns {Promise<shapes.StreamConsumer>}
     */
    addConsumer(consumer?: string): Promise<shapes.StreamConsumer>;
    /**
     * Return a consumer with its offset and lag.
     * @param {string} consumer
     * @returns {Promise<shapes.StreamConsumer>}
     */
    consumer(consumer: string): Promise<shapes.StreamConsumer>;
    /**
     * Commit an offset: the last record processed. It moves back only with `force`.
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
