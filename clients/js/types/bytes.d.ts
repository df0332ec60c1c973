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
 * Return the fields to send for a payload: the payload itself, or bytes and their encoding. `undefined` is refused,
 * because it is usually a variable that was never set or a misspelt field.
 * @param {unknown} payload
 * @returns {{payload: unknown, encoding?: 'base64'}}
 */
export declare function sentPayload(payload: unknown): {
    payload: unknown;
    encoding?: 'base64';
};
/**
 * Return the message with its payload as it was pushed.
 * @template {{payload?: any, encoding?: string | null}} T
 * @param {T} message
 * @returns {T}
 */
export declare function readPayload<T extends {
    payload?: any;
    encoding?: string | null;
}>(message: T): T;
/**
 * Return a unique key. It is not a secret, so weak randomness is good enough on Node 18, which has no global `crypto`.
 * @returns {string}
 */
export declare function newKey(): string;
/** @returns {string} */
export declare function newUuid(): string;
