/** The tree face, `/api/v1`: namespace, task, queue; messages are settled by their transaction id. */
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
     * Make a queue, or change the options that are given.
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
     * Push items, to any queues; missing queues are made. Each has a transactionId, given or made here, so that a
     * repeated request is never a second message. With `config.batchMode`, all or none; otherwise pushes that come at
     * the same time travel together and each item stands alone. Throws if none could be pushed.
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
     * Lease from a queue, or from all of a task or namespace; with `wait`, for up to `timeout` milliseconds. Of one
     * message its fields stand beside `messages`; of none, `messages` is empty.
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
     * Settle one message: completed, or failed, when it may be tried again. Given the message rather than its
     * transactionId, only the lease it came with is settled.
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
     * Settle many, each by itself: `stale` are no longer leased, `unknown` are not there.
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
     * Work off messages until stopped: those whose handler returns are completed, those whose handler throws failed.
     * Called as Queen's client is, `consume({ ns, task, queue, handler })`, or with the handler as second argument.
     * Queen's `options: { batch, wait, timeout }` are accepted; how much to lease and how long to wait follow from
     * `concurrency` here.
     * @param {TreeConsumeOptions & {handler?: Handler<shapes.TreeMessage>}} given
     * @param {Handler<shapes.TreeMessage>} [handler]
     * @returns {Consumer<shapes.TreeMessage>}
     */
    consume: (given: TreeConsumeOptions & {
        handler?: Handler<shapes.TreeMessage>;
    }, handler?: Handler<shapes.TreeMessage>) => Consumer<shapes.TreeMessage>;
    /**
     * All that happens, as it happens, over a WebSocket that is opened again when it breaks.
     * @param {EventOptions} [options]
     * @returns {AsyncGenerator<shapes.LiveEvent, void, void>}
     */
    events: (options?: EventOptions) => AsyncGenerator<shapes.LiveEvent, void, void>;
    /** Give up on all that is under way. */
    close: () => void;
};
