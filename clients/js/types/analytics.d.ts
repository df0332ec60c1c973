/** The tree API's analytics, `/api/v1/analytics`: now, or over a window with `from`, `to` and `interval`. */
import type { Http } from './http.js';
import type * as shapes from '../shapes.d.ts';
/** @import { Http } from './http.js' */
/** @import * as shapes from '../shapes.d.ts' */
export declare class Analytics {
    _http: Http;
    /** @param {Http} http */
    constructor(http: Http);
    /**
     * Return all queues, with their options and counts.
     * @param {shapes.PageOfHistory} [query]
     * @returns {Promise<{queues: shapes.TreeQueue[], next?: string}>}
     */
    queues(query?: shapes.PageOfHistory): Promise<{
        queues: shapes.TreeQueue[];
        next?: string;
    }>;
    /**
     * Return a namespace and its queues.
     * @param {string} ns
     * @param {shapes.PageOfHistory} [query]
     * @returns {Promise<{namespace: string, totals: shapes.TreeStats, queues: shapes.TreeQueue[], next?: string}>}
     */
    namespace(ns: string, query?: shapes.PageOfHistory): Promise<{
        namespace: string;
        totals: shapes.TreeStats;
        queues: shapes.TreeQueue[];
        next?: string;
    }>;
    /**
     * Return a task and its queues.
     * @param {string} ns
     * @param {string} task
     * @param {shapes.PageOfHistory} [query]
     * @returns {Promise<{namespace: string, task: string, totals: shapes.TreeStats, queues: shapes.TreeQueue[], next?: string}>}
     */
    task(ns: string, task: string, query?: shapes.PageOfHistory): Promise<{
        namespace: string;
        task: string;
        totals: shapes.TreeStats;
        queues: shapes.TreeQueue[];
        next?: string;
    }>;
    /**
     * Return the number of pending and processing messages by queue.
     * @param {shapes.PageOfHistory} [query]
     * @returns {Promise<{depths: shapes.QueueDepth[], next?: string}>}
     */
    queueDepths(query?: shapes.PageOfHistory): Promise<{
        depths: shapes.QueueDepth[];
        next?: string;
    }>;
    /**
     * Return the number of completed messages over time, in all queues, newest first.
     * @param {shapes.History} [query]
     * @returns {Promise<{throughput: shapes.ThroughputPoint[]}>}
     */
    throughput(query?: shapes.History): Promise<{
        throughput: shapes.ThroughputPoint[];
    }>;
    /**
     * Return wait and processing times by queue, in milliseconds.
     * @param {shapes.PageOfHistory} [query]
     * @returns {Promise<{latency: shapes.QueueLatency[], next?: string}>}
     */
    latency(query?: shapes.PageOfHistory): Promise<{
        latency: shapes.QueueLatency[];
        next?: string;
    }>;
    /**
     * @param {string} what
     * @param {shapes.PageOfHistory} [query]
     */
    _get(what: string, { from, to, ...rest }?: shapes.PageOfHistory): Promise<any>;
}
