import type { Http } from './http.js';
import type * as shapes from '../shapes.d.ts';
/** @import { Http } from './http.js' */
/** @import * as shapes from '../shapes.d.ts' */
export declare class Journal {
    _http: Http;
    /** @param {Http} http */
    constructor(http: Http);
    /**
     * Return the journal's offsets, size and consumers.
     * @returns {Promise<shapes.JournalInfo>}
     */
    info(): Promise<shapes.JournalInfo>;
    /**
     * Read events from an offset, by default the earliest, waiting up to `wait_ms` for the first. With a filter by queue
     * or kind, a page may have few events of a long range; continue at `next`.
     * @param {shapes.JournalQuery} [options]
     * @returns {Promise<shapes.JournalPage>}
     */
    events({ from, limit, wait_ms, queue, kinds, signal }?: shapes.JournalQuery): Promise<shapes.JournalPage>;
}
