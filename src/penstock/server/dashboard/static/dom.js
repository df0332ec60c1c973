/** Creates elements. Strings become text, never markup, so the content of a message cannot inject HTML. */

const SVG = 'http://www.w3.org/2000/svg'

/** @typedef {Node | string | number | null | undefined | false | Child[]} Child */
/** @typedef {Record<string, any>} Props `on…` listens; `class`, `text` and attributes as named; null leaves one out */

/**
 * @param {Element} element
 * @param {Props} props
 */
export function set(element, props) {
  for (const [name, value] of Object.entries(props)) {
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
 * Update rows from items, reusing the rows of items that stay, which keeps focus and scroll position.
 * @template T
 * @param {Element} parent
 * @param {T[]} items
 * @param {(item: T) => string} keyOf
 * @param {(item: T) => Element} make
 * @param {(element: any, item: T) => void} update
 */
export function rows(parent, items, keyOf, make, update) {
  /** @type {Map<string, Element>} */
  const there = new Map()
  for (const element of [...parent.children]) there.set(element.getAttribute('data-key') ?? '', element)
  /** @type {Element | null} */
  let at = parent.firstElementChild
  for (const item of items) {
    const key = keyOf(item)
    let element = there.get(key)
    if (element === undefined) {
      element = make(item)
      element.setAttribute('data-key', key)
    } else {
      there.delete(key)
    }
    update(element, item)
    if (element === at) at = at.nextElementSibling
    else parent.insertBefore(element, at)
  }
  for (const element of there.values()) element.remove()
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
