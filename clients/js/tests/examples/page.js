/**
 * Runs basic_usage.js unchanged against the server in `?server=`, and posts the result to `/told`. A module with a blob
 * URL still resolves `queen-client` through the page's import map.
 */
const server = new URLSearchParams(location.search).get('server')
const result = { payload: null, error: null }
globalThis.processMessage = async ({ payload }) => {
  result.payload = payload
}
try {
  const text = await (await fetch('basic_usage.js')).text()
  const address = URL.createObjectURL(
    new Blob([text.replace('http://localhost:3000', server)], { type: 'text/javascript' }),
  )
  await import(address)
} catch (error) {
  result.error = String(error)
}
await fetch('/told', { method: 'POST', body: JSON.stringify(result) })
