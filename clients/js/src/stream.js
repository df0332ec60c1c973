/** A stream, `/streams/{name}`: a log that can be read from any offset. */
import { fromBase64, newKey, toBase64 } from './bytes.js'
import { InvalidInput, isTransient } from './errors.js'
import { backoffMs, pause, remaining } from './http.js'

/** @import { Http } from './http.js' */
/** @import * as shapes from '../shapes.d.ts' */

const WAIT_MS = 20_000

export class Stream {
  /**
   * @param {Http} http
   * @param {string} name
   */
  constructor(http, name) {
    if (typeof name !== 'string' || name === '') throw new InvalidInput('a stream has a name', { field: 'name' })
    this.name = name
    this._http = http
    this._path = `/streams/${encodeURIComponent(name)}`
  }

  /**
   * Create the stream; does nothing if it exists with the same options.
   * @param {shapes.StreamOptions} [options]
   * @returns {Promise<shapes.StreamInfo>}
   */
  create(options = {}) {
    return this._http.json('POST', '/streams', { body: { name: this.name, ...options } })
  }

  /**
   * Return the stream with its segments and consumers.
   * @returns {Promise<shapes.StreamDetail>}
   */
  info() {
    return this._http.json('GET', this._path)
  }

  /**
   * @param {shapes.StreamOptions} changes
   * @returns {Promise<shapes.StreamInfo>}
   */
  configure(changes) {
    return this._http.json('PATCH', this._path, { body: changes })
  }

  /**
   * Delete the stream; with `force`, even if it has consumers.
   * @param {{force?: boolean}} [options]
   * @returns {Promise<{dropped: string}>}
   */
  drop({ force } = {}) {
    return this._http.json('DELETE', this._path, { query: { force }, repeatable: false })
  }

  /**
   * Remove the oldest segments that no consumer needs.
   * @param {{before?: number, force?: boolean}} [options]
   * @returns {Promise<shapes.Trimmed>}
   */
  trim(options = {}) {
    return this._http.json('POST', `${this._path}/trim`, { body: options })
  }

  // Records

  /**
   * Append records, all or none: strings as text, Uint8Arrays as bytes, anything else as JSON. Resolves once they are
   * durable; neither a retry nor another append with the same `key` within 15 minutes adds them again.
   * @param {unknown[]} records
   * @param {{key?: string}} [options]
   * @returns {Promise<shapes.Appended>}
   */
  async append(records, { key = newKey() } = {}) {
    const headers = { 'idempotency-key': key }
    return this._http.json('POST', `${this._path}/records`, { body: { records: records.map(sentRecord) }, headers })
  }

  /**
   * Read records from an offset, by default the earliest, waiting up to `wait_ms` for the first.
   * @param {shapes.ReadOptions} [options]
   * @returns {Promise<shapes.RecordPage>}
   */
  async read({ from, limit, wait_ms = 0, signal } = {}) {
    const left = remaining(wait_ms)
    const ask = { query: () => ({ from, limit, wait_ms: left() }), waitMs: wait_ms, signal }
    return readRecords(await this._http.json('GET', `${this._path}/records`, ask))
  }

  /**
   * Read the records after a consumer's offset, waiting up to `wait_ms` for the first.
   * @param {string} consumer
   * @param {{limit?: number, wait_ms?: number, signal?: AbortSignal}} [options]
   * @returns {Promise<shapes.RecordPage>}
   */
  async next(consumer, { limit, wait_ms = 0, signal } = {}) {
    const left = remaining(wait_ms)
    const ask = { query: () => ({ consumer, limit, wait_ms: left() }), waitMs: wait_ms, signal }
    return readRecords(await this._http.json('GET', `${this._path}/next`, ask))
  }

  /**
   * Yield every record from an offset, and new ones as they arrive, across server outages, until the signal aborts.
   * @param {{from?: number, limit?: number, signal?: AbortSignal}} [options]
   * @returns {AsyncGenerator<shapes.StreamRecord, void, void>}
   */
  async *follow({ from, limit, signal } = {}) {
    let offset = from
    yield* this._pages(signal, async (ending) => {
      const page = await this.read({ from: offset, limit, wait_ms: WAIT_MS, signal: ending })
      offset = page.next
      return page.records
    })
  }

