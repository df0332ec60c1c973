/** Entry point of the dashboard: sign-in, the page frame, and the current screen. */
import { Catalog } from './catalog.js'
import { Unauthorized } from './client/errors.js'
import { connect } from './client/penstock.js'
import { fill, h, say } from './dom.js'
import { short } from './format.js'
import { icon } from './icons.js'
import { listenToKeys } from './keys.js'
import { Live } from './live.js'
import { problem } from './parts.js'
import { parsePlace, to } from './router.js'
import { search } from './search.js'
import { dead } from './screens/dead.js'
import { message } from './screens/message.js'
import { overview } from './screens/overview.js'
import { pipeline } from './screens/pipeline.js'
import { queue } from './screens/queue.js'
import { queues } from './screens/queues.js'
import { stream } from './screens/stream.js'
import { streams } from './screens/streams.js'
import { workers } from './screens/workers.js'

/** @import { Penstock } from './client/penstock.js' */
/** @import { Place } from './router.js' */

/**
 * @typedef {object} App
 * @property {Penstock} client
 * @property {any} server what `GET /server` tells
 * @property {Live} live
 * @property {Catalog} catalog
 * @property {boolean} mayChange whether this credential may do more than look
 * @property {() => boolean} frozen
 */

/** @typedef {(app: App, place: Place, signal: AbortSignal) => HTMLElement} Screen */

const TOKEN = 'penstock.token'
/** @type {[string, string, Parameters<typeof icon>[0]][]} */
const NAV = [
  ['overview', 'Overview', 'overview'],
  ['queues', 'Queues', 'queues'],
  ['dead', 'Dead letters', 'dead'],
  ['streams', 'Streams', 'streams'],
  ['workers', 'Workers', 'workers'],
  ['pipeline', 'Pipeline', 'pipeline'],
]
/** @type {Record<string, [string, Screen]>} name: the entry that it belongs to, and what shows it */
const SCREENS = {
  overview: ['overview', overview],
  queues: ['queues', queues],
  queue: ['queues', queue],
  message: ['queues', message],
  dead: ['dead', dead],
  streams: ['streams', streams],
  stream: ['streams', stream],
  workers: ['workers', workers],
  pipeline: ['pipeline', pipeline],
}
const root = /** @type {HTMLElement} */ (document.getElementById('app'))

async function start() {
  const token = sessionStorage.getItem(TOKEN) ?? undefined
  const client = connect(new URL('.', document.baseURI).href, { token, retryAttempts: 1 })
  try {
    const server = await client.request('GET', '/server')
    open(client, server)
  } catch (error) {
    if (error instanceof Unauthorized) signIn(token === undefined ? undefined : error)
    else fill(root, h('main', { class: 'page' }, problem(error), h('button', { class: 'btn', text: 'Try again', onclick: start })))
  }
}

/** @param {Error} [error] */
function signIn(error) {
  const input = h('input', { type: 'password', autocomplete: 'current-password', 'aria-label': 'Token', required: true })
  const form = h('form', {
    onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault()
      sessionStorage.setItem(TOKEN, input.value.trim())
      void start()
    },
  }, h('img', { src: 'static/logo.svg', alt: '' }), h('h1', { text: 'Sign in to Penstock' }),
    h('p', { class: 'muted small', text: 'Authentication required: enter the admin token, or the read-only token.' }),
    error && problem(error), h('label', { class: 'field' }, h('span', { text: 'Token' }), input),
    h('button', { class: 'btn primary', type: 'submit', text: 'Sign in' }))
  fill(root, h('main', { class: 'signin' }, form))
  input.focus()
}

/**
 * @param {Penstock} client
 * @param {any} server
 */
function open(client, server) {
  const live = new Live(client)
  if (server.journal) void live.run()
  else live.off = true
  const catalog = new Catalog(client, live)
  /** @type {App} */
  const app = { client, server, live, catalog, mayChange: server.role === 'admin', frozen: () => live.paused }
  const page = h('main', { id: 'page', tabindex: -1 })
  fill(root, h('a', { class: 'skip', href: '#page', text: 'Skip to content', onclick: (/** @type {Event} */ e) => (e.preventDefault(), page.focus()) }),
    frame(app, page))
  listenToKeys(app)
  let leaving = new AbortController()
  const show = (first = false) => {
    leaving.abort()
    leaving = new AbortController()
    const place = parsePlace(location.hash)
    const [entry, screen] = SCREENS[place.screen] ?? SCREENS.overview
    for (const link of root.querySelectorAll('.nav a')) {
      if (link.getAttribute('data-screen') === entry) link.setAttribute('aria-current', 'page')
      else link.removeAttribute('aria-current')
    }
    const element = screen(app, place, leaving.signal)
    element.classList.add('page')
    fill(page, element)
    const title = element.querySelector('h1')
    document.title = title ? `${title.textContent} · Penstock` : 'Penstock'
    scrollTo(0, 0)
    if (!first) title?.focus({ preventScroll: true })
  }
  addEventListener('hashchange', () => show())
  show(true)
}

/**
 * @param {App} app
 * @param {HTMLElement} page
 */
function frame(app, page) {
  const { server } = app
  const deadCount = h('span', { class: 'count' })
  const tellDead = () => say(deadCount, app.catalog.dead > 0 ? short(app.catalog.dead) : '')
  app.catalog.listen(tellDead, new AbortController().signal)
  void app.catalog.load()
  const nav = h('nav', { 'aria-label': 'Screens' }, h('ul', { class: 'nav' }, NAV.map(([name, title, sign]) =>
    h('li', {}, h('a', { href: to(name), 'data-screen': name }, icon(sign), h('span', { text: title }), name === 'dead' && deadCount)))))
  const out = server.guarded && h('button', {
    class: 'btn quiet small', type: 'button', text: 'Sign out',
    onclick: () => (sessionStorage.removeItem(TOKEN), location.reload()),
  })
  const store = server.store === 'sqlite' ? 'SQLite' : 'PostgreSQL'
  const side = h('aside', { class: 'side' },
    h('a', { class: 'brand', href: to('overview') }, h('img', { src: 'static/logo.svg', alt: '' }), 'Penstock'), nav,
    h('footer', {}, liveButton(app), h('span', { text: `${store} · ${server.durability === 'full' ? 'synced' : 'relaxed'} · ${server.version}` }),
      h('span', { class: 'row' }, h('a', { href: 'docs', text: 'API' }), server.role !== 'admin' && h('span', { class: 'tag', text: 'read only' }), out)))
  return h('div', { class: 'shell' }, side, h('div', { class: 'main' },
    h('div', { class: 'bar' }, search(app), h('span', { class: 'grow' }), liveButton(app)), page))
}

/** @param {App} app */
function liveButton({ live }) {
  const words = { live: 'Live', paused: 'Paused', away: 'Reconnecting', off: 'No live events' }
  const text = h('span')
  const hint = h('span', { class: 'hint' })
  const button = h('button', { class: 'live', type: 'button', onclick: () => live.toggle() }, h('i', { class: 'dot' }), text, hint)
  live.watch((state) => {
    button.dataset.state = state
    button.setAttribute('aria-pressed', String(live.paused))
    button.setAttribute('aria-label', `${words[state]}. ${live.paused ? 'Resume' : 'Pause'} live updates`)
    say(text, words[state])
    say(hint, live.paused ? 'resume' : 'pause')
  })
  return button
}

void start()
