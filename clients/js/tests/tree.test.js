import assert from 'node:assert/strict'
import test from 'node:test'
import { InvalidInput, LeaseLost, NotFound, createQueenClient } from '../src/index.js'
import { eventually, newName, startProxy, serve } from './support.js'

const server = await serve()
const client = createQueenClient({ baseUrl: server.url })

const item = (ns, payload, rest = {}) => ({ ns, task: 't', queue: 'q', payload, ...rest })
const pushTo = (ns, ...payloads) => client.push({ items: payloads.map((payload) => item(ns, payload)) })

test('push returns the messages and their ids', async () => {
  const pushed = await pushTo(newName(), 1, 2)
  assert.deepEqual(pushed.messages.map(({ status }) => status), ['queued', 'queued'])
  assert.deepEqual(pushed.messageIds, pushed.messages.map(({ id }) => id))
})

test('pop returns the messages, and the fields of a single one', async () => {
  const ns = newName()
  const payload = { big: 2n ** 63n, text: 'ü' }
  const { messageIds } = await pushTo(ns, payload, new Uint8Array([1]), 3)
  const one = await client.pop({ ns })
  assert.deepEqual([one.id, one.payload, one.messages.length], [messageIds[0], payload, 1])
  assert.equal(one.queue, `${ns}/t/q`)
  const two = await client.pop({ ns, task: 't', queue: 'q', batch: 5 })
  assert.deepEqual([two.id, two.messages.map((message) => message.payload)], [undefined, [new Uint8Array([1]), 3]])
  assert.deepEqual(await client.pop({ ns, task: 't', wait: true, timeout: 10 }), { messages: [] })
})

test('a waiting pop gets the next message', async () => {
  const ns = newName()
  const popping = client.pop({ ns, wait: true })
  await pushTo(ns, 'here')
  assert.equal((await popping).payload, 'here')
})

test('a canceled pop leases nothing', async () => {
  const ns = newName()
  await pushTo(ns, 1)
  await client.pop({ ns })
  const giving = new AbortController()
  const popping = client.pop({ ns, wait: true, signal: giving.signal })
  giving.abort(new Error('enough'))
  await assert.rejects(popping, { message: 'enough' })
})

test('a repeated transactionId adds no second message', async () => {
  const ns = newName()
  const sent = item(ns, 1, { transactionId: `${ns}-1` })
  const first = await client.push({ items: [sent] })
  const again = await client.push({ items: [sent, item(ns, 2)] })
  assert.deepEqual(again.messages.map(({ status }) => status), ['duplicate', 'queued'])
  assert.equal(again.messageIds[0], first.messageIds[0])
})

test('items succeed or fail independently unless batchMode is set', async () => {
  const ns = newName()
  const items = [item(ns, 1), item(ns, 'x'.repeat(600 * 1024))]
  const { messages, messageIds } = await client.push({ items })
  assert.deepEqual(messages.map(({ status, code }) => [status, code]), [['queued', undefined], ['failed', 'payload_too_large']])
  assert.equal(messageIds[1], undefined)
  await assert.rejects(client.push({ items, config: { batchMode: true } }), { code: 'payload_too_large' })
  await assert.rejects(client.push({ items: [items[1]] }), { name: 'InvalidInput', code: 'payload_too_large' })
  await assert.rejects(client.push({ items: [] }), InvalidInput)
  assert.equal((await client.analytics.namespace(ns)).totals.total, 1)
})

test('concurrent pushes are batched and each gets its own result', async () => {
  const proxy = await startProxy(server.url)
  const joined = createQueenClient({ baseUrl: proxy.url, retryAttempts: 0 })
  const ns = newName()
  await joined.configure({ ns, task: 't', queue: 'full', options: { maxSize: 1 } })
  const pushed = await Promise.allSettled([
    joined.push({ items: [item(ns, 1)] }),
    joined.push({ items: [item(ns, 2, { queue: 'full' })] }),
    joined.push({ items: [item(ns, 3, { queue: 'full' })] }),
    joined.push({ items: [item(ns, 4, { ns: 'no such name!' })] }),
    joined.push({ items: [item(ns, 5, { queue: 'missing' })], config: { autoCreate: false } }),
    joined.push({ items: [item(ns, 6), item(ns, 7)] }),
  ])
  assert.deepEqual(
    pushed.map(({ reason }) => reason?.code),
    [undefined, undefined, 'queue_full', 'invalid_value', 'unknown_queue', undefined],
  )
  assert.ok(pushed[4].reason instanceof NotFound)
  assert.equal(pushed[5].value.messages.length, 2)
  const together = proxy.requests.filter(({ path }) => path.endsWith('/push')).length
  assert.ok(together < 10, `${together} requests`)

  const popped = await joined.pop({ ns, task: 't', queue: 'q', batch: 10 })
  assert.deepEqual(popped.messages.map(({ payload }) => payload), [1, 6, 7])
  proxy.requests.length = 0
  const acked = await Promise.all(popped.messages.map((message) => joined.ack(message.transactionId, 'completed')))
  assert.deepEqual(acked.map(({ status }) => status), ['completed', 'completed', 'completed'])
  assert.equal(proxy.requests.length, 1)
})

