/** Client of a Penstock server: queues, streams, the tree API, live events. */
export { Penstock, connect } from './penstock.js';
export { createQueenClient } from './tree.js';
export { Queue } from './queue.js';
export { Stream } from './stream.js';
export { Analytics } from './analytics.js';
export { Journal } from './journal.js';
export { Consumer } from './consumer.js';
export { parse, stringify } from './json.js';
export { AccessDenied, Closed, Conflict, Forbidden, InvalidInput, LeaseLost, NotFound, OffsetTrimmed, PenstockError, ServerFault, StoreError, TryLater, Unauthorized, Unreachable, } from './errors.js';
export type ConnectOptions = import('./http.js').ConnectOptions;
export type ConsumeOptions = import('./consumer.js').ConsumeOptions;
export type EventOptions = import('./events.js').EventOptions;
export type QueenClient = import('./tree.js').QueenClient;
/** @typedef {import('./http.js').ConnectOptions} ConnectOptions */
/** @typedef {import('./consumer.js').ConsumeOptions} ConsumeOptions */
/** @typedef {import('./events.js').EventOptions} EventOptions */
/** @typedef {import('./tree.js').QueenClient} QueenClient */
