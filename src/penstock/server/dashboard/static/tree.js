/** Queues as a tree of namespaces and tasks, with totals. */

/** @import { Entry } from './catalog.js' */

/**
 * @typedef {object} Twig a namespace, a task or a queue
 * @property {string} path
 * @property {string} name
 * @property {number} level
 * @property {Twig[]} twigs
 * @property {Entry | undefined} entry of a queue
 * @property {number} ready
 * @property {number} scheduled
 * @property {number} leased
 * @property {number} dead
 * @property {number} queues
 */

/** @typedef {'name' | 'ready' | 'scheduled' | 'leased' | 'dead' | 'priority'} Order */

const COUNTS = /** @type {const} */ (['ready', 'scheduled', 'leased', 'dead'])

/**
 * @param {Iterable<Entry>} entries
 * @param {string} filter a part of the names wanted
 * @returns {Twig}
 */
export function growTree(entries, filter) {
  const root = twig('', '', 0)
  /** @type {Map<string, Twig>} */
  const known = new Map([['', root]])
  const wanted = filter.toLowerCase()
  for (const entry of entries) {
    if (wanted !== '' && !entry.name.toLowerCase().includes(wanted)) continue
    const parts = entry.name.split('/')
    const name = /** @type {string} */ (parts.pop())
    let parent = root
    let path = ''
    for (const part of parts) {
      path = path === '' ? part : `${path}/${part}`
      // A queue may have the name of a namespace.
      const key = `${path}/`
      let next = known.get(key)
      if (next === undefined) {
        next = twig(key, part, parent.level + 1)
        known.set(key, next)
        parent.twigs.push(next)
      }
      parent = next
    }
    const leaf = twig(entry.name, name, parent.level + 1)
    leaf.entry = entry
    parent.twigs.push(leaf)
  }
  return root
}

/**
 * @param {string} path
 * @param {string} name
 * @param {number} level
 * @returns {Twig}
 */
function twig(path, name, level) {
  return { path, name, level, twigs: [], entry: undefined, ready: 0, scheduled: 0, leased: 0, dead: 0, queues: 0 }
}

/**
 * Recompute the totals bottom up.
 * @param {Twig} at
 */
export function countUp(at) {
  if (at.entry !== undefined) {
    for (const name of COUNTS) at[name] = at.entry[name]
    at.queues = 1
    return
  }
  at.ready = at.scheduled = at.leased = at.dead = at.queues = 0
  for (const below of at.twigs) {
    countUp(below)
    for (const name of COUNTS) at[name] += below[name]
    at.queues += below.queues
  }
}

/**
 * Return the visible nodes in order.
 * @param {Twig} root
 * @param {Order} order
 * @param {(path: string) => boolean} isOpen
 * @returns {Twig[]}
 */
export function flatten(root, order, isOpen) {
  /** @type {Twig[]} */
  const found = []
  const byName = (/** @type {Twig} */ a, /** @type {Twig} */ b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0)
  const value = (/** @type {Twig} */ each) => (order === 'priority' ? (each.entry?.priority ?? 0) : each[/** @type {'ready'} */ (order)])
  const compare = order === 'name' ? byName : (/** @type {Twig} */ a, /** @type {Twig} */ b) => value(b) - value(a) || byName(a, b)
  const walk = (/** @type {Twig} */ at) => {
    at.twigs.sort(compare)
    for (const below of at.twigs) {
      found.push(below)
      if (below.entry === undefined && isOpen(below.path)) walk(below)
    }
  }
  walk(root)
  return found
}
