/** The bodies of requests and responses, with the server's names. Numeric times are milliseconds since 1970. */

// Queues

export interface QueueOptions {
  visibility_ms?: number
  lease_ms?: number
  max_attempts?: number
  backoff?: 'exponential' | 'fixed'
  backoff_ms?: number
  backoff_max_ms?: number
  max_in_flight?: number | null
  delay_ms?: number
  window_ms?: number
  ttl_ms?: number | null
  max_age_alert_ms?: number | null
  priority?: number
  max_size?: number | null
  push_rate?: number | null
  push_burst?: number | null
  dlq?: boolean | string
  require_lease_token?: boolean
  archive_ms?: number | null
  dedupe_ms?: number
  journal?: 'full' | 'meta' | 'off'
  /** The key that verifies message signatures. */
  secret?: string | null
}

export type State = 'ready' | 'scheduled' | 'leased' | 'dead' | 'archived'

export interface Totals {
  pushed: number
  leased: number
  acked: number
  nacked: number
  lapsed: number
  dead: number
  expired: number
  removed: number
  [name: string]: number
}

export interface QueueInfo {
  name: string
  max_attempts: number
  visibility_ms: number
  /** The name of the dead-letter queue. */
  dlq: string | null
  options: QueueOptions
  paused: boolean
  created_at: number
  ready: number
  scheduled: number
  leased: number
  dead: number
  archived: number
  totals: Totals
}

export interface QueueStats {
  queue: string
  paused: boolean
  ready: number
  scheduled: number
  leased: number
  dead: number
  dlq: number
  archived: number
  /** Time since the push of the ready message that would be leased next. */
  head_age_ms: number | null
  /** Time since the push of the oldest ready message of any priority. */
  oldest_age_ms: number | null
  /** True if `oldest_age_ms` exceeds the queue's `max_age_alert_ms`. */
  age_alert: boolean
  /** Messages per second over `1m`, `5m` and `15m`. */
  rates: Record<string, Record<string, number>>
  /** Share of deliveries that failed, among all that ended in the last 15 minutes. */
  error_rate: number
  /** `wait_ms`, `service_ms` and `total_ms`: p50, p95 and p99 over the last 15 minutes. */
  latency: Record<string, Record<string, number | null>>
  totals: Totals
}

export interface PushOptions {
  priority?: number
  delay_ms?: number
  ttl_ms?: number
  /** A push with a known key adds no second message. */
  idempotency_key?: string
  headers?: Record<string, string>
  /** `t=<ms>,v1=<hex>`, for a queue with a secret. */
  signature?: string
}

export interface NewMessage extends PushOptions {
  payload: unknown
}

export interface Receipt {
  id: number
  /** True if the idempotency key was known; `id` is then that of the first message. */
  duplicate: boolean
}

export interface LeaseOptions {
  /** Maximum number of messages; default 1. */
  batch?: number
  /** How long to wait for the first message; default 20,000. */
  wait_ms?: number
  /** Lease time; default: that of the queue. */
  visibility_ms?: number
  /** Name of the consumer, shown with its leases. */
  worker?: string
  signal?: AbortSignal
}

export interface Lease {
  id: number
  token?: string
}

export interface Failed {
  delay_ms?: number
  error?: string
  /** Stack trace, stored with the error. */
  traceback?: string
  /** Dead-letter the message now, even if attempts are left. */
  dead?: boolean
  /** Delete the message instead of dead-lettering it. */
  discard?: boolean
}

export interface SettleItem extends Lease, Failed {}

export interface Settled {
  id: number
  result: 'ok' | 'stale' | 'unknown'
  /** State after a nack: scheduled, ready or dead. */
  state?: State
}

export interface LeasedMessage {
  id: number
  uuid: string
  /** A Uint8Array if the message was pushed as bytes; whole numbers beyond 2^53 are BigInts. */
  payload: any
  /** The type of a payload that is not JSON. */
  content?: 'text' | 'bytes'
  priority: number
  attempts: number
  created_at: number
  lease_expires_at: number
  token: string
  idempotency_key?: string
  headers?: Record<string, string>
}

export interface Failure {
  at: number
  attempt: number
  error: string
  [name: string]: unknown
  /** Stack trace; only included when a single message is read. */
  traceback?: string
}

export interface Message {
  id: number
  uuid: string
  queue: string
  state: State
  payload: any
  content: 'json' | 'text' | 'bytes'
  priority: number
  attempts: number
  created_at: number
  available_at: number
  expires_at?: number
  first_leased_at?: number
  leased_at?: number
  lease_expires_at?: number
  worker?: string
  finished_at?: number
  reason?: string
  error?: string
  /** Newest first. */
  errors?: Failure[]
  idempotency_key?: string
  headers?: Record<string, string>
}

export interface MessagePage {
  messages: Message[]
  next: string | null
}

export interface Transaction {
  ack?: (Lease & { queue?: string })[]
  nack?: (SettleItem & { queue?: string })[]
  push?: (NewMessage & { queue?: string })[]
}

export interface Redrive {
  where?: { ids?: number[]; error_contains?: string; groups?: string[]; older_than_ms?: number; died_before?: number }
  rate_per_s?: number
  dry_run?: boolean
  signal?: AbortSignal
}

export interface Redriven {
  matched: number
  moved: number
  skipped: number
}

export interface Key {
  id: string
  queue: string
  name: string
  rights: ('push' | 'consume' | 'admin')[]
  created_at: number
}

// Streams

