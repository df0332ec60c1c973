/** Finds queues by any part of their name, a message by `queue#id`, and screens. */
import { h, fill } from './dom.js'
import { icon } from './icons.js'
import { short } from './format.js'
import { go, to } from './router.js'

/** @import { App } from './app.js' */

const SHOWN_MAX = 12
const SCREENS = ['overview', 'queues', 'dead', 'streams', 'workers', 'pipeline']

/** @param {App} app */
export function search(app) {
  const input = h('input', {
    type: 'text', role: 'combobox', placeholder: 'Search queues, or queue#id', 'aria-label': 'Search queues', autocomplete: 'off', spellcheck: 'false',
    'aria-expanded': 'false', 'aria-controls': 'found', 'aria-autocomplete': 'list',
  })
  const list = h('ul', { class: 'found', id: 'found', role: 'listbox', 'aria-label': 'Found', hidden: true })
  /** @type {{text: string, note: string, address: string}[]} */
  let found = []
  let chosen = 0
  const draw = () => {
    const open = found.length > 0 && document.activeElement === input
    list.hidden = !open
    input.setAttribute('aria-expanded', String(open))
    if (open) input.setAttribute('aria-activedescendant', `found-${chosen}`)
    else input.removeAttribute('aria-activedescendant')
    fill(list, found.map(({ text, note, address }, n) => h('li', {
      role: 'option', id: `found-${n}`, 'aria-selected': String(n === chosen),
      onmousedown: (/** @type {Event} */ event) => (event.preventDefault(), pick(address)),
    }, h('span', { class: 'clip', text }), h('span', { class: 'muted num', text: note }))))
  }
  const pick = (/** @type {string} */ address) => {
    input.value = ''
    found = []
    input.blur()
    draw()
    go(address)
  }
  const look = () => {
    found = lookFor(app, input.value.trim())
    chosen = 0
    draw()
  }
  input.addEventListener('focus', () => void app.catalog.load()?.then(look))
  input.addEventListener('input', look)
  input.addEventListener('blur', draw)
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') input.blur()
    else if (event.key === 'Enter' && found.length > 0) pick(found[chosen].address)
    else if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      chosen = (chosen + (event.key === 'ArrowDown' ? 1 : found.length - 1)) % Math.max(1, found.length)
      draw()
      event.preventDefault()
    }
  })
  return h('div', { class: 'search', role: 'search' }, icon('search'), input, h('kbd', { text: '/', 'aria-hidden': 'true' }), list)
}

/**
 * @param {App} app
 * @param {string} text
 */
function lookFor(app, text) {
  if (text === '') return []
  const message = /^(.+)#(\d+)$/.exec(text)
  if (message) return [{ text: `Message ${message[2]} of ${message[1]}`, note: '', address: to('message', [message[1], message[2]]) }]
  const wanted = text.toLowerCase()
  const found = []
  for (const entry of app.catalog.queues.values()) {
    const at = entry.name.toLowerCase().indexOf(wanted)
    if (at >= 0) found.push({ at, entry })
  }
  found.sort((a, b) => a.at - b.at || a.entry.name.length - b.entry.name.length || (a.entry.name < b.entry.name ? -1 : 1))
  const screens = SCREENS.filter((name) => name.startsWith(wanted)).map((name) => ({ text: name, note: 'screen', address: to(name) }))
  const queues = found.slice(0, SHOWN_MAX).map(({ entry }) => ({
    text: entry.name, note: `${short(entry.ready + entry.scheduled)} waiting`, address: to('queue', [entry.name]),
  }))
  return [...queues, ...screens]
}
