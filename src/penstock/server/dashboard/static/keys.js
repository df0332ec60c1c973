/** Keyboard shortcuts: `/` searches, `g` and a letter opens a screen, `?` lists them. */
import { show } from './dialog.js'
import { h } from './dom.js'
import { go, to } from './router.js'

/** @import { App } from './app.js' */

/** @type {Record<string, [string, string]>} */
const PLACES = {
  o: ['overview', 'Overview'],
  q: ['queues', 'Queues'],
  d: ['dead', 'Dead letters'],
  s: ['streams', 'Streams'],
  w: ['workers', 'Workers'],
  p: ['pipeline', 'Pipeline'],
}
const PATIENCE_MS = 1500

/** @param {App} app */
export function listenToKeys(app) {
  let going = -Infinity
  addEventListener('keydown', (event) => {
    const target = /** @type {HTMLElement} */ (event.target)
    const writing = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)
    if (writing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return
    const place = PLACES[event.key]
    if (place !== undefined && event.timeStamp - going < PATIENCE_MS) go(to(place[0]))
    else if (event.key === '/') /** @type {HTMLElement} */ (document.querySelector('.search input')).focus()
    else if (event.key === '?') help()
    else if (event.key === 'p') app.live.toggle()
    else if (event.key !== 'g') return
    going = event.key === 'g' ? event.timeStamp : -Infinity
    event.preventDefault()
  })
}

export function help() {
  const entry = (/** @type {string[]} */ keys, /** @type {string} */ text) => [
    h('dt', { class: 'row' }, keys.map((key) => h('kbd', { text: key }))), h('dd', { text })]
  show('Keyboard', h('dl', { class: 'facts' }, entry(['/'], 'Search queues'),
    Object.entries(PLACES).map(([key, [, title]]) => entry(['g', key], title)),
    entry(['p'], 'Pause or resume live updates'), entry(['?'], 'This help'), entry(['Esc'], 'Close')))
}
