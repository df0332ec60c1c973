/** Renders payloads: JSON with colours and exact large numbers, text as it is, bytes as hex. */
import { h } from './dom.js'
import { stringify } from './client/json.js'

// An unterminated string matches up to the end of the text; otherwise the search would restart at each of its quotes.
const TOKENS = /("(?:[^"\\]|\\.)*(?:"|\\?$))(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b/g
const SHOWN_CHARACTERS_MAX = 200_000

/** @param {unknown} value */
export function textOf(value) {
  if (value instanceof Uint8Array) return hex(value)
  if (typeof value === 'string') return value
  return stringify(value, 2) ?? 'null'
}

/**
 * Return the start of a payload on one line.
 * @param {unknown} value
 */
export function preview(value) {
  const text = typeof value === 'string' || value instanceof Uint8Array ? textOf(value) : (stringify(value) ?? 'null')
  return text.slice(0, 300).replace(/\s+/g, ' ')
}

/** @param {unknown} value */
export function jsonView(value) {
  const whole = textOf(value)
  const text = whole.slice(0, SHOWN_CHARACTERS_MAX)
  const view = h('pre', { class: 'payload', tabindex: 0, role: 'group', 'aria-label': 'Body' })
  if (typeof value === 'string' || value instanceof Uint8Array) view.append(text)
  else colour(view, text)
  if (text.length < whole.length) view.append(h('em', { class: 'muted', text: `\n… ${whole.length - text.length} more characters` }))
  return view
}

/**
 * @param {Element} view
 * @param {string} text
 */
function colour(view, text) {
  let done = 0
  for (const found of text.matchAll(TOKENS)) {
    const [whole, string, colon, number] = found
    const kind = string ? (colon ? 'j-key' : 'j-str') : number ? 'j-num' : 'j-word'
    const shown = string ?? whole
    view.append(text.slice(done, found.index), h('span', { class: kind, text: shown }))
    done = found.index + shown.length
  }
  view.append(text.slice(done))
}

/** @param {Uint8Array} bytes */
function hex(bytes) {
  const lines = []
  for (let at = 0; at < Math.min(bytes.length, 16_384); at += 16) {
    const part = [...bytes.subarray(at, at + 16)]
    const digits = part.map((byte) => byte.toString(16).padStart(2, '0')).join(' ')
    const signs = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '.')).join('')
    lines.push(`${at.toString(16).padStart(6, '0')}  ${digits.padEnd(47)}  ${signs}`)
  }
  return lines.join('\n')
}
