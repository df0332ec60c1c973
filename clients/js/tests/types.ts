/** A TypeScript program that is only compiled, to check the types of the package. */
import { connect, createQueenClient, LeaseLost, type ConnectOptions, type QueenClient } from 'penstock-mq'

const options: ConnectOptions = { token: 'secret', timeout: 1_000 }
const client = connect('http://localhost:8888', options)

export async function work(): Promise<number> {
  const { id, duplicate } = await client.queue('emails').push({ big: 2n ** 64n }, { delay_ms: 5, priority: 1 })
  const [message] = await client.queue('emails').lease({ batch: 1 })
  const consumer = client.queue('emails').consume(async (each) => each.payload, { concurrency: 2 })
  await consumer.stop()
  try {
    await client.queue('emails').ack(message)
  } catch (error) {
    if (error instanceof LeaseLost) console.log(error.code, error.hint)
  }
  for await (const { event, data } of client.events()) console.log(event, data.queue)
  for await (const record of client.stream('orders').follow({ from: 0 })) console.log(record.offset)
  // @ts-expect-error there is no such option
  await client.queue('emails').push(1, { delay: 5 })
  return duplicate ? 0 : id
}

export async function tree(queen: QueenClient = createQueenClient({ baseUrl: 'http://localhost:3000' })) {
  const { messageIds } = await queen.push({ items: [{ ns: 'n', task: 't', queue: 'q', payload: 1 }] })
  const { transactionId } = await queen.pop({ ns: 'n', wait: true })
  if (transactionId) await queen.ack(transactionId, 'failed', 'why')
  return messageIds
}
