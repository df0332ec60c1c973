/**
 * Batches concurrent calls into one request.
 *
 * There is no timer: while one request is in flight, the next batch gathers. So sequential calls do not wait, and
 * concurrent calls keep their order.
 */
/**
 * @template Entry, Result
 */
export declare class Batcher<Entry, Result> {
    _send: (entries: Entry[]) => Promise<(Result | Error)[]>;
    _weigh: (entry: Entry) => number;
    _weightMax: number;
    /** @type {{entry: Entry, resolve: (result: Result) => void, reject: (error: unknown) => void}[]} */
    _waiting: {
        entry: Entry;
        resolve: (result: Result) => void;
        reject: (error: unknown) => void;
    }[];
    _sending: boolean;
    /**
     * @param {(entries: Entry[]) => Promise<(Result | Error)[]>} send returns a result or error for each entry, in order
     * @param {{weigh: (entry: Entry) => number, weightMax: number}} limits limits of one request
     */
    constructor(send: (entries: Entry[]) => Promise<(Result | Error)[]>, { weigh, weightMax }: {
        weigh: (entry: Entry) => number;
        weightMax: number;
    });
    /** True if no request is in flight and no call is waiting. */
    get idle(): boolean;
    /**
     * @param {Entry} entry
     * @returns {Promise<Result>}
     */
    join(entry: Entry): Promise<Result>;
    _work(): Promise<void>;
    _take(): {
        entry: Entry;
        resolve: (result: Result) => void;
        reject: (error: unknown) => void;
    }[];
}
/**
 * Send all in one request; if the server refuses it because of one entry, send each half on its own.
 * @template Entry, Result
 * @param {Entry[]} entries
 * @param {(entries: Entry[]) => Promise<Result[]>} send
 * @param {(error: unknown) => boolean} refused
 * @returns {Promise<(Result | Error)[]>}
 */
export declare function sendOrSplit<Entry, Result>(entries: Entry[], send: (entries: Entry[]) => Promise<Result[]>, refused: (error: unknown) => boolean): Promise<(Result | Error)[]>;
