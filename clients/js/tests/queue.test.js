import assert from 'node:assert/strict'
import test from 'node:test'
import { Conflict, InvalidInput, LeaseLost, NotFound, TryLater, connect } from '../src/index.js'
import { collect, eventually, newName, startProxy, serve } from './support.js'

const server = await serve()
const client = connect(server.url)

const newQueue = async (options) => {
  const queue = client.queue(newName())
  await queue.create(options)
  return queue
}
const leaseOne = async (queue) => (await queue.lease({ wait_ms: 0 }))[0]

test('messages are leased in push order with exact payloads', async () => {
  const queue = await newQueue()
  const payloads = [{ id: 12345678901234567890n, text: '12345678901234567890' }, new Uint8Array([0, 255]), 'text', null, [1.5]]
  for (const payload of payloads) await queue.push(payload)
  const messages = await queue.lease({ batch: 10, wait_ms: 0 })
  assert.deepEqual(messages.map(({ payload }) => payload), payloads)
  assert.deepEqual((await queue.peek({ state: 'leased' })).messages.map(({ payload }) => payload), payloads)
  await Promise.all(messages.map((message) => queue.ack(message)))
  assert.equal((await queue.info()).totals.acked, payloads.length)
})

test('concurrent pushes are batched and keep their order', async () => {
  const proxy = await startProxy(server.url)
  const queue = connect(proxy.url).queue(newName())
  await queue.create()
  const receipts = await Promise.all(Array.from({ length: 500 }, (_, n) => queue.push(n)))
  const pushes = proxy.requests.filter(({ path }) => path.endsWith('/messages'))
  assert.ok(pushes.length <= 3, `${pushes.length} requests`)
  assert.deepEqual((await queue.lease({ batch: 500 })).map(({ payload }) => payload), Array.from({ length: 500 }, (_, n) => n))
  assert.equal(new Set(receipts.map(({ id }) => id)).size, 500)
})

test('a refused push does not fail the others in its batch', async () => {
  const queue = await newQueue()
  const large = 'x'.repeat(600 * 1024)
  const pushed = await Promise.allSettled([queue.push(1), queue.push(large), queue.push(3, { delay_ms: -1 }), queue.push(4)])
  assert.deepEqual(pushed.map(({ status }) => status), ['fulfilled', 'rejected', 'rejected', 'fulfilled'])
  assert.ok(pushed[1].reason instanceof InvalidInput)
  assert.equal(pushed[1].reason.code, 'payload_too_large')
  assert.equal((await queue.info()).ready, 2)
})

test('a full queue accepts the messages that fit', async () => {
  const queue = connect(server.url, { retryAttempts: 0 }).queue(newName())
  await queue.create({ max_size: 2 })
  const pushed = await Promise.allSettled([1, 2, 3].map((n) => queue.push(n)))
  assert.deepEqual(pushed.map(({ status }) => status), ['fulfilled', 'fulfilled', 'rejected'])
  assert.ok(pushed[2].reason instanceof TryLater)
  assert.ok(pushed[2].reason.retryAfterMs > 0)
})

test('a repeated idempotency key adds no second message', async () => {
  const queue = await newQueue()
  const first = await queue.push(1, { idempotency_key: 'k' })
  const [again, other] = await queue.pushMany([{ payload: 2, idempotency_key: 'k' }, { payload: 3 }])
  assert.deepEqual([first.duplicate, again.duplicate, other.duplicate], [false, true, false])
  assert.equal(again.id, first.id)
})

test('pushMany adds all messages or none', async () => {
  const queue = await newQueue()
  await assert.rejects(queue.pushMany([{ payload: 1 }, { payload: 2, delay_ms: -1 }]), { field: 'messages[1].delay_ms' })
  assert.deepEqual(await queue.pushMany([]), [])
  assert.equal((await queue.info()).ready, 0)
})

test('a lost lease settles nothing', async () => {
  const queue = await newQueue()
  await queue.push(1)
  const message = await leaseOne(queue)
  await queue.release(message)
  await assert.rejects(queue.ack(message), LeaseLost)
  await assert.rejects(queue.nack(message), LeaseLost)
  await assert.rejects(queue.extend(message, 1_000), LeaseLost)
  await assert.rejects(queue.ack({ id: 10 ** 9, token: 'x' }), NotFound)
  const again = await leaseOne(queue)
  const { lease_expires_at } = await queue.extend(again, 3_600_000)
  assert.ok(lease_expires_at > again.lease_expires_at)
})

test('a refused settle does not fail the others in its batch', async () => {
  const queue = await newQueue()
  await queue.pushMany([1, 2, 3].map((payload) => ({ payload })))
  const [one, two, three] = await queue.lease({ batch: 3 })
  const acked = await Promise.allSettled([queue.ack(one), queue.ack({ id: 'none', token: 'x' })])
  assert.deepEqual(acked.map(({ reason }) => reason?.name), [undefined, 'InvalidInput'])
  const nacked = await Promise.allSettled([queue.nack(two, { delay_ms: -1 }), queue.nack(three)])
  assert.deepEqual(nacked.map(({ reason }) => reason?.name), ['InvalidInput', undefined])
})

