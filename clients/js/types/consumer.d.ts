import type { Http } from './http.js';
export type Work<Message> = {
    /**
     * leases messages, waiting for the first
     */
    lease: (limit: number, signal: AbortSignal) => Promise<Message[]>;
    handle: (message: Message) => Promise<unknown>;
    done: (message: Message) => Promise<unknown>;
    failed: (message: Message, error: unknown) => Promise<unknown>;
    /**
     * releases messages that were not started
     */
    release?: (messages: Message[]) => Promise<unknown>;
};
export type ConsumeOptions = {
    /**
     * messages processed at the same time; default 1
     */
    concurrency?: number;
    /**
     * stops the consumer, as `stop()` does
     */
    signal?: AbortSignal;
    /**
     * called for errors that do not end the consumer
     */
    onError?: (error: unknown) => void;
};
export type Handler<Message> = (message: Message) => unknown;
/**
 * Check the handler and options of a `consume` and return them. A handler that is not a function would fail every
 * message, so it is refused before the first lease.
 * @template {object} Given
 * @param {Given} given
 * @param {string} usage
 * @param {string[]} own options in addition to those of every consumer
 * @returns {Given}
 */
export declare function checkConsume<Given extends object>(given: Given, usage: string, own: string[]): Given;
/** @template Message */
export declare class Consumer<Message> {
    _work: Work<Message>;
    _concurrency: number;
    _onError: (error: unknown) => void;
    _ending: AbortController;
    /** @type {Set<Promise<void>>} */
    _running: Set<Promise<void>>;
    /** Settles when the consumer has ended: stopped, or after a permanent error. */
    done: Promise<void>;
    /**
     * @param {Work<Message>} work
     * @param {Http} http
     * @param {ConsumeOptions} options
     */
    constructor(work: Work<Message>, http: Http, { concurrency, signal, onError }: ConsumeOptions);
    /**
     * Stop leasing, and finish messages in progress.
     * @returns {Promise<void>}
     */
    stop(): Promise<void>;
    _run(): Promise<void>;
    /** @param {Message[]} messages */
    _begin(messages: Message[]): Promise<void>;
    /** @param {Message} message */
    _handle(message: Message): Promise<void>;
}
/**
 * Return the text of an error.
 * @param {unknown} error
 */
export declare function errorText(error: unknown): string;
/**
 * Return the start of the error's stack, which has the innermost calls, if there is one.
 * @param {unknown} error
 * @returns {string | undefined}
 */
export declare function errorStack(error: unknown): string | undefined;
