import type { Http } from './http.js';
import type * as shapes from '../shapes.d.ts';
/** @import { Http } from './http.js' */
/** @import * as shapes from '../shapes.d.ts' */
export declare class Journal {
    _http: Http;
    /** @param {Http} http */
    constructor(http: Http);
    /**
     * How far it goes, and who reads it.
     * @returns {Promise<shapes.JournalInfo>}
     */
    info(): Promise<shapes.JournalInfo>;
    /**
     * Events from an offset on, by default the earliest kept, waiting up to `wait_ms` for the first. Those of one queue,
     * or of some kinds, may be few on a page that goes far: read on from `next`.
     * @param {shapes.JournalQuery} [options]
     * @returns {Promise<shapes.JournalPage>}
     */
    events({ from, limit, wait_ms, queue, kinds, signal }?: shapes.JournalQuery): Promise<shapes.JournalPage>;
}