test('nacks with long errors are split into several requests', async () => {
  const queue = await newQueue()
  await queue.pushMany(Array.from({ length: 300 }, (_, payload) => ({ payload })))
  const error = 'x'.repeat(60_000)
  const messages = await queue.lease({ batch: 300 })
  const nacked = await Promise.all(messages.map((message) => queue.nack(message, { error })))
  assert.equal(nacked.length, 300)
})

test('dead letters are listed with their errors, redriven and purged', async () => {
  const queue = await newQueue({ max_attempts: 1 })
  await queue.pushMany([{ payload: 1 }, { payload: 2 }, { payload: 3 }])
  for (const message of await queue.lease({ batch: 3 })) {
    const { state } = await queue.nack(message, { error: `no luck with ${message.payload}` })
    assert.equal(state, 'dead')
  }
  const { messages } = await queue.deadLetters({ limit: 2 })
  assert.deepEqual(messages.map(({ error }) => error), ['no luck with 3', 'no luck with 2'])
  const where = { error_contains: 'with 2' }
  assert.deepEqual(await queue.redrive({ where, dry_run: true }), { matched: 1, moved: 0, skipped: 1 })
  assert.deepEqual(await queue.redrive({ where }), { matched: 1, moved: 1, skipped: 0 })
  assert.equal((await leaseOne(queue)).payload, 2)
  assert.deepEqual(await queue.purgeDeadLetters({ dry_run: true }), { purged: 2, dry_run: true })
  assert.deepEqual(await queue.purgeDeadLetters(), { purged: 2, dry_run: false })
})

test('a queue is created, changed, paused, purged and dropped', async () => {
  const queue = await newQueue({ visibility_ms: 1_000 })
  await queue.create({ visibility_ms: 1_000 })
  await assert.rejects(queue.create({ visibility_ms: 2_000 }), Conflict)
  assert.equal((await queue.configure({ priority: 7 })).options.priority, 7)
  await assert.rejects(queue.configure({ priority: 'high' }), { name: 'InvalidInput', field: 'priority' })
  await queue.push(1, { headers: { from: 'me' } })
  assert.equal((await queue.pause()).paused, true)
  assert.deepEqual(await queue.lease({ wait_ms: 0 }), [])
  assert.equal((await queue.resume()).paused, false)
  assert.equal((await queue.stats()).ready, 1)
  const [{ id }] = (await queue.peek()).messages
  assert.deepEqual((await queue.get(id)).headers, { from: 'me' })
  await queue.remove(id)
  await assert.rejects(queue.get(id), NotFound)
  await queue.push(2)
  assert.deepEqual(await queue.purge({ dry_run: true }), { purged: 1, dry_run: true })
  await assert.rejects(queue.drop(), Conflict)
  await queue.drop({ force: true })
  await assert.rejects(queue.info(), { name: 'NotFound', code: 'unknown_queue' })
})

test('queues are listed by page or all at once', async () => {
  const prefix = newName('list')
  for (const name of ['a', 'b', 'c']) await client.queue(`${prefix}/t/${name}`).create()
  const page = await client.queues({ prefix, limit: 2 })
  assert.deepEqual(page.queues.map(({ name }) => name), [`${prefix}/t/a`, `${prefix}/t/b`])
  const rest = await client.queues({ prefix, after: page.next })
  assert.deepEqual(rest.queues.map(({ name }) => name), [`${prefix}/t/c`])
  assert.equal((await collect(client.allQueues({ prefix }))).length, 3)
})

test('an ack and the pushes of its transaction are atomic', async () => {
  const [queue, other] = [await newQueue(), await newQueue()]
  await queue.push(1)
  const message = await leaseOne(queue)
  const done = await queue.transact({ ack: [message], push: [{ queue: other.name, payload: new Uint8Array([7]) }] })
  assert.equal(done.acked, 1)
  assert.deepEqual((await leaseOne(other)).payload, new Uint8Array([7]))
  await assert.rejects(queue.transact({ ack: [message], push: [{ payload: 2 }] }), NotFound)
  assert.equal((await queue.info()).ready, 0)
})

test('an export is imported once', async () => {
  const [queue, other] = [await newQueue(), await newQueue()]
  const payloads = [2n ** 64n, 'text', new Uint8Array([1, 2, 3])]
  await queue.pushMany(payloads.map((payload) => ({ payload })))
  const messages = await collect(queue.export())
  assert.deepEqual(messages.map(({ payload }) => payload), payloads)
  assert.equal((await other.import(messages)).imported, 3)
  assert.equal((await other.import(queue.export())).duplicates, 3)
  assert.deepEqual((await other.lease({ batch: 3 })).map(({ payload }) => payload), payloads)
})

