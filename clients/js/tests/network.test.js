import assert from 'node:assert/strict'
import test from 'node:test'
import { Closed, InvalidInput, PenstockError, ServerFault, StoreError, TryLater, Unreachable, connect } from '../src/index.js'
import { eventually, newName, startProxy, serve } from './support.js'

const server = await serve()

/** Create a queue whose client connects through its own proxy. */
async function queueBehindProxy(options) {
  const proxy = await startProxy(server.url)
  const client = connect(proxy.url, options)
  const queue = client.queue(newName())
  await queue.create()
  proxy.requests.length = 0
  return { proxy, client, queue }
}
/** Inject these faults into the first requests, and none into later ones. */
const faultFirst = (...faults) => (_, number) => faults[number - 1]

for (const fault of ['refuse', 'lose']) {
  test(`a push whose request or response is lost (${fault}) adds one message`, async () => {
    const { proxy, client, queue } = await queueBehindProxy()
    proxy.faults = faultFirst(fault, fault)
    const receipt = await queue.push('once')
    assert.equal(receipt.duplicate, false)
    proxy.requests.length = 0
    const ns = newName()
    const { messages } = await client.tree.push({ items: [{ ns, task: 't', queue: 'q', payload: 'once' }] })
    assert.equal(messages[0].status, 'queued')
    assert.equal(proxy.requests.length, 3)
    assert.equal((await queue.info()).ready, 1)
    assert.equal((await client.queue(`${ns}/t/q`).info()).ready, 1)
  })
}

test('an ack or nack whose response is lost succeeds', async () => {
  const { proxy, client, queue } = await queueBehindProxy()
  await queue.pushMany([{ payload: 1 }, { payload: 2 }])
  const [one, two] = await queue.lease({ batch: 2 })
  const ns = newName()
  await client.tree.push({ items: [1, 2].map((payload) => ({ ns, task: 't', queue: 'q', payload })) })
  const { messages } = await client.tree.pop({ ns, batch: 2 })
  const settled = []
  for (const settle of [
    () => queue.ack(one),
    () => queue.nack(two, { delay_ms: 60_000 }),
    () => client.tree.ack(messages[0]),
    () => client.tree.ack(messages[1], 'failed'),
  ]) {
    proxy.requests.length = 0
    proxy.faults = faultFirst('lose')
    const { result, status } = await settle()
    assert.equal(proxy.requests.length, 2)
    settled.push(result ?? status)
  }
  assert.deepEqual(settled, ['ok', 'ok', 'completed', 'failed'])
  const { ready, scheduled, totals } = await queue.info()
  assert.deepEqual([ready, scheduled, totals.acked], [0, 1, 1])
})

test('a retried settle does not claim a message that is leased to another consumer', async () => {
  const { proxy, client, queue } = await queueBehindProxy()
  const name = (/** @type {Error & {maybeDone: boolean}} */ error) => [error.constructor.name, error.maybeDone]
  for (const verb of ['ack', 'nack']) {
    await queue.push(1)
    const [late] = await queue.lease({ visibility_ms: 20 })
    const [other] = await queue.lease({ wait_ms: 20_000 })
    proxy.requests.length = 0
    proxy.faults = faultFirst('lose')
    assert.deepEqual(await queue[verb](late).then(() => 'ok', name), ['LeaseLost', verb === 'nack'])
    await queue.ack(other)
  }
  const ns = newName()
  await client.tree.push({ items: [{ ns, task: 't', queue: 'q', payload: 1 }] })
  const { messages: [message] } = await client.tree.pop({ ns })
  await client.tree.ack({ ...message })
  const { transactionId, leaseToken } = message
  for (const [sent, expected] of [[{ transactionId, leaseToken }, 'completed'], [{ transactionId }, ['NotFound', true]]]) {
    proxy.requests.length = 0
    proxy.faults = faultFirst('lose')
    assert.deepEqual(await client.tree.ack(sent).then(({ status }) => status, name), expected)
  }
})

test('a request that is not idempotent is not retried once it may have succeeded', async () => {
  const { proxy, queue } = await queueBehindProxy()
  proxy.faults = faultFirst('lose')
  await assert.rejects(queue.transact({ push: [{ payload: 1 }] }), (error) => {
    assert.ok(error instanceof Unreachable)
    assert.equal(error.maybeDone, true)
    return true
  })
  assert.equal(proxy.requests.length, 1)
})

test('a request is retried retryAttempts times', async () => {
  for (const [status, kind] of [[429, TryLater], [503, StoreError], [502, Unreachable]]) {
    const { proxy, queue } = await queueBehindProxy({ retryAttempts: 2 })
    proxy.faults = faultFirst({ status }, { status })
    await queue.push(1)
    assert.equal(proxy.requests.length, 3)
    proxy.requests.length = 0
    proxy.faults = () => ({ status })
    await assert.rejects(queue.push(2), kind)
    assert.equal(proxy.requests.length, 3)
  }
})

