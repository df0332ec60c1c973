/** JSON with exact whole numbers beyond 2^53: BigInts in JavaScript, plain digits on the wire. */
/**
 * Like JSON.parse, but a whole number that a double cannot represent becomes a BigInt.
 * @param {string} text
 * @returns {any}
 */
export declare function parse(text: string): any;
/**
 * Like JSON.stringify, with BigInts as digits. Values that JSON would silently drop or replace (NaN, a function, a
 * promise, a Map) throw InvalidInput instead.
 * @param {unknown} value
 * @param {number | string} [indent]
 * @returns {string}
 */
export declare function stringify(value: unknown, indent?: number | string): string;
