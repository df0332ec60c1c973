/** Routes by the fragment of the URL, which works under any path and needs no support from the server. */

/**
 * @typedef {object} Place
 * @property {string} screen
 * @property {string[]} parts decoded
 * @property {URLSearchParams} query
 */

/**
 * @param {string} hash
 * @returns {Place}
 */
export function parsePlace(hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split('?')
  const [screen = '', ...parts] = path.split('/').map(decode)
  return { screen: screen || 'overview', parts, query: new URLSearchParams(query) }
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

/**
 * Return the address of a screen.
 * @param {string} screen
 * @param {(string | number)[]} [parts]
 * @param {Record<string, string | undefined>} [query]
 */
export function to(screen, parts = [], query = {}) {
  const given = Object.entries(query).filter(([, value]) => value)
  const search = given.length > 0 ? `?${new URLSearchParams(/** @type {any} */ (given))}` : ''
  return `#/${[screen, ...parts].map(encodeURIComponent).join('/')}${search}`
}

/** @param {string} address */
export function go(address) {
  location.hash = address
}

/**
 * Store parameters in the address without navigating.
 * @param {Record<string, string | undefined>} query
 */
export function keep(query) {
  const { screen, parts } = parsePlace(location.hash)
  history.replaceState(null, '', to(screen, parts, query))
}
