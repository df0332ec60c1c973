import { Consumer } from './consumer.js';
import { Batcher } from './batcher.js';
import type { Http } from './http.js';
import type { ConsumeOptions, Handler } from './consumer.js';
import type * as shapes from '../shapes.d.ts';
export type QueueConsumeOptions = ConsumeOptions & {
    visibility_ms?: number;
    worker?: string;
};
/** @typedef {ConsumeOptions & {visibility_ms?: number, worker?: string}} QueueConsumeOptions */
export declare class Queue {
    name: string;
    _http: Http;
    _path: string;
    /** @type {Batcher<shapes.NewMessage & {bytes: number}, shapes.Receipt>} */
    _pushes: Batcher<shapes.NewMessage & {
        bytes: number;
    }, shapes.Receipt>;
    /** @type {Record<string, Batcher<shapes.SettleItem, shapes.Settled>>} */
    _settles: Record<string, Batcher<shapes.SettleItem, shapes.Settled>>;
    /**
     * @param {Http} http
     * @param {string} name
     */
    constructor(http: Http, name: string);
    /**
     * Create the queue; does nothing if it exists with the same options.
     * @param {shapes.QueueOptions} [options]
     * @returns {Promise<shapes.QueueInfo>}
     */
    create(options?: shapes.QueueOptions): Promise<shapes.QueueInfo>;
    /** @returns {Promise<shapes.QueueInfo>} */
    info(): Promise<shapes.QueueInfo>;
    /** @returns {Promise<shapes.QueueStats>} */
    stats(): Promise<shapes.QueueStats>;
    /**
     * Change the given options.
     * @param {shapes.QueueOptions} changes
     * @returns {Promise<shapes.QueueInfo>}
     */
    configure(changes: shapes.QueueOptions): Promise<shapes.QueueInfo>;
    /**
     * Delete the queue; with `force`, even if it holds messages.
     * @param {{force?: boolean}} [options]
     * @returns {Promise<{dropped: string, messages: number}>}
     */
    drop({ force }?: {
        force?: boolean;
    }): Promise<{
        dropped: string;
        messages: number;
    }>;
    /**
     * Pause the queue: messages are no longer leased, but still accepted.
     * @returns {Promise<shapes.QueueInfo>}
     */
    pause(): Promise<shapes.QueueInfo>;
    /** @returns {Promise<shapes.QueueInfo>} */
    resume(): Promise<shapes.QueueInfo>;
    /**
     * Delete all ready and scheduled messages; `dry_run` only counts them.
     * @param {{dry_run?: boolean}} [options]
     * @returns {Promise<{purged: number, dry_run: boolean}>}
     */
    purge({ dry_run }?: {
        dry_run?: boolean;
    }): Promise<{
        purged: number;
        dry_run: boolean;
    }>;
    /** Return free space to the file system. @returns {Promise<{status: 'ok'}>} */
    compact(): Promise<{
        status: 'ok';
    }>;
    /**
     * Push one message. A Uint8Array is pushed as bytes, anything else as JSON, in which a BigInt is a whole number;
     * values that JSON cannot express (undefined, NaN, a function, a promise) are refused.
     * Concurrent pushes are batched, and a retry never adds a second message.
     * @param {unknown} payload
     * @param {shapes.PushOptions} [options]
     * @returns {Promise<shapes.Receipt>}
     */
    push(payload: unknown, options?: shapes.PushOptions): Promise<shapes.Receipt>;
    /**
     * Push messages, all or none.
     * @param {shapes.NewMessage[]} messages
     * @returns {Promise<shapes.Receipt[]>}
     */
    pushMany(messages: shapes.NewMessage[]): Promise<shapes.Receipt[]>;
    /** @param {(shapes.NewMessage & {bytes: number})[]} entries */
    _pushJoined(entries: (shapes.NewMessage & {
        bytes: number;
    })[]): Promise<(Error | shapes.Receipt)[]>;
    /**
     * @param {shapes.NewMessage[]} messages
     * @param {boolean} share
     * @returns {Promise<shapes.Receipt[]>}
     */
    _pushAll(messages: shapes.NewMessage[], share: boolean): Promise<shapes.Receipt[]>;
    /**
     * Lease up to `batch` messages, waiting up to `wait_ms` for the first.
     * @param {shapes.LeaseOptions} [options]
     * @returns {Promise<shapes.LeasedMessage[]>}
     */
    lease({ batch, wait_ms, visibility_ms, worker, signal }?: shapes.LeaseOptions): Promise<shapes.LeasedMessage[]>;
    /**
     * Acknowledge a message. Concurrent acks are batched.
     * @param {shapes.Lease} message
     * @returns {Promise<shapes.Settled>}
     */
    ack({ id, token }: shapes.Lease): Promise<shapes.Settled>;
    /**
     * Report failure: retry after `delay_ms` (default: the queue's backoff), or dead-letter the message after its last
     * attempt. `dead` dead-letters it now, `discard` deletes it.
     * @param {shapes.Lease} message
     * @param {shapes.Failed} [options]
     * @returns {Promise<shapes.Settled>}
     */
    nack({ id, token }: shapes.Lease, { delay_ms, error, traceback, dead, discard }?: shapes.Failed): Promise<shapes.Settled>;
    /**
     * Return a message to the queue; the delivery does not count as an attempt.
     * @param {shapes.Lease} message
     * @returns {Promise<shapes.Settled>}
     */
    release({ id, token }: shapes.Lease): Promise<shapes.Settled>;
    /**
     * Extend a lease to `ms` from now (default: the queue's lease time).
     * @param {shapes.Lease} message
     * @param {number} [ms]
     * @returns {Promise<{lease_expires_at: number}>}
     */
    extend({ id, token }: shapes.Lease, ms?: number): Promise<{
        lease_expires_at: number;
    }>;
    /**
     * Ack, nack and push (to this or other queues) in one transaction.
     * @param {shapes.Transaction} transaction
     * @returns {Promise<{acked: number, nacked: number, message_ids: number[], duplicates: number[]}>}
     */
    transact({ ack, nack, push }: shapes.Transaction): Promise<{
        acked: number;
        nacked: number;
        message_ids: number[];
        duplicates: number[];
    }>;
    /**
     * Process messages until stopped: a message is acked if its handler returns and nacked with the error if it throws;
     * its lease is extended while the handler runs. Can also be called as `consume({ handler, ...options })`.
     * @param {Handler<shapes.LeasedMessage> | QueueConsumeOptions & {handler: Handler<shapes.LeasedMessage>}} handler
     * @param {QueueConsumeOptions} [options]
     * @returns {Consumer<shapes.LeasedMessage>}
     */
    consume(handler: Handler<shapes.LeasedMessage> | (QueueConsumeOptions & {
        handler: Handler<shapes.LeasedMessage>;
    }), options?: QueueConsumeOptions): Consumer<shapes.LeasedMessage>;
    /** @param {QueueConsumeOptions & {handler: Handler<shapes.LeasedMessage>}} given */
    _consume({ handler, visibility_ms, worker, ...options }: QueueConsumeOptions & {
        handler: Handler<shapes.LeasedMessage>;
    }): Consumer<shapes.LeasedMessage>;
    /**
     * @param {string} verb
     * @param {shapes.SettleItem[]} items
     * @returns {Promise<(shapes.Settled | Error)[]>}
     */
    _settleJoined(verb: string, items: shapes.SettleItem[]): Promise<(shapes.Settled | Error)[]>;
    /**
     * @param {string} verb
     * @param {shapes.SettleItem[]} items
     * @returns {Promise<(shapes.Settled | Error)[]>}
     */
    _settleAll(verb: string, items: shapes.SettleItem[]): Promise<(shapes.Settled | Error)[]>;
    /**
     * Return messages without leasing them.
     * @param {{state?: shapes.State, limit?: number, after?: string}} [options]
     * @returns {Promise<shapes.MessagePage>}
     */
    peek({ state, limit, after }?: {
        state?: shapes.State;
        limit?: number;
        after?: string;
    }): Promise<shapes.MessagePage>;
    /**
     * @param {number} id
     * @returns {Promise<shapes.Message>}
     */
    get(id: number): Promise<shapes.Message>;
    /**
     * @param {number} id
     * @returns {Promise<void>}
     */
    remove(id: number): Promise<void>;
    /**
     * Yield a snapshot of all messages of the queue.
     * @param {{signal?: AbortSignal}} [options]
     * @returns {AsyncGenerator<shapes.Message, void, void>}
     */
    export({ signal }?: {
        signal?: AbortSignal;
    }): AsyncGenerator<shapes.Message, void, void>;
    /**
     * Import messages from an export. Messages that the queue holds already are not added again.
     * @param {Iterable<shapes.Message> | AsyncIterable<shapes.Message>} messages
     * @returns {Promise<{imported: number, duplicates: number, skipped: number}>}
     */
    import(messages: Iterable<shapes.Message> | AsyncIterable<shapes.Message>): Promise<{
        imported: number;
        duplicates: number;
        skipped: number;
    }>;
    /**
     * Return dead letters, newest first, with their errors.
     * @param {{limit?: number, after?: string}} [options]
     * @returns {Promise<shapes.MessagePage>}
     */
    deadLetters({ limit, after }?: {
        limit?: number;
        after?: string;
    }): Promise<shapes.MessagePage>;
    /**
     * Move dead letters back into their queue. At a low rate this takes long; abort the signal to stop it.
     * @param {shapes.Redrive} [redrive]
     * @returns {Promise<shapes.Redriven>}
     */
    redrive({ where, rate_per_s, dry_run, signal }?: shapes.Redrive): Promise<shapes.Redriven>;
    /**
     * @param {{dry_run?: boolean}} [options]
     * @returns {Promise<{purged: number, dry_run: boolean}>}
     */
    purgeDeadLetters({ dry_run }?: {
        dry_run?: boolean;
    }): Promise<{
        purged: number;
        dry_run: boolean;
    }>;
    /** @returns {Promise<shapes.Key[]>} */
    keys(): Promise<shapes.Key[]>;
    /**
     * Create an API key; only this response contains it.
     * @param {{name?: string, rights?: ('push' | 'consume' | 'admin')[]}} [options]
     * @returns {Promise<shapes.Key & {key: string}>}
     */
    addKey(options?: {
        name?: string;
        rights?: ('push' | 'consume' | 'admin')[];
    }): Promise<shapes.Key & {
        key: string;
    }>;
    /**
     * @param {string} id
     * @returns {Promise<void>}
     */
    removeKey(id: string): Promise<void>;
}
