/** Creates elements. Strings become text, never markup, so the content of a message cannot inject HTML. */

const SVG = 'http://www.w3.org/2000/svg'

/** @typedef {Node | string | number | null | undefined | false | Child[]} Child */
/** @typedef {Record<string, any>} Props `on…` listens; `class`, `text` and attributes as named; null leaves one out */

/**
 * @param {Element} element
 * @param {Props} props
 */
export function set(element, props) {
  for (const name in props) {
    const value = props[name]
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value)
    else if (name === 'text') element.textContent = String(value ?? '')
    else if (name === 'value') /** @type {HTMLInputElement} */ (element).value = value ?? ''
    else if (value === null || value === undefined || value === false) element.removeAttribute(name)
    else element.setAttribute(name, value === true ? '' : String(value))
  }
}

/**
 * @param {Element} parent
 * @param {Child[]} children
 */
function add(parent, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(parent, child)
    else if (child !== null && child !== undefined && child !== false) {
      parent.append(child instanceof Node ? child : String(child))
    }
  }
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Props} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag)
  set(element, props)
  add(element, children)
  return element
}

/**
 * @param {string} tag
 * @param {Props} [props]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS(SVG, tag)
  set(element, props)
  add(element, children)
  return element
}

/**
 * Replace the children of an element.
 * @param {Element} parent
 * @param {...Child} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren()
  add(parent, children)
}

/**
 * Set the text if it differs; most texts do not change from one second to the next.
 * @param {Node} node
 * @param {string} text
 */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text
}

/**
 * Update rows from items. The row of an item that stays is kept, and so are its cells that did not change,
 * which keeps focus and scroll position.
 * @template T
 * @param {Element} parent
 * @param {T[]} items
 * @param {(item: T) => string} keyOf
 * @param {(item: T) => Element} make builds a row; its own attributes and the number of its cells depend on the key alone
 */
export function rows(parent, items, keyOf, make) {
  /** @type {Map<string, Element>} */
  const there = new Map()
  for (const element of [...parent.children]) there.set(element.getAttribute('data-key') ?? '', element)
  /** @type {Element | null} */
  let at = parent.firstElementChild
  for (const item of items) {
    const key = keyOf(item)
    const made = make(item)
    const element = there.get(key) ?? made
    if (element === made) made.setAttribute('data-key', key)
    else replaceCells(element, made)
    there.delete(key)
    if (element === at) at = at.nextElementSibling
    else parent.insertBefore(element, at)
  }
  for (const element of there.values()) element.remove()
}

/**
 * Replace the cells of a row that differ from those of a new one.
 * @param {Element} row
 * @param {Element} made
 */
function replaceCells(row, made) {
  // From the last to the first: a cell that moves into the row leaves the places of those before it unchanged.
  for (let n = made.children.length - 1; n >= 0; n--) {
    const cell = made.children[n]
    if (!cell.isEqualNode(row.children[n])) row.children[n].replaceWith(cell)
  }
}

/**
 * @param {number} ms
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
function sleep(ms, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', end)
      resolve()
    }
    const timer = setTimeout(end, ms)
    signal.addEventListener('abort', end)
  })
}

/**
 * Repeat until the signal aborts, while the page is visible and not paused.
 * @param {number} ms
 * @param {AbortSignal} signal
 * @param {() => Promise<unknown>} work
 * @param {() => boolean} frozen
 */
export async function every(ms, signal, work, frozen) {
  for (let first = true; !signal.aborted; first = false) {
    if (first || (!frozen() && !document.hidden)) await work()
    await sleep(ms, signal)
  }
}
