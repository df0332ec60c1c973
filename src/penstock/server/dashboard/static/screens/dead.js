/** Dead letters by queue, then by error. Redrive and purge act only on what the screen shows, not on later arrivals. */
import { ask, attempt, confirmByName, toast, toasts } from '../dialog.js'
import { fill, h, rows, say } from '../dom.js'
import { ago, count, plural, short } from '../format.js'
import { card, empty, field, head, problem, table, tag } from '../parts.js'
import { go, keep, to } from '../router.js'

/** @import { App } from '../app.js' */
/** @import { Place } from '../router.js' */

/**
 * @param {App} app
 * @param {Place} place
 * @param {AbortSignal} signal
 */
export function dead(app, place, signal) {
  return place.parts[0] ? ofQueue(app, place.parts[0], place, signal) : byQueue(app, signal)
}

/**
 * @param {App} app
 * @param {AbortSignal} signal
 */
function byQueue(app, signal) {
  const list = table('Queues with dead letters', ['Queue', ['Dead', 'num'], ['Ready', 'num'], ['Leased', 'num']])
  const none = h('div')
  const draw = () => {
    const found = [...app.catalog.queues.values()].filter((entry) => entry.dead > 0).sort((a, b) => b.dead - a.dead || (a.name < b.name ? -1 : 1)).slice(0, 500)
    rows(list.body, found, ({ name }) => name, ({ name, dead, ready, leased }) => h('tr', { class: 'link', onclick: () => go(to('dead', [name])) },
      h('td', { class: 'main clip' }, h('a', { href: to('dead', [name]), text: name })), h('td', { class: 'num bad', text: short(dead) }),
      h('td', { class: 'num', text: short(ready) }), h('td', { class: 'num', text: short(leased) })))
    list.element.hidden = found.length === 0
    fill(none, app.catalog.error ? problem(app.catalog.error) : found.length === 0 && (app.catalog.complete
      ? empty('No dead letters', 'Messages that fail all their attempts are listed here, with every error.')
      : h('p', { class: 'empty', text: 'Loading…' })))
  }
  app.catalog.listen(() => (app.frozen() ? undefined : draw()), signal)
  void app.catalog.load()
  draw()
  return h('div', {}, head('Dead letters'), card('By queue', h('div', {}, list.element, none)))
}

/**
 * @param {App} app
 * @param {string} name
 * @param {Place} place
 * @param {AbortSignal} signal
 */
function ofQueue(app, name, place, signal) {
  let contains = place.query.get('contains') ?? ''
  /** @type {Map<string, {group: string, count: number}>} */
  const chosen = new Map()
  /** @type {any} */
  let found
  const list = h('div', { class: 'scroll' })
  const said = h('p', { class: 'muted small num', role: 'status' })
  const redriveAll = h('button', { class: 'btn primary', type: 'button', onclick: () => void redrive(app, name, where, look) })
  const purge = h('button', { class: 'btn danger', type: 'button', text: 'Purge all…', onclick: () => void attempt(() => purgeAll(app, name, look)) })
  /** Filter for messages that match or are in the chosen groups, and were dead when they were counted. */
  const where = () => ({
    error_contains: contains || undefined, died_before: found.seen_at, groups: chosen.size > 0 ? [...chosen.keys()] : undefined,
  })
  const tell = () => {
    const picked = [...chosen.values()].reduce((sum, group) => sum + group.count, 0)
    const all = `Redrive all ${count(found?.matched ?? 0)}${contains ? ' that match' : ''}…`
    say(redriveAll, picked > 0 ? `Redrive ${count(picked)} chosen…` : all)
    redriveAll.disabled = !found || found.matched === 0
    purge.disabled = !found || found.looked_at === 0
  }
  const look = async () => {
    try {
      say(said, 'Counting…')
      const query = { contains: contains || undefined }
      found = await app.client.request('GET', `/queues/${encodeURIComponent(name)}/dlq/errors`, { query, signal })
      chosen.clear()
      const scope = contains ? ` of ${count(found.looked_at)}` : ''
      const rest = found.left_out > 0 ? `, and ${count(found.left_out)} in smaller groups` : ''
      say(said, `${plural(found.matched, 'dead letter')}${scope} in ${plural(found.groups.length, 'group')}${rest}`)
      fill(list, found.groups.length > 0 ? groups(app, name, found.groups, chosen, tell) : empty(contains ? 'No error contains this text' : `No dead letters in ${name}`,
        contains ? 'Try a shorter text.' : 'Messages that fail all their attempts are listed here, with every error.'))
    } catch (error) {
      if (!signal.aborted) fill(list, problem(error))
    }
    tell()
  }
  void look()
  let timer = 0
  const input = h('input', {
    type: 'search', placeholder: 'Errors that contain', 'aria-label': 'Errors that contain', value: contains, autocomplete: 'off',
    oninput: () => {
      contains = input.value
      keep({ contains })
      clearTimeout(timer)
      timer = window.setTimeout(look, 250)
    },
  })
  const crumbs = [h('a', { href: to('dead'), text: 'Dead letters' })]
  const fresh = h('button', { class: 'btn', type: 'button', text: 'Refresh', onclick: () => void look() })
  return h('div', {}, head(name, { crumbs }, fresh, app.mayChange && [redriveAll, purge]),
    card('By error', list, said, h('div', {}, input)), h('p', { class: 'muted small' }, 'Also as ', h('a', { href: to('queue', [name], { state: 'dead' }), text: 'single messages' }), '.'))
}

