/** The tree API, `/api/v1`: namespace, task, queue. Messages are settled by their transaction id. */
import { Analytics } from './analytics.js'
import { newUuid, readPayload, sentPayload } from './bytes.js'
import { Consumer, checkConsume, errorText } from './consumer.js'
import { Forbidden, InvalidInput, LeaseLost, NotFound, TryLater, errorOfItem } from './errors.js'
import { eventBatches, eventsOf } from './events.js'
import { FULL, Http, remaining } from './http.js'
import { Batcher, sendOrSplit } from './batcher.js'
import { stringify } from './json.js'

/** @import { ConnectOptions } from './http.js' */
/** @import { ConsumeOptions, Handler } from './consumer.js' */
/** @import { EventOptions } from './events.js' */
/** @import * as shapes from '../shapes.d.ts' */

const API = '/api/v1'
const JOINED_BYTES_MAX = 4 << 20
const OVERHEAD_BYTES = 4 << 10
const WAIT_MS_MAX = 60_000

/**
 * @typedef {ReturnType<typeof createTree>} QueenClient
 * @typedef {{ns: string, task?: string, queue?: string}} Scope
 * @typedef {{batch?: number, wait?: boolean, timeout?: number}} QueenConsumeOptions
 * @typedef {Scope & ConsumeOptions & {worker?: string, options?: QueenConsumeOptions}} TreeConsumeOptions
 * @typedef {{items: (shapes.TreeItem & {transactionId: string})[], named: boolean[], bytes: number}} PushEntry
 */

/**
 * @param {ConnectOptions & {baseUrl: string}} options
 * @returns {QueenClient}
 */
export function createQueenClient({ baseUrl, ...options }) {
  return createTree(new Http(baseUrl, options))
}

/** @param {Http} http */
export function createTree(http) {
  const pushes = { true: pushBatcher(http, true), false: pushBatcher(http, false) }
  /** @type {Batcher<shapes.Acknowledgment, shapes.Acknowledged>} */
  const acks = new Batcher((entries) => sendOrSplit(entries, (some) => settle(http, some), refused), {
    weigh: ({ error }) => String(error ?? '').length + OVERHEAD_BYTES,
    weightMax: JOINED_BYTES_MAX,
  })

  return {
    analytics: new Analytics(http),

    /**
     * Create a queue, or change the given options of an existing one.
     * @param {{ns: string, task: string, queue: string, options?: shapes.TreeOptions}} body
     * @returns {Promise<shapes.Configured>}
     */
    configure: (body) => http.json('POST', `${API}/configure`, { body }),

    /**
     * Push items to any queues; missing queues are created. Each item has a transactionId, given or generated, so that
     * a retry never adds a second message. With `config.batchMode`, all or none are pushed; otherwise concurrent pushes
     * are batched and each item is independent. Throws if none could be pushed.
     * @param {{items: shapes.TreeItem[], config?: {batchMode?: boolean, autoCreate?: boolean}}} body
     * @returns {Promise<shapes.TreePushed>}
     */
    push: async ({ items, config = {} }) => {
      if (!Array.isArray(items) || items.length === 0) throw new InvalidInput('no items to push', { field: 'items' })
      const entry = pushEntry(items)
      const messages = config.batchMode
        ? (await pushAll(http, [entry], config, false))[0]
        : await pushes[/** @type {'true' | 'false'} */ (String(config.autoCreate !== false))].join(entry)
      return { messages, messageIds: messages.map(({ id }) => id) }
    },

    /**
     * Lease messages of a queue, or of all queues of a task or namespace; with `wait`, wait up to `timeout`
     * milliseconds. The fields of a single message are also beside `messages`; `messages` is empty if there are none.
     * @param {Scope & {wait?: boolean, timeout?: number, batch?: number, worker?: string, signal?: AbortSignal}} options
     * @returns {Promise<shapes.Popped>}
     */
    pop: (options) => pop(http, options),

    /**
     * Settle one message as completed or failed (which may be retried). Given the message rather than its
     * transactionId, only its own lease is settled.
     * @param {string | {transactionId: string, leaseToken?: string}} message
     * @param {'completed' | 'failed'} [status]
     * @param {string} [error]
     * @returns {Promise<shapes.Acknowledged>}
     */
    ack: async (message, status = 'completed', error) => {
      const { transactionId, leaseToken } = typeof message === 'string' ? { transactionId: message } : (message ?? {})
      if (typeof transactionId !== 'string') {
        throw new InvalidInput('no transactionId to ack', { field: 'transactionId', hint: 'the pop may have returned no message' })
      }
      return acks.join({ transactionId, status, error, leaseToken })
    },

    /**
     * Settle messages independently: `stale` means the lease is over, `unknown` that the message does not exist.
     * @param {shapes.Acknowledgment[] | {acknowledgments: shapes.Acknowledgment[]}} acknowledgments
     * @returns {Promise<{processed: number, results: shapes.Acknowledged[]}>}
     */
    ackBatch: (acknowledgments) =>
      ackBatch(http, Array.isArray(acknowledgments) ? acknowledgments : acknowledgments.acknowledgments),

    /**
     * Process messages until stopped: a message is completed if its handler returns, and failed if it throws.
     * Call it as with Queen's client, `consume({ ns, task, queue, handler })`, or with the handler as second argument.
     * Queen's `options: { batch, wait, timeout }` are accepted; `concurrency` decides how much to lease and how long to
     * wait.
     * @param {TreeConsumeOptions & {handler?: Handler<shapes.TreeMessage>}} given
     * @param {Handler<shapes.TreeMessage>} [handler]
     * @returns {Consumer<shapes.TreeMessage>}
     */
    consume: (given, handler) => {
      const { ns, task, queue, worker, handle, ...options } = checkTreeConsume(given, handler)
      /** @param {shapes.TreeMessage} message @param {'completed' | 'failed'} status @param {string} [error] */
      const ack = ({ transactionId, leaseToken }, status, error) =>
        acks.join({ transactionId, leaseToken, status, error })
      return new Consumer(
        {
          lease: async (batch, signal) =>
            (await pop(http, { ns, task, queue, wait: true, batch, worker, signal })).messages,
          handle: async (/** @type {shapes.TreeMessage} */ message) => handle(message),
          done: (message) => ack(message, 'completed'),
          failed: (message, error) => ack(message, 'failed', errorText(error)),
        },
        http,
        options,
      )
    },

    /**
     * Yield live events over a WebSocket that reconnects.
     * @param {EventOptions} [options]
     * @returns {AsyncGenerator<shapes.LiveEvent, void, void>}
     */
    events: (options) => eventsOf(eventBatches(http, options)),

    /** Abort all requests in flight. */
    close: () => http.close(),
  }
}

