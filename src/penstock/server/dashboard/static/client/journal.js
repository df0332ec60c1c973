/** The journal, `/journal`: all that happened to messages and queues, in order. */
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
   * How far it goes, and who reads it.
   * @returns {Promise<shapes.JournalInfo>}
   */
  info() {
    return this._http.json('GET', '/journal')
  }

  /**
   * Events from an offset on, by default the earliest kept, waiting up to `wait_ms` for the first. Those of one queue,
   * or of some kinds, may be few on a page that goes far: read on from `next`.
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
