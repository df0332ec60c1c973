/** Numbers, times and sizes for people. */

const whole = new Intl.NumberFormat('en-GB')
const one = new Intl.NumberFormat('en-GB', { maximumFractionDigits: 1 })
const two = new Intl.NumberFormat('en-GB', { maximumFractionDigits: 2 })
const SIZES = ['B', 'kB', 'MB', 'GB', 'TB']

/** @param {number | bigint | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? '–' : whole.format(value)
}

/**
 * Format a number briefly: 12.3k, 4.5M; exact below ten thousand.
 * @param {number | null | undefined} value
 */
export function short(value) {
  if (value === null || value === undefined) return '–'
  if (Math.abs(value) < 10_000) return whole.format(Math.round(value))
  if (Math.abs(value) < 1e6) return `${one.format(value / 1e3)}k`
  if (Math.abs(value) < 1e9) return `${two.format(value / 1e6)}M`
  return `${two.format(value / 1e9)}G`
}

/**
 * Format a rate per second.
 * @param {number} value
 */
export function rate(value) {
  if (value >= 100) return short(Math.round(value))
  return value >= 10 ? one.format(value) : two.format(value)
}

/** @param {number} share */
export function percent(share) {
  if (share === 0) return '0'
  if (share < 0.0005) return '<0.1'
  return one.format(share * 100)
}

/** @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined) return '–'
  if (ms < 1000) return `${Math.round(ms)} ms`
  const seconds = ms / 1000
  if (seconds < 60) return `${one.format(seconds)} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min${seconds < 600 ? pad(seconds % 60, 's') : ''}`
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h${pad((seconds % 3600) / 60, 'min')}`
  return `${Math.floor(seconds / 86_400)} d${pad((seconds % 86_400) / 3600, 'h')}`
}

/**
 * @param {number} value
 * @param {string} unit
 */
function pad(value, unit) {
  const rounded = Math.floor(value)
  return rounded === 0 ? '' : ` ${rounded} ${unit}`
}

/** @param {number} value */
export function bytes(value) {
  let at = 0
  while (value >= 1000 && at < SIZES.length - 1) {
    value /= 1000
    at += 1
  }
  return `${at === 0 ? value : one.format(value)} ${SIZES[at]}`
}

const clockTime = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' })
const dayTime = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' })

/** @param {number} ms */
export const clock = (ms) => clockTime.format(ms)

/**
 * Format the time of day, with the date if it is not today.
 * @param {number | null | undefined} ms
 */
export function when(ms) {
  if (ms === null || ms === undefined) return '–'
  return new Date(ms).toDateString() === new Date().toDateString() ? clockTime.format(ms) : dayTime.format(ms)
}

/** @param {number} ms */
export const exact = (ms) => new Date(ms).toISOString()

/**
 * @param {number | null | undefined} ms
 * @param {number} now
 */
export function ago(ms, now) {
  if (ms === null || ms === undefined) return 'never'
  const age = Math.max(0, now - ms)
  return age < 1000 ? 'just now' : `${duration(age)} ago`
}

/**
 * @param {number} n
 * @param {string} word
 */
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? '' : 's'}`

/**
 * Return when a message was pushed, from its time-ordered UUID.
 * @param {string} uuid
 */
export function timeOf(uuid) {
  return Number.parseInt(uuid.slice(0, 8) + uuid.slice(9, 13), 16)
}