/**
 * @param {TreeConsumeOptions & {handler?: Handler<shapes.TreeMessage>}} given
 * @param {Handler<shapes.TreeMessage>} [second]
 * @returns {Scope & ConsumeOptions & {worker?: string, handle: Handler<shapes.TreeMessage>}}
 */
function checkTreeConsume(given, second) {
  const { options, ...own } = second === undefined ? Object(given) : { ...given, handler: second }
  const { batch: _, wait: __, timeout: ___, ...more } = options ?? {}
  const usage = 'consume({ ns, task, queue, handler, ...options }) or consume({ ns, ...options }, handler)'
  const { handler, ...checked } = checkConsume({ ...own, ...more }, usage, ['ns', 'task', 'queue', 'worker'])
  if (!checked.ns) throw new TypeError(`ns is missing: a consumer needs a namespace; call ${usage}`)
  return { ...checked, handle: handler }
}

/**
 * @param {shapes.TreeItem[]} items
 * @returns {PushEntry}
 */
function pushEntry(items) {
  const sent = items.map((item) => ({
    ...item,
    ...sentPayload(item.payload),
    transactionId: item.transactionId ?? newUuid(),
  }))
  const bytes = sent.reduce((sum, { payload }) => sum + stringify(payload).length + OVERHEAD_BYTES, 0)
  return { items: sent, named: items.map(({ transactionId }) => transactionId != null), bytes }
}

/**
 * @param {Http} http
 * @param {boolean} autoCreate
 * @returns {Batcher<PushEntry, shapes.TreePushedItem[]>}
 */
function pushBatcher(http, autoCreate) {
  /** @param {PushEntry[]} entries @param {boolean} share */
  const send = (entries, share) => pushAll(http, entries, { autoCreate }, share)
  return new Batcher(
    async (entries) => {
      const results = await sendOrSplit(entries, (some) => send(some, some.length > 1), refused)
      return Promise.all(results.map((result, number) => settlePush(result, () => send([entries[number]], false))))
    },
    { weigh: ({ bytes }) => bytes, weightMax: JOINED_BYTES_MAX },
  )
}