test('a message is settled as completed or failed', async () => {
  const ns = newName()
  await client.configure({ ns, task: 't', queue: 'q', options: { retryLimit: 1, retryDelay: 0 } })
  await pushTo(ns, 1)
  const first = await client.pop({ ns })
  const failed = await client.ack(first.transactionId, 'failed', 'no luck')
  assert.deepEqual(failed, { transactionId: first.transactionId, status: 'failed', retryScheduled: true })
  const second = await client.pop({ ns })
  assert.equal(second.retryCount, 1)
  await assert.rejects(client.ack(first), LeaseLost)
  const dead = await client.ack(second, 'failed', 'no luck')
  assert.deepEqual([dead.status, dead.retryScheduled], ['dead_letter', false])
  await assert.rejects(client.ack(second), LeaseLost)
  await assert.rejects(client.ack('nobody', 'completed'), NotFound)
  await assert.rejects(client.ack(undefined, 'completed'), InvalidInput)
})

test('a refused ack does not fail the others in its batch', async () => {
  const ns = newName()
  await pushTo(ns, 1)
  const message = await client.pop({ ns })
  const acked = await Promise.allSettled([client.ack(message), client.ack('another', 'done')])
  assert.deepEqual(acked.map(({ reason }) => reason?.name), [undefined, 'InvalidInput'])
})

test('ackBatch settles each message independently', async () => {
  const ns = newName()
  await pushTo(ns, 1, 2)
  const { messages } = await client.pop({ ns, batch: 2 })
  const acknowledgments = [
    { ...messages[0], status: 'completed' },
    { transactionId: messages[1].transactionId, status: 'failed', error: 'Connection timeout' },
    { transactionId: 'nobody', status: 'completed' },
  ]
  const { processed, results } = await client.ackBatch({ acknowledgments })
  assert.equal(processed, 2)
  assert.deepEqual(results.map(({ status }) => status), ['completed', 'failed', 'unknown'])
  assert.match(results[0].completedAt, /^\d{4}-\d\d-\d\dT/)
})

test('a consumer completes handled messages and fails the others', async () => {
  const ns = newName()
  await client.configure({ ns, task: 't', queue: 'q', options: { retryLimit: 0 } })
  const handled = []
  const consumer = client.consume({ ns, concurrency: 4, worker: 'me' }, ({ payload }) => {
    handled.push(payload)
    if (payload === 2) throw new Error('not two')
  })
  await pushTo(ns, 1, 2, 3)
  await eventually(async () => {
    const { completed, deadLetter } = (await client.analytics.task(ns, 't')).totals
    return completed === 2 && deadLetter === 1
  })
  await consumer.stop()
  assert.deepEqual(handled.sort(), [1, 2, 3])
})

test('consume accepts its handler as the Queen client does', async () => {
  const ns = newName()
  const handled = []
  const handler = ({ payload }) => handled.push(payload)
  const consumer = client.consume({ ns, task: 't', queue: 'q', handler, options: { batch: 10, wait: true, timeout: 100 } })
  await pushTo(ns, 1, 2)
  await eventually(async () => (await client.analytics.task(ns, 't')).totals.completed === 2)
  await consumer.stop()
  assert.deepEqual(handled, [1, 2])
})

test('a consumer without a handler or a namespace is refused immediately', async () => {
  const ns = newName()
  await pushTo(ns, 1)
  for (const given of [[() => {}, { ns }], [{ ns }], [], [() => {}], [{ ns, handler: 1 }], [{ ns }, null]]) {
    assert.throws(() => client.consume(...given), { name: 'TypeError', message: /handler must be a function/ })
  }
  assert.throws(() => client.consume({ handler: () => {} }), { name: 'TypeError', message: /namespace/ })
  assert.throws(() => client.consume({ ns, options: { stopOnError: true } }, () => {}), { name: 'TypeError', message: /stopOnError/ })
  const { pending, processing } = (await client.analytics.task(ns, 't')).totals
  assert.deepEqual([pending, processing], [1, 0])
})

test('a payload that JSON cannot express is refused', async () => {
  const ns = newName()
  for (const payload of [undefined, NaN, () => 1, Promise.resolve(1)]) {
    await assert.rejects(pushTo(ns, payload), { name: 'InvalidInput', code: 'invalid_value' })
  }
})

test('analytics return queues, depths, throughput and latency', async () => {
  const ns = newName()
  await pushTo(ns, 1, 2)
  await client.ack(await client.pop({ ns }))
  const path = `${ns}/t/q`
  const { queues } = await client.analytics.queues()
  const { stats } = queues.find(({ queue }) => queue === path)
  assert.deepEqual(stats, { pending: 1, processing: 0, completed: 1, failed: 0, deadLetter: 0, total: 2 })
  const { depths } = await client.analytics.queueDepths()
  assert.deepEqual(depths.find(({ queue }) => queue === path), { queue: path, depth: 1, processing: 0 })
  const from = new Date(Date.now() - 600_000)
  const { throughput } = await client.analytics.throughput({ from, interval: '5m' })
  assert.ok(throughput.length >= 2)
  const { latency } = await client.analytics.latency({ limit: 1_000 })
  assert.deepEqual(Object.keys(latency.find(({ queue }) => queue === path).wait), ['p50', 'p95', 'p99'])
})