/**
 * @param {App} app
 * @param {string} name
 * @param {any[]} found
 * @param {Map<string, any>} chosen
 * @param {() => void} tell
 */
function groups(app, name, found, chosen, tell) {
  const list = table('Groups', [['', 'tick'], 'Error', ['Messages', 'num'], ['Newest', 'wide'], ['Oldest', 'wide'], ''])
  const now = Date.now()
  const all = h('input', {
    type: 'checkbox', 'aria-label': 'Choose all groups',
    onchange: () => {
      for (const box of list.body.querySelectorAll('input')) if (box.checked !== all.checked) box.click()
    },
  })
  list.element.querySelector('th')?.append(app.mayChange ? all : h('span', { class: 'hidden-label', text: 'Choose' }))
  list.element.querySelector('th:last-child')?.append(h('span', { class: 'hidden-label', text: 'Examples' }))
  for (const group of found) {
    const box = h('input', {
      type: 'checkbox', 'aria-label': `Choose: ${group.error}`,
      onchange: () => {
        if (box.checked) chosen.set(group.group, group)
        else chosen.delete(group.group)
        tell()
      },
    })
    list.body.append(h('tr', {}, h('td', {}, app.mayChange && box), h('td', { class: 'wrap mono', text: group.error || 'no error text' }), h('td', { class: 'num', text: count(group.count) }),
      h('td', { class: 'wide', text: ago(group.newest_at, now) }), h('td', { class: 'wide', text: ago(group.oldest_at, now) }),
      h('td', {}, h('a', { href: to('message', [name, group.newest_id]), text: 'newest', 'aria-label': `Newest message of: ${group.error}` }))))
  }
  return list.element
}

/**
 * @param {App} app
 * @param {string} name
 * @param {() => any} where
 * @param {() => Promise<void>} look
 */
async function redrive(app, name, where, look) {
  const queue = app.client.queue(name)
  const rate = field('Messages a second', h('input', { type: 'text', inputmode: 'decimal', value: '', placeholder: 'unlimited' }), 'A low rate protects the system that failed')
  const input = /** @type {HTMLInputElement} */ (rate.input)
  const dry = h('p', { class: 'row' }, tag('scheduled', 'dry run'), 'Counting…')
  void queue.redrive({ where: where(), dry_run: true }).then(
    ({ matched }) => fill(dry, tag('ok', 'dry run'), `${plural(matched, 'message')} would move back to ${name}`),
    (error) => fill(dry, String(error.message)))
  const ready = () => {
    const good = input.value.trim() === '' || Number(input.value) > 0
    rate.refuse(good ? '' : 'Enter a number above 0, or leave empty')
    return good
  }
  const done = await ask('Redrive', h('div', { class: 'stack' }, h('p', { text: `Dead letters move back to ${name} and get all their attempts again. Newer dead letters stay.` }), dry, rate.element),
    { action: 'Redrive', ready, submit: async () => {} })
  if (!done) return
  const stop = new AbortController()
  const rate_per_s = input.value.trim() === '' ? undefined : Number(input.value)
  const under = toasts().appendChild(h('p', { class: 'toast' }, 'Redriving… ', h('button', { class: 'btn small', type: 'button', text: 'Stop', onclick: () => stop.abort(new Error('stopped')) })))
  try {
    const { matched, moved } = await queue.redrive({ where: where(), rate_per_s, signal: stop.signal })
    toast(`${count(moved)} of ${count(matched)} moved back to ${name}`)
  } catch (error) {
    toast(stop.signal.aborted ? 'Stopped. Messages already moved stay in the queue.' : String(/** @type {any} */ (error).message), !stop.signal.aborted)
  } finally {
    under.remove()
    await look()
  }
}

/**
 * @param {App} app
 * @param {string} name
 * @param {() => Promise<void>} look
 */
async function purgeAll(app, name, look) {
  const queue = app.client.queue(name)
  const { purged } = await queue.purgeDeadLetters({ dry_run: true })
  await confirmByName('Purge dead letters', `${plural(purged, 'dead letter')} of this queue will be deleted permanently.`, name, 'Purge', async () => {
    const done = await queue.purgeDeadLetters()
    toast(`${plural(done.purged, 'dead letter')} deleted`)
  })
  await look()
}
