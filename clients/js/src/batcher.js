/**
 * Batches concurrent calls into one request.
 *
 * There is no timer: while one request is in flight, the next batch gathers. So sequential calls do not wait, and
 * concurrent calls keep their order.
 */

/**
 * @template Entry, Result
 */
export class Batcher {
  /**
   * @param {(entries: Entry[]) => Promise<(Result | Error)[]>} send returns a result or error for each entry, in order
   * @param {{weigh: (entry: Entry) => number, weightMax: number}} limits limits of one request
   */
  constructor(send, { weigh, weightMax }) {
    this._send = send
    this._weigh = weigh
    this._weightMax = weightMax
    /** @type {{entry: Entry, resolve: (result: Result) => void, reject: (error: unknown) => void}[]} */
    this._waiting = []
    this._sending = false
  }

  /** True if no request is in flight and no call is waiting. */
  get idle() {
    return !this._sending && this._waiting.length === 0
  }

  /**
   * @param {Entry} entry
   * @returns {Promise<Result>}
   */
  join(entry) {
    return new Promise((resolve, reject) => {
      this._waiting.push({ entry, resolve, reject })
      if (!this._sending) {
        this._sending = true
        // Waits until the end of the microtask queue, so that calls of the same tick join the batch.
        queueMicrotask(() => this._work())
      }
    })
  }

  async _work() {
    while (this._waiting.length > 0) {
      const batch = this._take()
      try {
        const results = await this._send(batch.map(({ entry }) => entry))
        batch.forEach(({ resolve, reject }, number) => {
          const result = results[number]
          if (result instanceof Error) reject(result)
          else resolve(/** @type {Result} */ (result))
        })
      } catch (error) {
        batch.forEach(({ reject }) => reject(error))
      }
    }
    this._sending = false
  }

  _take() {
    let weight = 0
    let count = 0
    for (const { entry } of this._waiting) {
      weight += this._weigh(entry)
      if (count > 0 && weight > this._weightMax) break
      count++
    }
    return this._waiting.splice(0, count)
  }
}

/**
 * Send all in one request; if the server refuses it because of one entry, send each half on its own.
 * @template Entry, Result
 * @param {Entry[]} entries
 * @param {(entries: Entry[]) => Promise<Result[]>} send
 * @param {(error: unknown) => boolean} refused
 * @returns {Promise<(Result | Error)[]>}
 */
export async function sendOrSplit(entries, send, refused) {
  try {
    return await send(entries)
  } catch (error) {
    if (!(error instanceof Error) || !refused(error)) throw error
    if (entries.length === 1) return [error]
    const half = entries.length >> 1
    const first = await sendOrSplit(entries.slice(0, half), send, refused)
    return first.concat(await sendOrSplit(entries.slice(half), send, refused))
  }
}
