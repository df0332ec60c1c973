/** The journal, `/journal`: all events of messages and queues, in order. */
import { readPayload } from './bytes.js'
import { remaining } from './http.js'

/** @import { Http } from './http.js' */
/** @import * as shapes from '../shapes.d.ts' */

export class Journal {
  /** @param {Http} http */
  constructor(http) {
    this._http = http
  }

  /**
   * Return the journal's offsets, size and consumers.
   * @returns {Promise<shapes.JournalInfo>}
   */
  info() {
    return this._http.json('GET', '/journal')
  }

  /**
   * Read events from an offset, by default the earliest, waiting up to `wait_ms` for the first. With a filter by queue
   * or kind, a page may have few events of a long range; continue at `next`.
   * @param {shapes.JournalQuery} [options]
   * @returns {Promise<shapes.JournalPage>}
   */
  async events({ from, limit, wait_ms = 0, queue, kinds, signal } = {}) {
    const left = remaining(wait_ms)
    const page = await this._http.json('GET', '/journal/events', {
      query: () => ({ from, limit, wait_ms: left(), queue, kind: kinds?.join(',') }),
      waitMs: wait_ms,
      signal,
    })
    page.events.forEach(readPayload)
    return page
  }
}
