/** The way to a server and all its faces. */
import { Analytics } from './analytics.js';
import { Http } from './http.js';
import { Journal } from './journal.js';
import { Queue } from './queue.js';
import { Stream } from './stream.js';
import type { ConnectOptions } from './http.js';
import type { EventOptions } from './events.js';
import type * as shapes from '../shapes.d.ts';
/**
 * A client of the server at this address, which may have a path, and in a browser may be relative to the page.
 * Nothing is sent yet.
 * @param {string} baseUrl
 * @param {ConnectOptions} [options]
 * @returns {Penstock}
 */
export declare function connect(baseUrl: string, options?: ConnectOptions): Penstock;
export declare class Penstock {
    _http: Http;
    /** The tree face: namespaces, tasks, queues. */
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
    /** Where the server is. */
    get baseUrl(): string;
    /**
     * A queue by its name, whether it is there or not; one of the tree is named `ns/task/queue`.
     * @param {string} name
     * @returns {Queue}
     */
    queue(name: string): Queue;
    /**
     * One page of all queues; `next` is where the next goes on after.
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
     * Every queue.
     * @param {{prefix?: string, signal?: AbortSignal}} [options]
     * @returns {AsyncGenerator<shapes.QueueInfo, void, void>}
     */
    allQueues({ prefix, signal }?: {
        prefix?: string;
        signal?: AbortSignal;
    }): AsyncGenerator<shapes.QueueInfo, void, void>;
    /**
     * A stream by its name, whether it is there or not.
     * @param {string} name
     * @returns {Stream}
     */
    stream(name: string): Stream;
    /**
     * One page of all streams.
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
     * All that happens, as it happens, over a WebSocket that is opened again when it breaks.
     * @param {EventOptions} [options]
     * @returns {AsyncGenerator<shapes.LiveEvent, void, void>}
     */
    events(options?: EventOptions): AsyncGenerator<shapes.LiveEvent, void, void>;
    /**
     * The same in the batches in which they came, for whoever has many to show.
     * @param {EventOptions} [options]
     * @returns {AsyncGenerator<shapes.LiveEvent[], void, void>}
     */
    eventBatches(options?: EventOptions): AsyncGenerator<shapes.LiveEvent[], void, void>;
    /**
     * The process answers.
     * @returns {Promise<{status: 'ok'}>}
     */
    health(): Promise<{
        status: 'ok';
    }>;
    /**
     * Whether store, disk and write-ahead log are fit for work.
     * @returns {Promise<{ready: boolean, checks: Record<string, string>}>}
     */
    ready(): Promise<{
        ready: boolean;
        checks: Record<string, string>;
    }>;
    /**
     * Prometheus metrics, as text.
     * @returns {Promise<string>}
     */
    metrics(): Promise<string>;
    /**
     * Any other call of the server's, with the same retries, errors and exact numbers.
     * @param {string} method
     * @param {string} path
     * @param {import('./http.js').Ask} [ask]
     * @returns {Promise<any>}
     */
    request(method: string, path: string, ask?: import('./http.js').Ask): Promise<any>;
    /** Give up on all that is under way. */
    close(): void;
}
