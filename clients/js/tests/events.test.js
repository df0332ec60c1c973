import assert from 'node:assert/strict'
import { test as promise } from 'node:test'
import { InvalidInput, OffsetTrimmed, connect } from '../src/index.js'
import { eventually, newName, startProxy, serve } from './support.js'

const test = (name, run) => promise(name, { timeout: 240_000 }, run)
// Its base64 form contains a plus, a slash and padding, which base64url replaces.
const TOKEN = 'to>ke?n/+%'
const server = await serve({ PENSTOCK_AUTH_TOKEN: TOKEN })
const admin = connect(server.url, { token: TOKEN })

/** Collect the events of one queue in the background. */
function watch(client, name, options = {}) {
  const ending = new AbortController()
  const seen = { ids: [], events: [], states: [] }
  seen.done = (async () => {
    const onState = (state) => seen.states.push(state)
    for await (const event of client.events({ signal: ending.signal, onState, ...options })) {
      if (['missed', 'dropped'].includes(event.event)) seen.events.push(event.event)
      if (event.event === 'queue.depth' || event.data.queue !== name) continue
      seen.events.push(event.event)
      seen.offset = event.offset
      if (event.event === 'message.pushed') seen.ids.push(event.data.id)
    }
  })()
  seen.open = () => eventually(() => seen.states.includes('open'))
  seen.stop = async () => {
    ending.abort()
    await seen.done
  }
  return seen
}
const isUnique = (list) => new Set(list).size === list.length
const many = (count) => Array.from({ length: count }, (_, payload) => ({ payload }))

test('events report the life of a message as it happens', async () => {
  const queue = admin.queue(newName())
  const seen = watch(admin, queue.name)
  await seen.open()
  await queue.create({ backoff_ms: 0 })
  await queue.push(1)
  const [message] = await queue.lease()
  await queue.nack(message, { error: 'no' })
  await queue.ack((await queue.lease())[0])
  await eventually(() => seen.events.length === 6)
  await seen.stop()
  assert.deepEqual(seen.events, [
    'queue.created',
    'message.pushed',
    'message.processing',
    'message.failed',
    'message.processing',
    'message.completed',
  ])
  assert.deepEqual(seen.states, ['open', 'closed'])
})

test('queues created concurrently are reported one by one', async () => {
  const names = Array.from({ length: 30 }, () => newName())
  const { next } = await admin.journal.info()
  await Promise.all(names.map((name) => admin.queue(name).create()))
  const last = newName()
  await admin.queue(last).create()
  const made = []
  for await (const { event, data } of admin.events({ since: next })) {
    if (event === 'queue.created') made.push(data.queue)
    if (made.at(-1) === last) break
  }
  assert.deepEqual(names.filter((name) => !made.includes(name)), [])
})

test('a reader resumes at the offset of its last event', async () => {
  const queue = admin.queue(newName())
  await queue.create()
  const seen = watch(admin, queue.name)
  await seen.open()
  await queue.push(1)
  await eventually(() => seen.ids.length === 1)
  await seen.stop()
  await queue.push(2)
  const later = watch(admin, queue.name, { since: seen.offset })
  await eventually(() => later.ids.length > 0 && isUnique([...seen.ids, later.ids.at(-1)]))
  await later.stop()
})

test('a lost connection neither loses nor repeats an event', async () => {
  const proxy = await startProxy(server.url)
  const queue = admin.queue(newName())
  await queue.create()
  const seen = watch(connect(proxy.url, { token: TOKEN }), queue.name)
  await seen.open()
  for (let round = 1; round <= 5; round++) {
    await queue.pushMany(many(400))
    await eventually(() => seen.ids.length > (round - 1) * 400)
    proxy.cut()
    await queue.pushMany(many(1))
  }
  await eventually(() => seen.ids.length >= 2005)
  await seen.stop()
  assert.equal(seen.ids.length, 2005)
  assert.ok(isUnique(seen.ids))
  assert.ok(seen.states.filter((state) => state === 'open').length > 1)
})