  /**
   * Like `follow`, from a consumer's offset, which is committed when the loop asks for the next page: records yielded
   * since the last commit are read again.
   * @param {string} consumer
   * @param {{limit?: number, signal?: AbortSignal}} [options]
   * @returns {AsyncGenerator<shapes.StreamRecord, void, void>}
   */
  async *consume(consumer, { limit, signal } = {}) {
    /** @type {number | undefined} */
    let last
    yield* this._pages(signal, async (ending) => {
      if (last !== undefined) await this.commit(consumer, last)
      const { records } = await this.next(consumer, { limit, wait_ms: WAIT_MS, signal: ending })
      last = records.at(-1)?.offset
      return records
    })
  }

  /**
   * @param {AbortSignal | undefined} signal
   * @param {(ending: AbortSignal) => Promise<shapes.StreamRecord[]>} read
   * @returns {AsyncGenerator<shapes.StreamRecord, void, void>}
   */
  async *_pages(signal, read) {
    const { controller, release } = this._http.controller(signal)
    try {
      for (let failures = 0; !controller.signal.aborted; ) {
        try {
          yield* await read(controller.signal)
          failures = 0
        } catch (error) {
          if (controller.signal.aborted) return
          if (!isTransient(error)) throw error
          await pause(backoffMs(failures++), controller.signal).catch(() => {})
        }
      }
    } finally {
      release()
    }
  }

  // Consumers

  /** @returns {Promise<shapes.StreamConsumer[]>} */
  async consumers() {
    return (await this._http.json('GET', `${this._path}/consumers`)).consumers
  }

  /**
   * Create a consumer, with a unique id unless one is given.
   * @param {string} [consumer]
   * @returns {Promise<shapes.StreamConsumer>}
   */
  addConsumer(consumer) {
    return this._http.json('POST', `${this._path}/consumers`, { body: { consumer }, repeatable: consumer !== undefined })
  }

  /**
   * Return a consumer with its offset and lag.
   * @param {string} consumer
   * @returns {Promise<shapes.StreamConsumer>}
   */
  consumer(consumer) {
    return this._http.json('GET', `${this._path}/consumers/${encodeURIComponent(consumer)}`)
  }

  /**
   * Commit an offset: the last record processed. It moves back only with `force`.
   * @param {string} consumer
   * @param {number} offset
   * @param {{force?: boolean}} [options]
   * @returns {Promise<shapes.StreamConsumer>}
   */
  commit(consumer, offset, { force } = {}) {
    const path = `${this._path}/consumers/${encodeURIComponent(consumer)}`
    return this._http.json('PUT', path, { body: { offset, force } })
  }

  /**
   * @param {string} consumer
   * @returns {Promise<void>}
   */
  async forget(consumer) {
    await this._http.json('DELETE', `${this._path}/consumers/${encodeURIComponent(consumer)}`)
  }
}

/**
 * @param {unknown} record
 * @returns {unknown}
 */
function sentRecord(record) {
  if (record instanceof ArrayBuffer) return sentRecord(new Uint8Array(record))
  if (record instanceof Uint8Array) return { data: toBase64(record), encoding: 'base64' }
  // An object may look like an encoded record, so mark it as JSON.
  if (record !== null && typeof record === 'object' && 'encoding' in record) return { data: record, encoding: 'json' }
  if (record === undefined) {
    throw new InvalidInput('records: expected a value, got undefined', { code: 'invalid_value', field: 'records', hint: 'to append nothing, append null' })
  }
  return record
}

/**
 * @param {shapes.RecordPage} page
 * @returns {shapes.RecordPage}
 */
function readRecords(page) {
  for (const record of page.records) {
    if (record.encoding === 'base64') {
      record.data = fromBase64(/** @type {string} */ (record.data))
      delete record.encoding
    }
  }
  return page
}