test('a consumer acks handled messages and nacks failed ones', async () => {
  const queue = await newQueue({ backoff_ms: 0, max_attempts: 2 })
  await queue.pushMany([1, 2, 3, 4].map((payload) => ({ payload })))
  let [now, most] = [0, 0]
  const errors = []
  const consumer = queue.consume(
    async ({ payload }) => {
      most = Math.max(most, ++now)
      await new Promise(setImmediate)
      now--
      if (payload === 3) throw new TypeError('not three')
    },
    { concurrency: 2, onError: (error) => errors.push(error.message) },
  )
  try {
    await eventually(async () => (await queue.info()).dead === 1 && (await queue.info()).totals.acked === 3)
  } finally {
    await consumer.stop()
  }
  assert.equal(most, 2)
  assert.deepEqual(errors, ['not three', 'not three'])
  assert.equal((await queue.deadLetters()).messages[0].error, 'TypeError: not three')
})

test('a consumer extends the lease of a slow message', async () => {
  const queue = await newQueue()
  await queue.push(1)
  const kept = Promise.withResolvers?.() ?? {}
  kept.promise ??= new Promise((resolve) => (kept.resolve = resolve))
  // Long enough not to expire on a busy machine.
  const consumer = queue.consume(() => kept.promise, { visibility_ms: 6_000 })
  try {
    await eventually(async () => (await client.journal.events({ queue: queue.name, kinds: ['extended'] })).events.length > 1)
  } finally {
    kept.resolve()
    await consumer.stop()
  }
  const { totals } = await queue.info()
  assert.deepEqual([totals.acked, totals.lapsed], [1, 0])
})

test('a consumer of a missing queue fails with NotFound', async () => {
  await assert.rejects(client.queue(newName()).consume(() => {}).done, NotFound)
  assert.throws(() => client.queue('q').consume(() => {}, { concurrency: 0 }), InvalidInput)
})

test('a consumer without a callable handler is refused immediately', async () => {
  const queue = await newQueue({ max_attempts: 1 })
  await queue.push(1)
  const wrong = [[{ concurrency: 2 }, () => {}], [], [null], ['handler'], [{ concurrency: 2 }], [{ handler: 'x' }]]
  for (const given of wrong) {
    assert.throws(() => queue.consume(...given), { name: 'TypeError', message: /handler must be a function, got .*consume\(/ })
  }
  assert.throws(() => queue.consume(() => {}, { concurency: 2 }), { name: 'TypeError', message: /concurency.*concurrency/ })
  const { ready, dead, totals } = await queue.info()
  assert.deepEqual([ready, dead, totals.leased], [1, 0, 0])
})

test('a consumer accepts its handler among its options', async () => {
  const queue = await newQueue()
  await queue.push('here')
  const handled = []
  const consumer = queue.consume({ handler: ({ payload }) => handled.push(payload), concurrency: 2 })
  await eventually(async () => (await queue.info()).totals.acked === 1)
  await consumer.stop()
  assert.deepEqual(handled, ['here'])
})

test('a payload that JSON cannot express is refused', async () => {
  const queue = await newQueue()
  const circular = { name: 'me' }
  circular.self = circular
  const wrong = [undefined, NaN, () => 1, Infinity, Symbol('s'), Promise.resolve(1), new Map(), new Set()]
  for (const payload of wrong) {
    await assert.rejects(queue.push(payload), { name: 'InvalidInput', code: 'invalid_value', hint: /./ })
  }
  for (const part of wrong.slice(1)) {
    await assert.rejects(queue.push({ list: [{ part }] }), { name: 'InvalidInput', message: /"part" is .*JSON/ })
    await assert.rejects(queue.pushMany([{ payload: { part } }]), { name: 'InvalidInput' })
  }
  await assert.rejects(queue.pushMany([{ body: 1 }]), { name: 'InvalidInput', field: 'payload' })
  await assert.rejects(queue.push(circular), { name: 'TypeError', message: /circular/ })
  await assert.rejects(queue.push(1, { delay_ms: NaN }), { name: 'InvalidInput', message: /"delay_ms" is NaN/ })
  assert.equal((await queue.info()).ready, 0)
  await queue.push({ big: 2n ** 64n, date: new Date(0), none: undefined, nothing: null })
  const [{ payload }] = await queue.lease({ wait_ms: 0 })
  assert.deepEqual(payload, { big: 2n ** 64n, date: '1970-01-01T00:00:00.000Z', nothing: null })
})

test('an API key is shown once and is valid for one queue', async () => {
  const guarded = await serve({ PENSTOCK_AUTH_TOKEN: 'admin' })
  const admin = connect(guarded.url, { token: 'admin' })
  await admin.queue('mine').create()
  await admin.queue('theirs').create()
  const key = await admin.queue('mine').addKey({ name: 'worker', rights: ['push'] })
  assert.deepEqual((await admin.queue('mine').keys()).map(({ id, name }) => [id, name]), [[key.id, 'worker']])
  const worker = connect(guarded.url, { token: key.key })
  await worker.queue('mine').push(1)
  await assert.rejects(worker.queue('mine').lease({ wait_ms: 0 }), { name: 'Forbidden', status: 403 })
  await assert.rejects(worker.queue('theirs').push(1), { name: 'Forbidden' })
  await admin.queue('mine').removeKey(key.id)
  await assert.rejects(worker.queue('mine').push(1), { name: 'Unauthorized' })
  await assert.rejects(connect(guarded.url).queues(), { name: 'Unauthorized', code: 'unauthorized' })
})