export interface StreamOptions {
  segment_bytes?: number
  retention_bytes?: number | null
  retention_ms?: number | null
  consumer_expire_ms?: number
  hold_bytes?: number | null
  record_bytes?: number
}

export interface StreamInfo {
  name: string
  options: StreamOptions
  created_at: number
  /** The first available offset. */
  first: number
  /** The offset of the next record to be appended. */
  next: number
  bytes: number
  segment_count: number
  consumer_count: number
}

export interface Segment {
  first: number
  records: number
  bytes: number
  sealed: boolean
}

export interface StreamConsumer {
  consumer: string
  /** The last processed record; null before the first. */
  offset: number | null
  lag: number
  seen_at: number
  created_at: number
  kind: 'consumer' | 'pipeline'
  expired: boolean
}

export interface StreamDetail extends StreamInfo {
  /** Oldest first; if there are very many, only the newest. */
  segments: Segment[]
  consumers: StreamConsumer[]
}

export interface Appended {
  first: number
  last: number
  records: number
}

export interface Trimmed {
  removed_records: number
  [name: string]: unknown
}

export interface ReadOptions {
  from?: number
  limit?: number
  wait_ms?: number
  signal?: AbortSignal
}

export interface StreamRecord {
  offset: number
  timestamp: number
  /** The record as it was appended: a string, a Uint8Array or JSON. */
  data: any
  encoding?: 'base64'
}

export interface RecordPage {
  records: StreamRecord[]
  /** The offset of the next page. */
  next: number
  /** Number of skipped offsets whose records were damaged beyond repair. */
  lost?: number
}

// The tree: times are RFC 3339, options in seconds (retryDelay in milliseconds)

export interface TreeOptions {
  leaseTime?: number
  maxSize?: number | null
  ttl?: number | null
  retryLimit?: number
  retryDelay?: number
  deadLetterQueue?: boolean
  delayedProcessing?: number
  windowBuffer?: number
  priority?: number
}

export interface Configured {
  ns: string
  task: string
  queue: string
  options: Required<TreeOptions>
}

export interface TreeItem {
  ns: string
  task: string
  queue: string
  payload: unknown
  transactionId?: string
  signature?: string
}

export interface TreePushedItem {
  id?: string
  transactionId?: string
  status: 'queued' | 'duplicate' | 'failed'
  error?: string
  code?: string
}

export interface TreePushed {
  messages: TreePushedItem[]
  /** The ids in the order of the items; undefined for items that failed. */
  messageIds: (string | undefined)[]
}

export interface TreeMessage {
  id: string
  transactionId: string
  payload: any
  /** `ns/task/queue`. */
  queue: string
  createdAt: string
  retryCount: number
  leaseToken: string
  leaseExpiresAt: string
  headers?: Record<string, string>
}

export type Popped = { messages: TreeMessage[] } & Partial<TreeMessage>

export interface Acknowledgment {
  transactionId: string
  status: 'completed' | 'failed'
  error?: string
  /** Settle only this lease. */
  leaseToken?: string
}

export interface Acknowledged {
  transactionId: string
  status: 'completed' | 'failed' | 'dead_letter' | 'stale' | 'unknown'
  completedAt?: string
  retryScheduled?: boolean
}

// Analytics

export interface History {
  /** Default: an hour before `to`. */
  from?: Date | string
  /** Default: now. */
  to?: Date | string
  /** `5m`, `1h`, `1d`. */
  interval?: string
}

export interface PageOfHistory extends History {
  limit?: number
  /** `next` of the previous page. */
  after?: string
}

export interface TreeStats {
  pending: number
  processing: number
  completed: number
  failed: number
  deadLetter: number
  total: number
}

export interface TreeQueue {
  queue: string
  ns: string | null
  task: string | null
  name: string
  options: Required<TreeOptions>
  stats: TreeStats
  /** Newest first. */
  series?: (TreeStats & { timestamp: string })[]
}

export interface QueueDepth {
  queue: string
  depth: number
  processing: number
  series?: { timestamp: string; depth: number; processing: number }[]
}

export interface ThroughputPoint {
  timestamp: string
  messagesPerMinute: number
  messagesPerSecond: number
}

export interface Percentiles {
  p50: number | null
  p95: number | null
  p99: number | null
}

export interface LatencySummary {
  wait: Percentiles
  service: Percentiles
  total: Percentiles
}

export interface QueueLatency extends LatencySummary {
  queue: string
  series?: (LatencySummary & { timestamp: string })[]
}

// Events

export interface LiveEvent {
  /** `message.pushed`, `message.processing`, `message.completed`, `message.failed`, `queue.created`, `queue.depth`,
   * `dropped` after the server closed a socket that was too slow, `missed` after a gap that it cannot fill. */
  event: string
  data: Record<string, any>
  /** The offset for `since` after a reconnect. */
  offset?: number
}

export interface JournalInfo {
  first: number
  next: number
  bytes: number
  segments: number
  consumers: StreamConsumer[]
}

export interface JournalQuery extends ReadOptions {
  queue?: string
  kinds?: string[]
}

export interface JournalEvent {
  offset: number
  number: number
  at: number
  kind: string
  queue: string
  id?: number
  uuid?: string
  pushed_at?: number
  first_leased_at?: number
  leased_at?: number
  until?: number
  attempts?: number
  priority?: number
  marks?: string[]
  details?: Record<string, any>
  payload?: any
}

export interface JournalPage {
  events: JournalEvent[]
  next: number
}
