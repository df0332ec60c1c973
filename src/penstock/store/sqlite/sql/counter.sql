-- :load
SELECT q.id, q.name, q.options, q.paused, q.created_at, c.last_id, c.cursor, c.newest_at, c.minute, c.tokens, c.tokens_at,
       c.ready, c.scheduled, c.leased, c.dead, c.archived,
       c.n_pushed, c.n_leased, c.n_acked, c.n_nacked, c.n_lapsed, c.n_dead, c.n_expired, c.n_redriven, c.n_removed,
       (SELECT value FROM penstock_setting WHERE name = 'journal')
  FROM penstock_queue q JOIN penstock_counter c ON c.queue_id = q.id
 WHERE q.name = ?

-- :last_id
SELECT max(last_id) FROM penstock_counter

-- :end_minute
INSERT OR IGNORE INTO penstock_minute
SELECT queue_id, minute, ready, scheduled, leased, dead, archived,
       n_pushed, n_leased, n_acked, n_nacked, n_lapsed, n_dead, n_expired, n_redriven, n_removed
  FROM penstock_counter WHERE queue_id = ? AND minute > 0

-- :tokens
UPDATE penstock_counter SET tokens = ?, tokens_at = ? WHERE queue_id = ?

-- :busy
INSERT OR IGNORE INTO penstock_busy (name, queue_id) VALUES (?, ?)

-- :idle
DELETE FROM penstock_busy WHERE name = ?
