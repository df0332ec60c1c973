/** JSON in which whole numbers beyond 2^53 are exact: they are BigInts here, and plain digits on the wire. */
/**
 * As JSON.parse, but a whole number that a double cannot hold becomes a BigInt.
 * @param {string} text
 * @returns {any}
 */
export declare function parse(text: string): any;
/**
 * As JSON.stringify, with BigInts as digits. What JSON would silently drop or replace (NaN, a function, a promise, a
 * Map) throws InvalidInput instead.
 * @param {unknown} value
 * @param {number | string} [indent]
 * @returns {string}
 */
export declare function stringify(value: unknown, indent?: number | string): string;
