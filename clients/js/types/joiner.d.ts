/**
 * Calls that come at the same time become one request.
 *
 * There is no timer: while one request is on its way, the next gathers. So those who call one after the other wait for
 * nothing, and many at once keep their order.
 */
/**
 * @template Entry, Result
 */
export declare class Joiner<Entry, Result> {
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
     * @param {(entries: Entry[]) => Promise<(Result | Error)[]>} send answers each entry, in order, with a result or error
     * @param {{weigh: (entry: Entry) => number, weightMax: number}} limits of one request
     */
    constructor(send: (entries: Entry[]) => Promise<(Result | Error)[]>, { weigh, weightMax }: {
        weigh: (entry: Entry) => number;
        weightMax: number;
    });
    /** Whether nobody waits. */
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
 * Send all at once; when that is refused for what one of them holds, each half on its own.
 * @template Entry, Result
 * @param {Entry[]} entries
 * @param {(entries: Entry[]) => Promise<Result[]>} send
 * @param {(error: unknown) => boolean} refused
 * @returns {Promise<(Result | Error)[]>}
 */
export declare function sendOrSplit<Entry, Result>(entries: Entry[], send: (entries: Entry[]) => Promise<Result[]>, refused: (error: unknown) => boolean): Promise<(Result | Error)[]>;
