/** Starts a real `penstock serve` for the tests of a file, and a proxy in front of it that injects faults. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { createServer, request } from 'node:http'
import { connect as dial } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after } from 'node:test'
import { fileURLToPath } from 'node:url'

const PENSTOCK = process.env.PENSTOCK ?? fileURLToPath(new URL('../../../.venv/bin/penstock', import.meta.url))
let names = 0

/** Return a name that is unique within this file. */
export const newName = (prefix = 'q') => `${prefix}${++names}`

/** @param {Record<string, string>} [settings] environment variables for the server */
export async function serve(settings = {}) {
  const data = await mkdtemp(join(tmpdir(), 'penstock-js-'))
  const server = { url: '', start, stop }
  let process_
  async function start() {
    const port = server.url ? new URL(server.url).port : '0'
    const env = { PATH: process.env.PATH, PENSTOCK_ACCESS_LOG: 'false', PENSTOCK_CANARY_MS: '0', ...settings }
    process_ = spawn(PENSTOCK, ['serve', '--port', port, '--data', data], { env, stdio: ['ignore', 'ignore', 'pipe'] })
    let output = ''
    // Read with a listener, because a loop would close the pipe at its end, and the server may write more later.
    server.url = await new Promise((resolve, reject) => {
      process_.stderr.setEncoding('utf8').on('data', (part) => {
        output += part
        const [, url] = output.match(/(http:\/\/[\d.]+:\d+) /) ?? []
        if (url) resolve(url)
      })
      process_.once('exit', () => reject(new Error(`the server did not start: ${output}`)))
    })
  }
  async function stop(signal = 'SIGTERM') {
    const ended = once(process_, 'exit')
    process_.kill(signal)
    await ended
  }
  await start()
  after(async () => {
    if (process_.exitCode === null && process_.signalCode === null) await stop()
    await rm(data, { recursive: true, force: true })
  })
  return server
}

/**
 * Start a proxy that forwards requests to the server and records them. `faults` is called for each request and returns
 * what to do with it: 'refuse' closes the connection before the server sees the request, 'lose' after the server has
 * responded, 'hang' never responds, and `{status, body}` responds in place of the server. `cut` closes all connections,
 * and `broadcast` sends an event to every WebSocket as if the server had sent it. With a prefix, the server is reached
 * below that path.
 */
export async function startProxy(target, prefix = '') {
  const { hostname, port } = new URL(target)
  const sockets = new Set()
  const watching = new Set()
  const cut = () => sockets.forEach((socket) => socket.destroy())
  const broadcast = (event) => watching.forEach((socket) => socket.write(frame(JSON.stringify(event))))
  const it = { url: '', requests: [], faults: () => undefined, cut, broadcast }
  const front = createServer(async (asking, answering) => {
    const body = Buffer.concat(await asking.toArray())
    const seen = { method: asking.method, path: asking.url, body: body.toString() }
    it.requests.push(seen)
    const fault = it.faults(seen, it.requests.length)
    if (fault === 'refuse') return asking.socket.destroy()
    if (fault === 'hang') return undefined
    if (fault?.status) return answering.writeHead(fault.status, { 'retry-after': '0' }).end(fault.body)
    const { method, headers } = asking
    const path = asking.url.slice(prefix.length)
    const onward = request({ hostname, port, method, path, headers: { ...headers, connection: 'close' } })
    // If the client disconnects, disconnect from the server as well.
    answering.on('close', () => onward.destroy())
    onward.on('error', () => asking.socket.destroy())
    onward.on('response', async (response) => {
      const answer = Buffer.concat(await response.toArray())
      if (fault === 'lose') return asking.socket.destroy()
      answering.writeHead(response.statusCode, response.headers).end(answer)
    })
    onward.end(body)
  })
  front.on('connection', (socket) => {
    sockets.add(socket)
    socket.on('close', () => sockets.delete(socket))
  })
  front.on('upgrade', (asking, socket) => {
    const seen = { method: 'UPGRADE', path: asking.url, body: '', headers: asking.headers }
    it.requests.push(seen)
    const fault = it.faults(seen, it.requests.length)
    if (fault?.status) return socket.end(`HTTP/1.1 ${fault.status} No\r\ncontent-length: 0\r\n\r\n`)
    const onward = dial(Number(port), hostname)
    const lines = asking.rawHeaders.map((value, n) => (n % 2 ? `${value}\r\n` : `${value}: `))
    onward.write(`GET ${asking.url.slice(prefix.length)} HTTP/1.1\r\n${lines.join('')}\r\n`)
    socket.pipe(onward).pipe(socket)
    watching.add(socket)
    socket.on('close', () => watching.delete(socket))
    for (const [one, other] of [[socket, onward], [onward, socket]]) {
      one.on('error', () => {})
      one.on('close', () => other.destroy())
    }
  })
  front.listen(0, '127.0.0.1')
  await once(front, 'listening')
  it.url = `http://127.0.0.1:${front.address().port}${prefix}`
  after(() => {
    it.cut()
    front.close()
  })
  return it
}

/** Poll until the condition holds, for changes that send no notification. */
export async function eventually(condition) {
  for (let n = 0; n < 6_000; n++) {
    const found = await condition()
    if (found) return found
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  throw new Error('the condition did not become true within 60 s')
}

export async function collect(items) {
  const found = []
  for await (const item of items) found.push(item)
  return found
}

/** Return the text as one WebSocket frame of a server. */
function frame(text) {
  const body = Buffer.from(text)
  if (body.length > 125) throw new Error('the text is too long for a short frame')
  return Buffer.concat([Buffer.from([0x81, body.length]), body])
}