/**
 * Return the result for one caller of a batched request, as if its items had been sent alone.
 * @param {shapes.TreePushedItem[] | Error} result
 * @param {() => Promise<shapes.TreePushedItem[][]>} alone
 */
async function settlePush(result, alone) {
  if (result instanceof Error || result.some(({ status }) => status !== 'failed')) return result
  const [{ code = '', error = '' }] = result
  if (!FULL.includes(code)) return errorOfItem(code, error)
  try {
    return (await alone())[0]
  } catch (failure) {
    return /** @type {Error} */ (failure)
  }
}

/** @param {unknown} error */
function refused(error) {
  if (error instanceof TryLater) return FULL.includes(error.code)
  return error instanceof InvalidInput || error instanceof Forbidden || error instanceof NotFound
}

/**
 * @param {Http} http
 * @param {PushEntry[]} entries
 * @param {object} config
 * @param {boolean} share
 * @returns {Promise<shapes.TreePushedItem[][]>}
 */
async function pushAll(http, entries, config, share) {
  const body = { items: entries.flatMap(({ items }) => items), config }
  /** @type {{messages: shapes.TreePushedItem[]}} */
  const { messages } = await http.json('POST', `${API}/push`, { body, share })
  let position = 0
  return entries.map(({ named }) =>
    named.map((byCaller) => {
      const message = messages[position++]
      // The duplicate is the client's own retry: do not report it.
      return message.status === 'duplicate' && !byCaller ? { ...message, status: 'queued' } : message
    }),
  )
}

/**
 * @param {Http} http
 * @param {Scope & {wait?: boolean, timeout?: number, batch?: number, worker?: string, signal?: AbortSignal}} options
 * @returns {Promise<shapes.Popped>}
 */
async function pop(http, { ns, task, queue, wait, timeout, batch, worker, signal }) {
  if (!ns) throw new InvalidInput('ns is missing: a pop needs a namespace', { field: 'ns' })
  if (queue && !task) throw new InvalidInput('task is missing: a queue belongs to a task', { field: 'task' })
  const parts = [`ns/${encodeURIComponent(ns)}`]
  if (task) parts.push(`task/${encodeURIComponent(task)}`)
  if (queue) parts.push(`queue/${encodeURIComponent(queue)}`)
  const left = timeout === undefined ? () => undefined : remaining(timeout)
  const popped = await http.json('GET', `${API}/pop/${parts.join('/')}`, {
    query: () => ({ wait, timeout: left(), batch, worker }),
    waitMs: wait ? Math.min(timeout ?? WAIT_MS_MAX, WAIT_MS_MAX) : 0,
    signal,
  })
  /** @type {shapes.TreeMessage[]} */
  const messages = (popped?.messages ?? []).map(readPayload)
  return messages.length === 1 ? { ...messages[0], messages } : { messages }
}

/**
 * The server remembers what a token did, so a retry gets the results of the first attempt for items with a token.
 * @param {Http} http
 * @param {shapes.Acknowledgment[]} acknowledgments
 * @returns {Promise<{value: {processed: number, results: shapes.Acknowledged[]}, repeated: boolean}>}
 */
function askToSettle(http, acknowledgments) {
  const sent = acknowledgments.map(({ transactionId, status, error, leaseToken }) => ({
    transactionId,
    status,
    error,
    leaseToken,
  }))
  return http.ask('POST', `${API}/ack/batch`, { body: { acknowledgments: sent } })
}

/**
 * @param {Http} http
 * @param {shapes.Acknowledgment[]} acknowledgments
 * @returns {Promise<{processed: number, results: shapes.Acknowledged[]}>}
 */
async function ackBatch(http, acknowledgments) {
  return (await askToSettle(http, acknowledgments)).value
}

/**
 * @param {Http} http
 * @param {shapes.Acknowledgment[]} entries
 * @returns {Promise<(shapes.Acknowledged | Error)[]>}
 */
async function settle(http, entries) {
  const { value, repeated } = await askToSettle(http, entries)
  return value.results.map((result, number) => {
    const name = JSON.stringify(result.transactionId)
    // A message that still exists was not completed; otherwise an attempt whose response was lost may have done it.
    const maybeDone = repeated && (result.status !== 'stale' || entries[number].status === 'failed')
    if (result.status === 'stale') {
      return new LeaseLost(`${name} is not leased, or leased to another consumer`, { code: 'lease_lost', hint: 'pop again', maybeDone })
    }
    if (result.status === 'unknown') {
      return new NotFound(`message ${name} does not exist`, { code: 'unknown_message', maybeDone })
    }
    return result
  })
}
