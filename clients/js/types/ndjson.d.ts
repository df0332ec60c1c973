/**
 * @param {Response} response
 * @returns {AsyncGenerator<any, void, void>}
 */
export declare function ndjson(response: Response): AsyncGenerator<any, void, void>;
