/**
 * @param {Uint8Array} bytes
 * @returns {string}
 */
export declare function toBase64(bytes: Uint8Array): string;
/**
 * @param {string} text
 * @returns {Uint8Array}
 */
export declare function fromBase64(text: string): Uint8Array;
/**
 * Return what is sent of a payload: the payload itself, or bytes and their encoding. There is always a payload:
 * `undefined` is a variable that was never set or a misspelt field.
 * @param {unknown} payload
 * @returns {{payload: unknown, encoding?: 'base64'}}
 */
export declare function sentPayload(payload: unknown): {
    payload: unknown;
    encoding?: 'base64';
};
/**
 * A message with its payload as it was pushed.
 * @template {{payload?: any, encoding?: string | null}} T
 * @param {T} message
 * @returns {T}
 */
export declare function readPayload<T extends {
    payload?: any;
    encoding?: string | null;
}>(message: T): T;
/**
 * A key that nobody else makes. It is no secret, so where there is no good randomness (Node 18), any will do.
 * @returns {string}
 */
export declare function newKey(): string;
/** @returns {string} */
export declare function newUuid(): string;
