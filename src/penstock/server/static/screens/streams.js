import { h } from '../dom.js'
import { head } from '../parts.js'
/** @type {import('../app.js').Screen} */
export function streams(app, place, signal) { return h('div', {}, head('streams')) }
