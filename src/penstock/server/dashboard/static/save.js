/** Downloads: files built in the browser from streamed responses. */
import { stringify } from './client/json.js'
import { toBase64 } from './client/bytes.js'
import { h } from './dom.js'
import { bytes, plural } from './format.js'

/** @import { App } from './app.js' */

const EXPORT_CHARACTERS_MAX = 256 << 20

/**
 * @param {App} app
 * @param {string} name
 */
export async function exportQueue(app, name) {
  const parts = []
  let size = 0
  let messages = 0
  for await (const message of app.client.queue(name).export()) {
    const shown = message.payload instanceof Uint8Array ? { ...message, payload: toBase64(message.payload), encoding: 'base64' } : message
    const line = `${stringify(shown)}\n`
    parts.push(line)
    size += line.length
    messages += 1
    if (size > EXPORT_CHARACTERS_MAX) throw new Error(`more than ${bytes(size)}: use penstock export ${name}`)
  }
  saveAs(`${name.replaceAll('/', '_')}.ndjson`, new Blob(parts, { type: 'application/x-ndjson' }))
  return `${plural(messages, 'message')} saved`
}

/**
 * @param {string} name
 * @param {Blob} content
 */
function saveAs(name, content) {
  const href = URL.createObjectURL(content)
  h('a', { href, download: name }).click()
  setTimeout(() => URL.revokeObjectURL(href), 10_000)
}
