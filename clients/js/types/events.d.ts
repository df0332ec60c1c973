import type { Http } from './http.js';
import type * as shapes from '../shapes.d.ts';
export type EventOptions = {
    /**
     * the `offset` of the last event seen; default: only new events
     */
    since?: number;
    /**
     * receive one summary per second instead of every event; ignores `since`
     */
    digest?: boolean;
    /**
     * events buffered for a slow reader before the socket closes until it catches up; default 10,000
     */
    bufferMax?: number;
    /**
     * called on connect and disconnect
     */
    onState?: (state: 'open' | 'closed', error?: unknown) => void;
    /**
     * ends the events
     */
    signal?: AbortSignal;
};
/**
 * @typedef {object} EventOptions
 * @property {number} [since] the `offset` of the last event seen; default: only new events
 * @property {boolean} [digest] receive one summary per second instead of every event; ignores `since`
 * @property {number} [bufferMax] events buffered for a slow reader before the socket closes until it catches up; default 10,000
 * @property {(state: 'open' | 'closed', error?: unknown) => void} [onState] called on connect and disconnect
 * @property {AbortSignal} [signal] ends the events
 */
/**
 * Yield events in batches as they arrived, for rendering many at once. An event `missed` marks a gap that the server can
 * no longer fill.
 * @param {Http} http
 * @param {EventOptions} [options]
 * @returns {AsyncGenerator<shapes.LiveEvent[], void, void>}
 */
export declare function eventBatches(http: Http, { since, digest, bufferMax, onState, signal }?: EventOptions): AsyncGenerator<shapes.LiveEvent[], void, void>;
/**
 * @param {AsyncGenerator<shapes.LiveEvent[], void, void>} batches
 * @returns {AsyncGenerator<shapes.LiveEvent, void, void>}
 */
export declare function eventsOf(batches: AsyncGenerator<shapes.LiveEvent[], void, void>): AsyncGenerator<shapes.LiveEvent, void, void>;
