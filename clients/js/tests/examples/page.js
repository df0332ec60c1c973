/**
 * Runs basic_usage.js as it stands, against the server that `?server=` names, and tells `/told` what came of it. A
 * module of a blob's address still finds `queen-client` by the page's import map.
 */
const server = new URLSearchParams(location.search).get('server')
const told = { payload: null, error: null }
globalThis.processMessage = async ({ payload }) => {
  told.payload = payload
}
try {
  const text = await (await fetch('basic_usage.js')).text()
  const address = URL.createObjectURL(
    new Blob([text.replace('http://localhost:3000', server)], { type: 'text/javascript' }),
  )
  await import(address)
} catch (error) {
  told.error = String(error)
}
await fetch('/told', { method: 'POST', body: JSON.stringify(told) })
