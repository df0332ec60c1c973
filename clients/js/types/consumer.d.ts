import type { Http } from './http.js';
export type Work<Message> = {
    /**
     * waits for the first
     */
    lease: (limit: number, signal: AbortSignal) => Promise<Message[]>;
    handle: (message: Message) => Promise<unknown>;
    done: (message: Message) => Promise<unknown>;
    failed: (message: Message, error: unknown) => Promise<unknown>;
    /**
     * those that were not begun
     */
    giveBack?: (messages: Message[]) => Promise<unknown>;
};
export type ConsumeOptions = {
    /**
     * messages at work at a time; 1
     */
    concurrency?: number;
    /**
     * stops it, as `stop()` does
     */
    signal?: AbortSignal;
    /**
     * told of what goes wrong without ending it
     */
    onError?: (error: unknown) => void;
};
export type Handler<Message> = (message: Message) => unknown;
/**
 * Check the handler and options of a `consume` and return them. A handler that cannot be called would fail every
 * message, so it is refused before the first is leased.
 * @template {object} Given
 * @param {Given} given
 * @param {string} usage
 * @param {string[]} own options beside those of every consumer
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
    _atWork: Set<Promise<void>>;
    /** Settles when it has ended: stopped, or on an error that trying again cannot mend. */
    done: Promise<void>;
    /**
     * @param {Work<Message>} work
     * @param {Http} http
     * @param {ConsumeOptions} options
     */
    constructor(work: Work<Message>, http: Http, { concurrency, signal, onError }: ConsumeOptions);
    /**
     * Lease no more, and finish what is at work.
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
 * What to say of a failure.
 * @param {unknown} error
 */
export declare function errorText(error: unknown): string;
/**
 * Where it failed, if that is known: the beginning of the stack, which has the innermost calls.
 * @param {unknown} error
 * @returns {string | undefined}
 */
export declare function errorStack(error: unknown): string | undefined;
