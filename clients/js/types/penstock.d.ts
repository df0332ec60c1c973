/** The client of a server and all its APIs. */
import { Analytics } from './analytics.js';
import { Http } from './http.js';
import { Journal } from './journal.js';
import { Queue } from './queue.js';
import { Stream } from './stream.js';
import type { ConnectOptions } from './http.js';
import type { EventOptions } from './events.js';
import type * as shapes from '../shapes.d.ts';
/**
 * Return a client of the server at this address, which may have a path and, in a browser, be relative to the page.
 * It sends nothing yet.
 * @param {string} baseUrl
 * @param {ConnectOptions} [options]
 * @returns {Penstock}
 */
export declare function connect(baseUrl: string, options?: ConnectOptions): Penstock;
export declare class Penstock {
    _http: Http;
    /** The tree API: namespaces, tasks, queues. */
    tree: {
        analytics: Analytics;
        configure: (body: {
            ns: string;
            task: string;
            queue: string;
            options?: shapes.TreeOptions;
        }) => Promise<shapes.Configured>;
        push: ({ items, config }: {
            items: shapes.TreeItem[];
            config?: {
                batchMode?: boolean;
                autoCreate?: boolean;
            };
        }) => Promise<shapes.TreePushed>;
        pop: (options: import("./tree.js").Scope & {
            wait?: boolean;
            timeout?: number;
            batch?: number;
            worker?: string;
            signal?: AbortSignal;
        }) => Promise<shapes.Popped>;
        ack: (message: string | {
            transactionId: string;
            leaseToken?: string;
        }, status?: 'completed' | 'failed', error?: string) => Promise<shapes.Acknowledged>;
        ackBatch: (acknowledgments: shapes.Acknowledgment[] | {
            acknowledgments: shapes.Acknowledgment[];
        }) => Promise<{
            processed: number;
            results: shapes.Acknowledged[];
        }>;
        consume: (given: import("./tree.js").TreeConsumeOptions & {
            handler?: import("./consumer.js").Handler<shapes.TreeMessage>;
        }, handler?: import("./consumer.js").Handler<shapes.TreeMessage>) => import("./consumer.js").Consumer<shapes.TreeMessage>;
        events: (options?: EventOptions) => AsyncGenerator<shapes.LiveEvent, void, void>;
        close: () => void;
    };
    analytics: Analytics;
    journal: Journal;
    /** @type {Map<string, Queue>} */
    _queues: Map<string, Queue>;
    /**
     * @param {string} baseUrl
     * @param {ConnectOptions} [options]
     */
    constructor(baseUrl: string, options?: ConnectOptions);
    /** The address of the server. */
    get baseUrl(): string;
    /**
     * Return a queue by name, without checking that it exists; a queue of the tree API is named `ns/task/queue`.
     * @param {string} name
     * @returns {Queue}
     */
    queue(name: string): Queue;
    /**
     * Return one page of queues; pass `next` as `after` for the next page.
     * @param {{prefix?: string, limit?: number, after?: string, signal?: AbortSignal}} [options]
     * @returns {Promise<{queues: shapes.QueueInfo[], next: string | null}>}
     */
    queues({ prefix, limit, after, signal }?: {
        prefix?: string;
        limit?: number;
        after?: string;
        signal?: AbortSignal;
    }): Promise<{
        queues: shapes.QueueInfo[];
        next: string | null;
    }>;
    /**
     * Yield every queue.
     * @param {{prefix?: string, signal?: AbortSignal}} [options]
     * @returns {AsyncGenerator<shapes.QueueInfo, void, void>}
     */
    allQueues({ prefix, signal }?: {
        prefix?: string;
        signal?: AbortSignal;
    }): AsyncGenerator<shapes.QueueInfo, void, void>;
    /**
     * Return a stream by name, without checking that it exists.
     * @param {string} name
     * @returns {Stream}
     */
    stream(name: string): Stream;
    /**
     * Return one page of streams.
     * @param {{prefix?: string, limit?: number, after?: string}} [options]
     * @returns {Promise<{streams: shapes.StreamInfo[], next: string | null}>}
     */
    streams({ prefix, limit, after }?: {
        prefix?: string;
        limit?: number;
        after?: string;
    }): Promise<{
        streams: shapes.StreamInfo[];
        next: string | null;
    }>;
    /**
     * Yield live events over a WebSocket that reconnects.
     * @param {EventOptions} [options]
     * @returns {AsyncGenerator<shapes.LiveEvent, void, void>}
     */
    events(options?: EventOptions): AsyncGenerator<shapes.LiveEvent, void, void>;
    /**
     * Yield live events in batches as they arrived, for rendering many at once.
     * @param {EventOptions} [options]
     * @returns {AsyncGenerator<shapes.LiveEvent[], void, void>}
     */
    eventBatches(options?: EventOptions): AsyncGenerator<shapes.LiveEvent[], void, void>;
    /**
     * Check that the process responds.
     * @returns {Promise<{status: 'ok'}>}
     */
    health(): Promise<{
        status: 'ok';
    }>;
    /**
     * Check whether the server is ready: store, disk and write-ahead log.
     * @returns {Promise<{ready: boolean, checks: Record<string, string>}>}
     */
    ready(): Promise<{
        ready: boolean;
        checks: Record<string, string>;
    }>;
    /**
     * Return the metrics in Prometheus text format.
     * @returns {Promise<string>}
     */
    metrics(): Promise<string>;
    /**
     * Send any other request, with the same retries, errors and exact numbers.
     * @param {string} method
     * @param {string} path
     * @param {import('./http.js').Ask} [ask]
     * @returns {Promise<any>}
     */
    request(method: string, path: string, ask?: import('./http.js').Ask): Promise<any>;
    /** Abort all requests in flight. */
    close(): void;
}
