/** The tree API, `/api/v1`: namespace, task, queue. Messages are settled by their transaction id. */
import { Analytics } from './analytics.js';
import { Consumer } from './consumer.js';
import { Http } from './http.js';
import type { ConnectOptions } from './http.js';
import type { ConsumeOptions, Handler } from './consumer.js';
import type { EventOptions } from './events.js';
import type * as shapes from '../shapes.d.ts';
export type QueenClient = ReturnType<typeof createTree>;
export type Scope = {
    ns: string;
    task?: string;
    queue?: string;
};
export type QueenConsumeOptions = {
    batch?: number;
    wait?: boolean;
    timeout?: number;
};
export type TreeConsumeOptions = Scope & ConsumeOptions & {
    worker?: string;
    options?: QueenConsumeOptions;
};
export type PushEntry = {
    items: (shapes.TreeItem & {
        transactionId: string;
    })[];
    named: boolean[];
    bytes: number;
};
/**
 * @typedef {ReturnType<typeof createTree>} QueenClient
 * @typedef {{ns: string, task?: string, queue?: string}} Scope
 * @typedef {{batch?: number, wait?: boolean, timeout?: number}} QueenConsumeOptions
 * @typedef {Scope & ConsumeOptions & {worker?: string, options?: QueenConsumeOptions}} TreeConsumeOptions
 * @typedef {{items: (shapes.TreeItem & {transactionId: string})[], named: boolean[], bytes: number}} PushEntry
 */
/**
 * @param {ConnectOptions & {baseUrl: string}} options
 * @returns {QueenClient}
 */
export declare function createQueenClient({ baseUrl, ...options }: ConnectOptions & {
    baseUrl: string;
}): QueenClient;
/** @param {Http} http */
export declare function createTree(http: Http): {
    analytics: Analytics;
    /**
     * Create a queue, or change the given options of an existing one.
     * @param {{ns: string, task: string, queue: string, options?: shapes.TreeOptions}} body
     * @returns {Promise<shapes.Configured>}
     */
    configure: (body: {
        ns: string;
        task: string;
        queue: string;
        options?: shapes.TreeOptions;
    }) => Promise<shapes.Configured>;
    /**
     * Push items to any queues; missing queues are created. Each item has a transactionId, given or generated, so that
     * a retry never adds a second message. With `config.batchMode`, all or none are pushed; otherwise concurrent pushes
     * are batched and each item is independent. Throws if none could be pushed.
     * @param {{items: shapes.TreeItem[], config?: {batchMode?: boolean, autoCreate?: boolean}}} body
     * @returns {Promise<shapes.TreePushed>}
     */
    push: ({ items, config }: {
        items: shapes.TreeItem[];
        config?: {
            batchMode?: boolean;
            autoCreate?: boolean;
        };
    }) => Promise<shapes.TreePushed>;
    /**
     * Lease messages of a queue, or of all queues of a task or namespace; with `wait`, wait up to `timeout`
     * milliseconds. The fields of a single message are also beside `messages`; `messages` is empty if there are none.
     * @param {Scope & {wait?: boolean, timeout?: number, batch?: number, worker?: string, signal?: AbortSignal}} options
     * @returns {Promise<shapes.Popped>}
     */
    pop: (options: Scope & {
        wait?: boolean;
        timeout?: number;
        batch?: number;
        worker?: string;
        signal?: AbortSignal;
    }) => Promise<shapes.Popped>;
    /**
     * Settle one message as completed or failed (which may be retried). Given the message rather than its
     * transactionId, only its own lease is settled.
     * @param {string | {transactionId: string, leaseToken?: string}} message
     * @param {'completed' | 'failed'} [status]
     * @param {string} [error]
     * @returns {Promise<shapes.Acknowledged>}
     */
    ack: (message: string | {
        transactionId: string;
        leaseToken?: string;
    }, status?: 'completed' | 'failed', error?: string) => Promise<shapes.Acknowledged>;
    /**
     * Settle messages independently: `stale` means the lease is over, `unknown` that the message does not exist.
     * @param {shapes.Acknowledgment[] | {acknowledgments: shapes.Acknowledgment[]}} acknowledgments
     * @returns {Promise<{processed: number, results: shapes.Acknowledged[]}>}
     */
    ackBatch: (acknowledgments: shapes.Acknowledgment[] | {
        acknowledgments: shapes.Acknowledgment[];
    }) => Promise<{
        processed: number;
        results: shapes.Acknowledged[];
    }>;
    /**
     * Process messages until stopped: a message is completed if its handler returns, and failed if it throws.
     * Call it as with Queen's client, `consume({ ns, task, queue, handler })`, or with the handler as second argument.
     * Queen's `options: { batch, wait, timeout }` are accepted; `concurrency` decides how much to lease and how long to
     * wait.
     * @param {TreeConsumeOptions & {handler?: Handler<shapes.TreeMessage>}} given
     * @param {Handler<shapes.TreeMessage>} [handler]
     * @returns {Consumer<shapes.TreeMessage>}
     */
    consume: (given: TreeConsumeOptions & {
        handler?: Handler<shapes.TreeMessage>;
    }, handler?: Handler<shapes.TreeMessage>) => Consumer<shapes.TreeMessage>;
    /**
     * Yield live events over a WebSocket that reconnects.
     * @param {EventOptions} [options]
     * @returns {AsyncGenerator<shapes.LiveEvent, void, void>}
     */
    events: (options?: EventOptions) => AsyncGenerator<shapes.LiveEvent, void, void>;
    /** Abort all requests in flight. */
    close: () => void;
};
