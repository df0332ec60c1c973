/** A form for queue options. Their names, limits and texts come from the server's OpenAPI description. */
import { attempt } from './dialog.js'
import { fill, h } from './dom.js'
import { duration } from './format.js'
import { field, problem } from './parts.js'

/** @import { App } from './app.js' */

/** @param {string} option */
function titleOf(option) {
  const words = option.replace(/_ms$/, ', ms').replaceAll('_', ' ').replace(/^(dlq|ttl)\b/, (known) => known.toUpperCase())
  return words[0].toUpperCase() + words.slice(1)
}

/** @param {unknown} value */
function written(value) {
  return value === null ? '' : String(value)
}

/** @type {Promise<Record<string, Rule>> | undefined} */
let described

/**
 * @typedef {object} Rule
 * @property {string} why what the option does
 * @property {string[]} [choices]
 * @property {number} [least]
 * @property {number} [most]
 * @property {boolean} whole
 * @property {boolean} optional
 * @property {boolean} yesNo
 * @property {boolean} named whether, beside yes and no, it may be the name of a queue
 * @property {number} [above]
 */

/** @param {App} app */
function rules(app) {
  described ??= app.client.request('GET', '/openapi.json').then((document) => {
    const { properties } = document.components.schemas.QueueOptions
    return Object.fromEntries(Object.entries(properties).map(([name, schema]) => [name, ruleOf(schema)]))
  })
  described.catch(() => (described = undefined))
  return described
}

/** @param {any} schema @returns {Rule} */
function ruleOf(schema) {
  const kinds = schema.anyOf ?? [schema]
  const number = kinds.find((/** @type {any} */ kind) => kind.type === 'integer' || kind.type === 'number')
  return {
    why: schema.description.replaceAll('`', ''),
    choices: kinds.find((/** @type {any} */ kind) => kind.enum)?.enum,
    least: number?.minimum,
    above: number?.exclusiveMinimum,
    most: number?.maximum,
    whole: number?.type === 'integer',
    optional: kinds.some((/** @type {any} */ kind) => kind.type === 'null'),
    yesNo: kinds.some((/** @type {any} */ kind) => kind.type === 'boolean'),
    named: kinds.some((/** @type {any} */ kind) => kind.type === 'boolean') && kinds.some((/** @type {any} */ kind) => kind.type === 'string'),
  }
}

/**
 * Return the parsed value, or what is wrong with the input.
 * @param {Rule} rule
 * @param {string} text
 * @returns {{value?: unknown, wrong?: string}}
 */
export function readOption(rule, text) {
  if (rule.named && text.trim() === '') return { wrong: 'Enter true, false or the name of a queue' }
  if (rule.named && text.trim() !== 'true' && text.trim() !== 'false') return { value: text.trim() }
  if (rule.yesNo) return { value: text.trim() === 'true' }
  if (rule.choices) return { value: text }
  if (text.trim() === '') return rule.optional ? { value: null } : { wrong: 'Enter a number' }
  const value = Number(text)
  if (!Number.isFinite(value)) return { wrong: 'Not a number' }
  if (rule.whole && !Number.isInteger(value)) return { wrong: 'Enter a whole number' }
  if (rule.least !== undefined && value < rule.least) return { wrong: `At least ${rule.least}` }
  if (rule.above !== undefined && value <= rule.above) return { wrong: `Above ${rule.above}` }
  if (rule.most !== undefined && value > rule.most) return { wrong: `At most ${rule.most}` }
  return { value }
}

/**
 * @param {App} app
 * @param {string} name
 * @param {AbortSignal} signal
 */
export function optionsForm(app, name, signal) {
  const place = h('div', { class: 'body' }, h('p', { class: 'muted', text: 'Loading…' }))
  const load = async () => {
    try {
      const [known, info] = await Promise.all([rules(app), app.client.queue(name).info()])
      if (!signal.aborted) fill(place, form(app, name, known, /** @type {any} */ (info).options))
    } catch (error) {
      fill(place, problem(error))
    }
  }
  void load()
  return place
}

/**
 * @param {App} app
 * @param {string} name
 * @param {Record<string, Rule>} known
 * @param {Record<string, any>} current
 */
function form(app, name, known, current) {
  const entries = Object.entries(known).map(([option, rule]) => {
    const shown = written(current[option])
    const input = inputFor(rule, shown)
    input.name = option
    input.disabled = !app.mayChange
    const note = option.endsWith('_ms') && current[option] >= 1000 ? `${duration(current[option])} · ${rule.why}` : rule.why
    return { option, rule, shown, ...field(titleOf(option), input, note) }
  })
  const check = () => {
    /** @type {Record<string, unknown>} */
    const changes = {}
    let good = true
    for (const { option, rule, shown, input, refuse } of entries) {
      const text = /** @type {HTMLInputElement} */ (input).value
      const { value, wrong } = readOption(rule, text)
      refuse(wrong)
      good = good && wrong === undefined
      if (wrong === undefined && text !== shown) changes[option] = value
    }
    save.disabled = !good || Object.keys(changes).length === 0
    return changes
  }
  const save = h('button', { class: 'btn primary', type: 'submit', text: 'Save', disabled: true })
  return h('form', {
    class: 'stack',
    'aria-label': 'Options',
    novalidate: true,
    oninput: check,
    onsubmit: async (/** @type {Event} */ event) => {
      event.preventDefault()
      const changes = check()
      await attempt(async () => {
        try {
          const info = /** @type {any} */ (await app.client.queue(name).configure(changes))
          for (const entry of entries) entry.shown = written(info.options[entry.option])
          check()
          return 'Saved. Lease time, priority, window and limits apply at once; delay and time to live apply to new messages.'
        } catch (error) {
          entries.find(({ option }) => option === /** @type {any} */ (error).field)?.refuse(String(/** @type {any} */ (error).message))
          throw error
        }
      })
    },
  }, h('div', { class: 'fields' }, entries.map(({ element }) => element)), app.mayChange && h('div', { class: 'row' }, save))
}

/**
 * @param {Rule} rule
 * @param {string} shown
 * @returns {HTMLInputElement | HTMLSelectElement}
 */
function inputFor(rule, shown) {
  if (rule.named) return h('input', { type: 'text', autocomplete: 'off', value: shown })
  const choices = rule.yesNo ? ['true', 'false'] : rule.choices
  if (choices === undefined) return h('input', { type: 'text', inputmode: 'decimal', autocomplete: 'off', value: shown, placeholder: rule.optional ? 'none' : '' })
  const words = /** @type {Record<string, string>} */ ({ true: 'on', false: 'off' })
  return h('select', {}, choices.map((value) => h('option', { value, text: words[value] ?? value, selected: value === shown })))
}
