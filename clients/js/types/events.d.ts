import type { Http } from './http.js';
import type * as shapes from '../shapes.d.ts';
export type EventOptions = {
    /**
     * the `offset` of the last event seen; without it, from now on
     */
    since?: number;
    /**
     * instead of every event, once a second what happened in it; `since` means nothing then
     */
    digest?: boolean;
    /**
     * events held for a slow reader, before the socket is closed until it has caught up; 10,000
     */
    bufferMax?: number;
    /**
     * told when it connects, and when it does not
     */
    onState?: (state: 'open' | 'closed', error?: unknown) => void;
    /**
     * ends it
     */
    signal?: AbortSignal;
};
/**
 * @typedef {object} EventOptions
 * @property {number} [since] the `offset` of the last event seen; without it, from now on
 * @property {boolean} [digest] instead of every event, once a second what happened in it; `since` means nothing then
 * @property {number} [bufferMax] events held for a slow reader, before the socket is closed until it has caught up; 10,000
 * @property {(state: 'open' | 'closed', error?: unknown) => void} [onState] told when it connects, and when it does not
 * @property {AbortSignal} [signal] ends it
 */
/**
 * Events in the batches in which they came, for whoever has many to show. After a gap that the server can no longer fill
 * an event `missed` says so.
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
