/** Converts between Uint8Array and base64, the encoding of bytes in JSON. */
import { InvalidInput } from './errors.js'

/**
 * @param {Uint8Array} bytes
 * @returns {string}
 */
export function toBase64(bytes) {
  let text = ''
  for (let start = 0; start < bytes.length; start += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(start, start + 0x8000))
  }
  return btoa(text)
}

/**
 * @param {string} text
 * @returns {Uint8Array}
 */
export function fromBase64(text) {
  const binary = atob(text)
  const bytes = new Uint8Array(binary.length)
  for (let index = 0; index < binary.length; index++) bytes[index] = binary.charCodeAt(index)
  return bytes
}

/**
 * Return the fields to send for a payload: the payload itself, or bytes and their encoding. `undefined` is refused,
 * because it is usually a variable that was never set or a misspelt field.
 * @param {unknown} payload
 * @returns {{payload: unknown, encoding?: 'base64'}}
 */
export function sentPayload(payload) {
  if (payload instanceof ArrayBuffer) return sentPayload(new Uint8Array(payload))
  if (payload instanceof Uint8Array) return { payload: toBase64(payload), encoding: 'base64' }
  if (payload === undefined) {
    throw new InvalidInput('payload: expected a value, got undefined', { code: 'invalid_value', field: 'payload', hint: 'to push nothing, push null' })
  }
  return { payload }
}

/**
 * Return the message with its payload as it was pushed.
 * @template {{payload?: any, encoding?: string | null}} T
 * @param {T} message
 * @returns {T}
 */
export function readPayload(message) {
  if (message.encoding === 'base64') {
    message.payload = fromBase64(message.payload)
    delete message.encoding
  }
  return message
}

/**
 * Return a unique key. It is not a secret, so weak randomness is good enough on Node 18, which has no global `crypto`.
 * @returns {string}
 */
export function newKey() {
  const parts = new Uint32Array(4)
  if (globalThis.crypto?.getRandomValues) globalThis.crypto.getRandomValues(parts)
  else parts.forEach((_, index) => (parts[index] = Math.random() * 2 ** 32))
  return Array.from(parts, (part) => part.toString(16).padStart(8, '0')).join('')
}

/** @returns {string} */
export function newUuid() {
  const hex = newKey()
  const variant = '89ab'[parseInt(hex[16], 16) & 3]
  return [hex.slice(0, 8), hex.slice(8, 12), `4${hex.slice(13, 16)}`, variant + hex.slice(17, 20), hex.slice(20)].join('-')
}
