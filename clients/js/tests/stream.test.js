import assert from 'node:assert/strict'
import test from 'node:test'
import { Conflict, InvalidInput, NotFound, connect } from '../src/index.js'
import { newName, startProxy, serve } from './support.js'

const server = await serve()
const client = connect(server.url)

const newStream = async (options) => {
  const stream = client.stream(newName('s'))
  await stream.create(options)
  return stream
}

test('records are read exactly as they were appended', async () => {
  const stream = await newStream()
  const records = ['text', new Uint8Array([0, 255]), { big: 2n ** 64n }, { data: 'x', encoding: 'base64' }, null, 7, []]
  assert.deepEqual(await stream.append(records), { first: 0, last: 6, records: 7 })
  const page = await stream.read()
  assert.deepEqual(page.records.map(({ data }) => data), records)
  assert.equal(page.next, 7)
  assert.deepEqual((await stream.read({ from: 5, limit: 1 })).records.map(({ offset }) => offset), [5])
})

test('a repeated append adds its records once', async () => {
  const proxy = await startProxy(server.url)
  const stream = connect(proxy.url).stream(newName('s'))
  await stream.create()
  proxy.faults = ({ method }) => (method === 'POST' && proxy.requests.length === 2 ? 'lose' : undefined)
  assert.deepEqual(await stream.append(['a', 'b']), { first: 0, last: 1, records: 2 })
  assert.equal(proxy.requests.length, 3)
  await stream.append(['c'], { key: 'mine' })
  await stream.append(['c'], { key: 'mine' })
  assert.equal((await stream.info()).next, 3)
})

test('a consumer commits an offset and resumes there', async () => {
  const stream = await newStream()
  await stream.append([1, 2, 3])
  const { consumer } = await stream.addConsumer()
  assert.equal((await stream.next(consumer, { limit: 2 })).records.length, 2)
  assert.equal((await stream.commit(consumer, 1)).lag, 1)
  await assert.rejects(stream.commit(consumer, 0), Conflict)
  assert.equal((await stream.commit(consumer, 0, { force: true })).offset, 0)
  assert.deepEqual((await stream.consumers()).map((each) => each.consumer), [consumer])
  assert.equal((await stream.consumer(consumer)).lag, 2)
  await stream.forget(consumer)
  await assert.rejects(stream.consumer(consumer), NotFound)
})

test('follow continues after a lost connection and waits for new records', async () => {
  const proxy = await startProxy(server.url)
  const stream = connect(proxy.url).stream(newName('s'))
  await stream.create()
  await stream.append(['a'])
  const found = []
  for await (const { data } of stream.follow()) {
    found.push(data)
    if (found.length === 1) {
      proxy.cut()
      await stream.append(['b', 'c'])
    }
    if (found.length === 3) break
  }
  assert.deepEqual(found, ['a', 'b', 'c'])
})

test('a consumer resumes after its last committed record', async () => {
  const stream = await newStream()
  await stream.append([1, 2, 3])
  const found = []
  for await (const { data } of stream.consume('me', { limit: 1 })) {
    found.push(data)
    if (data === 2) break
  }
  for await (const { data } of stream.consume('me')) {
    found.push(data)
    if (data === 3) break
  }
  assert.deepEqual(found, [1, 2, 2, 3])
})

test('an abort signal or closing the client ends a wait for records', async () => {
  const own = connect(server.url)
  const stream = own.stream((await newStream()).name)
  const ending = new AbortController()
  const following = stream.follow({ signal: ending.signal }).next()
  ending.abort()
  assert.deepEqual(await following, { value: undefined, done: true })
  const reading = stream.read({ wait_ms: 60_000 })
  own.close()
  await assert.rejects(reading, { name: 'Closed' })
})

test('streams are listed, changed, trimmed and dropped', async () => {
  const stream = await newStream({ retention_ms: 3_600_000 })
  assert.equal((await stream.configure({ retention_ms: 7_200_000 })).options.retention_ms, 7_200_000)
  assert.ok((await client.streams({ prefix: stream.name })).streams.some(({ name }) => name === stream.name))
  await stream.append(['a'])
  const shown = await stream.info()
  assert.deepEqual([shown.first, shown.next, shown.segments.length], [0, 1, 1])
  assert.equal((await stream.trim()).removed_records, 0)
  await assert.rejects(stream.read({ from: 99 }), InvalidInput)
  await stream.drop()
  await assert.rejects(stream.info(), { name: 'NotFound', code: 'unknown_stream' })
})
