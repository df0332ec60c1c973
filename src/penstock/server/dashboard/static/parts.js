/** Components of the screens: cards, tiles, tables, empty states. */
import { fill, h, say } from './dom.js'
import { icon } from './icons.js'

/** @import { Child } from './dom.js' */

/**
 * @param {string} title
 * @param {Child} body
 * @param {...Child} actions
 */
export function card(title, body, ...actions) {
  return h('section', { class: 'card', 'aria-label': title }, h('header', {}, h('h2', { text: title }), actions), body)
}

/**
 * Return the header of a screen.
 * @param {string} title
 * @param {{crumbs?: Child, after?: Child}} [more]
 * @param {...Child} actions
 */
export function head(title, { crumbs, after } = {}, ...actions) {
  const titles = h('div', { class: 'titles' }, crumbs && h('nav', { class: 'crumbs', 'aria-label': 'Where you are' }, crumbs),
    h('div', { class: 'row' }, h('h1', { class: 'wrap', text: title, tabindex: -1 }), after))
  return h('header', { class: 'head' }, titles, actions)
}

/**
 * Return a row of figures. `set(value, unit, note, tone)` updates each of them.
 * @param {string} label
 * @param {[string, string][]} entries name and title of each
 */
export function tiles(label, entries) {
  /** @type {Record<string, (value: string, unit?: string, note?: string, tone?: string) => void>} */
  const setters = {}
  const list = h('dl', { class: entries.length > 6 ? 'tiles four' : 'tiles', 'aria-label': label })
  for (const [name, title] of entries) {
    const number = h('span', { text: '–' })
    const small = h('small')
    const figure = h('dd', {}, number, small)
    const beneath = h('dd', { class: 'note' })
    list.append(h('div', { class: 'tile', 'data-tile': name }, h('dt', { text: title }), figure, beneath))
    setters[name] = (value, unit = '', note = '', tone = '') => {
      say(number, value)
      say(small, unit)
      say(beneath, note)
      figure.className = tone
    }
  }
  return { element: list, set: setters }
}

/**
 * @param {string} label
 * @param {(string | [string, string])[]} columns a title, or a title and a class
 * @param {Child[]} [body]
 */
export function table(label, columns, body = []) {
  const titles = columns.map((column) => (Array.isArray(column) ? column : [column, '']))
  const cells = titles.map(([title, kind]) => h('th', { scope: 'col', class: kind || null, text: title }))
  const rows = h('tbody', {}, body)
  const element = h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label },
    h('table', {}, h('thead', {}, h('tr', {}, cells)), rows))
  return { element, body: rows }
}

/** @param {string} text */
export function command(text) {
  const done = h('span', { class: 'hidden-label', 'aria-live': 'polite' })
  const copy = async () => {
    await copyText(text)
    say(done, 'Copied')
  }
  return h('div', { class: 'command' }, h('code', { text, class: 'grow' }),
    h('button', { class: 'btn quiet small', type: 'button', 'aria-label': `Copy: ${text}`, onclick: copy }, icon('copy')), done)
}

/** @param {string} text */
export async function copyText(text) {
  if (navigator.clipboard !== undefined && window.isSecureContext) {
    await navigator.clipboard.writeText(text).catch(() => byHand(text))
  } else {
    byHand(text)
  }
}

/** @param {string} text */
function byHand(text) {
  const area = h('textarea', { value: text, class: 'hidden-label', 'aria-label': 'To copy' })
  document.body.append(area)
  area.select()
  document.execCommand('copy')
  area.remove()
}

/**
 * Return an empty state, with what to do about it.
 * @param {string} title
 * @param {string} text
 * @param {...string} commands
 */
export function empty(title, text, ...commands) {
  return h('div', { class: 'empty' }, h('strong', { text: title }), text && h('p', { text }), commands.map(command))
}

/** @param {string} name */
export const tag = (name, text = name) => h('span', { class: `tag ${name}`, text })

/**
 * @param {string} label
 * @param {[string, string][]} choices value and text
 * @param {string} chosen
 * @param {(value: string) => void} choose
 */
export function segmented(label, choices, chosen, choose) {
  const group = h('div', { class: 'seg', role: 'group', 'aria-label': label })
  fill(group, choices.map(([value, text]) => h('button', {
    type: 'button', 'aria-pressed': String(value === chosen), 'data-value': value, text,
    onclick: () => {
      for (const each of group.children) each.setAttribute('aria-pressed', String(each.getAttribute('data-value') === value))
      choose(value)
    },
  })))
  return group
}

/**
 * @param {[string, Child][]} entries
 */
export function facts(entries) {
  return h('dl', { class: 'facts' }, entries.map(([name, value]) => [h('dt', { text: name }), h('dd', {}, value)]))
}

/**
 * Return a labelled input.
 * @param {string} label
 * @param {HTMLElement} input
 * @param {string} [why]
 */
export function field(label, input, why) {
  const wrong = h('span', { class: 'wrong', role: 'alert' })
  const element = h('label', { class: 'field' }, h('span', { text: label }), input, why && h('span', { class: 'why', text: why }), wrong)
  return {
    element,
    input,
    /** @param {string} [text] */
    refuse(text = '') {
      say(wrong, text)
      input.setAttribute('aria-invalid', String(text !== ''))
    },
  }
}

/** @param {unknown} error */
export function problem(error) {
  const { message, hint } = /** @type {any} */ (error)
  return h('p', { class: 'problem', role: 'alert' }, message ?? String(error), hint ? ` (${hint})` : '')
}
