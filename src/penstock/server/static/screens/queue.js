import { h } from '../dom.js'
import { head } from '../parts.js'
/** @type {import('../app.js').Screen} */
export function queue(app, place, signal) { return h('div', {}, head('queue')) }