test('an interrupted long poll continues and gets the next message', async () => {
  const { proxy, queue } = await queueBehindProxy()
  const leasing = queue.lease({ wait_ms: 60_000 })
  await eventually(() => proxy.requests.length === 1)
  proxy.cut()
  await eventually(() => proxy.requests.length === 2)
  await connect(server.url).queue(queue.name).push('at last')
  const [message] = await leasing
  assert.equal(message.payload, 'at last')
  const waits = proxy.requests.map(({ path }) => Number(new URLSearchParams(path.split('?')[1]).get('wait_ms')))
  assert.ok(waits[1] < waits[0], 'the retry waits only for the remaining time')
})

test('a consumer continues after the server was killed and restarted', async () => {
  const own = await serve()
  const client = connect(own.url, { retryAttempts: 0 })
  const queue = client.queue(newName())
  await queue.create()
  const [handled, errors] = [[], []]
  const consumer = queue.consume(({ payload }) => handled.push(payload), { onError: (error) => errors.push(error) })
  await queue.push(1)
  await eventually(() => handled.length === 1)
  await own.stop('SIGKILL')
  await eventually(() => errors.length > 0)
  assert.ok(errors[0] instanceof Unreachable)
  await own.start()
  await eventually(() => queue.push(2, { idempotency_key: 'two' }).catch(() => false))
  await eventually(() => handled.includes(2))
  await consumer.stop()
})

test('a request to an unresponsive server times out', async () => {
  const { proxy, queue } = await queueBehindProxy({ timeout: 50, retryAttempts: 1 })
  proxy.faults = () => 'hang'
  await assert.rejects(queue.info(), { name: 'Unreachable', message: / does not respond within 0.05 s$/ })
  assert.equal(proxy.requests.length, 2)
  await assert.rejects(connect('http://127.0.0.1:9', { retryAttempts: 0 }).health(), { name: 'Unreachable' })
})

test('closing the client aborts all requests in flight', async () => {
  const { client, queue } = await queueBehindProxy()
  const waiting = [queue.lease({ wait_ms: 60_000 }), client.tree.pop({ ns: 'nobody', wait: true })]
  const consumer = queue.consume(() => {})
  client.close()
  for (const each of waiting) await assert.rejects(each, Closed)
  await consumer.done
  await assert.rejects(client.health(), Closed)
})

test('an invalid response is a ServerFault', async () => {
  const { proxy, queue } = await queueBehindProxy()
  proxy.faults = faultFirst({ status: 200, body: '<html>' }, { status: 500, body: 'oops' })
  await assert.rejects(queue.info(), ServerFault)
  await assert.rejects(queue.info(), { name: 'ServerFault', status: 500 })
  assert.equal(proxy.requests.length, 2)
})

test('errors carry the details that the server sends', async () => {
  const { queue } = await queueBehindProxy()
  await assert.rejects(queue.push(1, { priority: 'high' }), (error) => {
    assert.ok(error instanceof InvalidInput && error instanceof PenstockError && error instanceof Error)
    assert.equal(error.name, 'InvalidInput')
    assert.equal(error.field, 'messages[0].priority')
    assert.match(error.requestId, /\S/)
    return true
  })
  await assert.rejects(connect(server.url).queue('nobody').info(), {
    code: 'unknown_queue',
    hint: 'create it first',
    status: 404,
  })
})

test('the base URL may contain a path', async () => {
  const proxy = await startProxy(server.url, '/mq')
  for (const url of [proxy.url, `${proxy.url}/`]) {
    const client = connect(url)
    assert.equal(client.baseUrl, proxy.url)
    assert.deepEqual(await client.health(), { status: 'ok' })
  }
})

test('an invalid address or setting is refused immediately', () => {
  for (const url of ['', 'nowhere', 'ftp://x', undefined]) assert.throws(() => connect(url), InvalidInput)
  assert.throws(() => connect(server.url, { timeout: -1 }), InvalidInput)
  assert.throws(() => connect(server.url, { retryAttempts: '3' }), InvalidInput)
  assert.throws(() => connect(server.url).queue(''), InvalidInput)
  assert.throws(() => connect(server.url).stream(), InvalidInput)
})

test('operators can read health, readiness, metrics, journal and API description', async () => {
  const client = connect(server.url)
  assert.deepEqual(await client.health(), { status: 'ok' })
  assert.equal((await client.ready()).ready, true)
  assert.match(await client.metrics(), /^# HELP /m)
  const queue = client.queue(newName())
  await queue.create()
  await queue.push({ big: 2n ** 60n + 1n })
  const pushedEvents = () => client.journal.events({ queue: queue.name, kinds: ['pushed'] })
  const [pushed] = await eventually(async () => (await pushedEvents()).events[0] && (await pushedEvents()).events)
  assert.deepEqual(pushed.payload, { big: 2n ** 60n + 1n })
  assert.ok((await client.journal.info()).next > 0)
  assert.ok((await client.request('GET', '/openapi.json')).paths['/queues'])
})
