/** JSON with exact whole numbers beyond 2^53: BigInts in JavaScript, plain digits on the wire. */

import { InvalidInput } from './errors.js'

const MANY_DIGITS = /\d{16}/
const NEXT = /"|-?[1-9]\d{15,}/g
const NAME = Math.random().toString(36).slice(2)

/**
 * Like JSON.parse, but a whole number that a double cannot represent becomes a BigInt.
 * @param {string} text
 * @returns {any}
 */
export function parse(text) {
  if (!MANY_DIGITS.test(text)) return JSON.parse(text)
  let mark = `bigint:${NAME}:`
  while (text.includes(mark)) mark = `bigint:${Math.random().toString(36).slice(2)}:`
  const marked = markBig(text, mark)
  if (marked === text) return JSON.parse(text)
  return JSON.parse(marked, (_, value) =>
    typeof value === 'string' && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value,
  )
}

/**
 * Return the text with every large whole number as a marked string.
 * @param {string} text
 * @param {string} mark
 */
function markBig(text, mark) {
  const parts = []
  let done = 0
  NEXT.lastIndex = 0
  for (let found; (found = NEXT.exec(text)); ) {
    const [token] = found
    if (token === '"') {
      NEXT.lastIndex = endOfString(text, found.index)
      continue
    }
    const end = found.index + token.length
    const partOfDecimal = /[.eE+\d]/.test(text[found.index - 1] ?? '') || /[.eE]/.test(text[end] ?? '')
    if (partOfDecimal || Number.isSafeInteger(Number(token))) continue
    parts.push(text.slice(done, found.index), '"', mark, token, '"')
    done = end
  }
  parts.push(text.slice(done))
  return parts.join('')
}

/**
 * Return the end of the string that starts here.
 * @param {string} text
 * @param {number} start
 */
function endOfString(text, start) {
  let end = start
  for (;;) {
    end = text.indexOf('"', end + 1)
    if (end < 0) return text.length
    let slashes = 0
    while (text[end - 1 - slashes] === '\\') slashes++
    if (slashes % 2 === 0) return end + 1
  }
}

/**
 * Like JSON.stringify, with BigInts as digits. Values that JSON would silently drop or replace (NaN, a function, a
 * promise, a Map) throw InvalidInput instead.
 * @param {unknown} value
 * @param {number | string} [indent]
 * @returns {string}
 */
export function stringify(value, indent) {
  const mark = `bigint:${NAME}${Math.random().toString(36).slice(2)}:`
  let any = false
  const text = JSON.stringify(
    value,
    /** @this {any} */
    function (name, shown) {
      // The program may have defined BigInt.prototype.toJSON, so check the original value.
      if (typeof this[name] !== 'bigint') return writable(name, shown)
      any = true
      return mark + String(this[name])
    },
    indent,
  )
  return any ? text.replace(new RegExp(`"${mark}(-?\\d+)"`, 'g'), '$1') : text
}

/**
 * Return the value if JSON can express it, or throw.
 * @param {string} name of the field that has it
 * @param {unknown} value
 */
function writable(name, value) {
  const wrong =
    typeof value === 'function' || typeof value === 'symbol'
      ? `a ${typeof value}`
      : typeof value === 'number' && !Number.isFinite(value)
        ? String(value)
        : value instanceof Promise || value instanceof Map || value instanceof Set
          ? `a ${value.constructor.name}`
          : undefined
  if (wrong === undefined) return value
  throw new InvalidInput(`${name === '' ? 'the value' : JSON.stringify(name)} is ${wrong}, which JSON cannot express`, {
    code: 'invalid_value',
    field: name || undefined,
    hint: value instanceof Promise ? 'await it first' : 'send null, a string, a finite number, a list or a plain object',
  })
}
