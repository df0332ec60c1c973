/** Reads NDJSON as it arrives. */
import { parse } from './json.js'

/**
 * @param {Response} response
 * @returns {AsyncGenerator<any, void, void>}
 */
export async function* ndjson(response) {
  if (!response.body) return
  const reader = response.body.getReader()
  const decoder = new TextDecoder()
  let rest = ''
  try {
    for (;;) {
      const { value, done } = await reader.read()
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true })
      const lines = rest.split('\n')
      rest = done ? '' : (lines.pop() ?? '')
      for (const line of lines) if (line) yield parse(line)
      if (done) return
    }
  } finally {
    await reader.cancel().catch(() => {})
  }
}