test('no event is repeated after the server dropped a slow reader', async () => {
  const proxy = await startProxy(server.url)
  const queue = admin.queue(newName())
  await queue.create()
  const seen = watch(connect(proxy.url, { token: TOKEN }), queue.name)
  await seen.open()
  const { next } = await admin.journal.info()
  for (let n = 1; n <= 3; n++) await queue.push(n)
  await eventually(() => seen.ids.length === 3)
  proxy.broadcast({ event: 'dropped', data: { reason: 'the client reads too slowly' }, offset: next })
  await eventually(() => seen.events.includes('dropped'))
  proxy.cut()
  await queue.push(4)
  await eventually(() => seen.ids.length >= 4)
  await seen.stop()
  assert.equal(seen.ids.length, 4)
  assert.ok(isUnique(seen.ids))
})

test('events continue after the server was killed and restarted', async () => {
  const own = await serve()
  const client = connect(own.url)
  const queue = client.queue(newName())
  await queue.create()
  const seen = watch(client, queue.name)
  await seen.open()
  await queue.push(1)
  await eventually(() => seen.ids.length === 1)
  await own.stop('SIGKILL')
  await eventually(() => seen.states.includes('closed'))
  await own.start()
  await queue.push(2)
  await eventually(() => seen.ids.length === 2)
  await seen.stop()
})

test('a slow reader gets every event with a bounded buffer', async () => {
  const queue = admin.queue(newName())
  await queue.create()
  const { next } = await admin.journal.info()
  await queue.pushMany(many(300))
  const ids = []
  let sockets = 0
  const onState = (state) => (sockets += state === 'open' ? 1 : 0)
  for await (const { event, data } of admin.events({ since: next, bufferMax: 100, onState })) {
    if (event === 'message.pushed' && data.queue === queue.name) ids.push(data.id)
    await new Promise(setImmediate)
    if (ids.length >= 300) break
  }
  assert.ok(isUnique(ids))
  assert.ok(sockets > 1)
})

test('the token is never part of the URL', async () => {
  const proxy = await startProxy(server.url)
  const seen = watch(connect(proxy.url, { token: TOKEN }), 'nobody')
  await seen.open()
  await seen.stop()
  const [{ path, headers }] = proxy.requests
  assert.equal(path, '/ws/dashboard')
  assert.match(headers['sec-websocket-protocol'], /^penstock, bearer\.[\w-]+$/)
})

test('a refused reader gets the reason', async () => {
  const queue = admin.queue(newName())
  await queue.create()
  const { key } = await queue.addKey()
  for (const [token, name] of [[undefined, 'Unauthorized'], ['wrong', 'Unauthorized'], [key, 'Forbidden']]) {
    await assert.rejects(connect(server.url, { token }).events().next(), { name })
  }
  await assert.rejects(admin.events({ since: 2 ** 40 }).next(), InvalidInput)
})

test('a server without a journal refuses to send events', async () => {
  const own = await serve({ PENSTOCK_JOURNAL: 'false' })
  await assert.rejects(connect(own.url).events().next(), { name: 'NotFound', hint: /journal/ })
})

for (const [status, code, refused] of [[410, 'offset_trimmed', OffsetTrimmed], [422, 'offset_beyond_end', InvalidInput]]) {
  test(`a gap that the server cannot fill is reported as missed: ${code}`, async () => {
    const proxy = await startProxy(server.url)
    const queue = admin.queue(newName())
    await queue.create()
    const seen = watch(connect(proxy.url, { token: TOKEN }), queue.name)
    await seen.open()
    await queue.push(1)
    await eventually(() => seen.ids.length === 1)
    const body = JSON.stringify({ error: 'these events no longer exist', code })
    proxy.faults = ({ path }) => (path.includes('since=') ? { status, body } : undefined)
    proxy.cut()
    await eventually(() => seen.events.includes('missed'))
    await eventually(async () => (await queue.push(2)) && seen.ids.length > 1)
    await seen.stop()
    await assert.rejects(connect(proxy.url, { token: TOKEN }).events({ since: 1 }).next(), refused)
  })
}

test('leaving the loop or closing the client disconnects', async () => {
  const proxy = await startProxy(server.url)
  const client = connect(proxy.url, { token: TOKEN })
  const queue = admin.queue(newName())
  await queue.create()
  let left = false
  const watching = (async () => {
    for await (const event of client.events()) if (event.event === 'message.pushed') break
    left = true
  })()
  await eventually(async () => (await queue.push(1)) && left)
  await watching
  const ended = client.events().next()
  await eventually(() => proxy.requests.length === 2)
  client.close()
  assert.deepEqual(await ended, { value: undefined, done: true })
})
