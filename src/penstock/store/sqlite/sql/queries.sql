-- :message
SELECT place, created_at, ifnull(available_at, created_at), priority, content, key, headers, payload
  FROM penstock_message WHERE place IN (?, ?)

-- :global_key
SELECT q.name, k.id FROM penstock_key k JOIN penstock_queue q ON q.id = k.place >> QUEUE_SHIFT WHERE k.space = 0 AND k.key = ?

-- :home_of
-- An id does not contain its queue. The busy queues of the tree are few and are searched first.
SELECT q.name, ?1 FROM (SELECT name, queue_id FROM penstock_busy UNION ALL SELECT name, id FROM penstock_queue) q
 WHERE EXISTS (SELECT 1 FROM penstock_message m
                WHERE m.place IN (q.queue_id << QUEUE_SHIFT | ?1, (q.queue_id * 2 + 1) << ID_BITS | ?1)) LIMIT 1

-- :held
SELECT created_at FROM penstock_message m WHERE place IN (?, ?)
   AND NOT EXISTS (SELECT 1 FROM penstock_archive a WHERE a.id = m.place & ID_MAX)

-- :ready
SELECT r.rank, r.available_at, r.id, r.attempts, r.first_leased_at, r.expires_at,
       m.created_at, m.priority, m.content, m.key, m.headers, m.payload
  FROM penstock_ready r CROSS JOIN penstock_message m ON m.place = r.place
 WHERE r.queue_id = ? AND (r.rank, r.available_at, r.id) > (?, ?, ?)
 ORDER BY r.rank, r.available_at, r.id LIMIT ?

-- :plain
SELECT 0, ifnull(available_at, created_at), place & ID_MAX, 0, NULL, NULL,
       created_at, priority, content, key, headers, payload
  FROM penstock_message WHERE place > ? AND place < ? ORDER BY place LIMIT ?

-- :scheduled
SELECT s.available_at, s.id, s.attempts, s.first_leased_at, s.expires_at,
       m.created_at, m.priority, m.content, m.key, m.headers, m.payload
  FROM penstock_scheduled s CROSS JOIN penstock_message m ON m.place = s.place
 WHERE s.queue_id = ? AND (s.available_at, s.id) > (?, ?) ORDER BY s.available_at, s.id LIMIT ?

-- :leased
SELECT l.leased_until, l.id, l.attempts, l.first_leased_at, l.expires_at, l.leased_at, l.worker,
       m.created_at, ifnull(m.available_at, m.created_at), m.priority, m.content, m.key, m.headers, m.payload
  FROM penstock_single_lease l CROSS JOIN penstock_message m ON m.place = l.place
 WHERE l.queue_id = ? AND (l.leased_until, l.id) > (?, ?) ORDER BY l.leased_until, l.id LIMIT ?

-- :leased_in_ranges
SELECT r.leased_until, m.place & ID_MAX, 1, r.leased_at, NULL, r.leased_at, r.worker,
       m.created_at, ifnull(m.available_at, m.created_at), m.priority, m.content, m.key, m.headers, m.payload
  FROM penstock_lease_range r CROSS JOIN penstock_message m
    ON m.place BETWEEN ?1 << QUEUE_SHIFT | CASE r.leased_until WHEN ?2 THEN max(r.first_id, ?3 + 1) ELSE r.first_id END
                   AND ?1 << QUEUE_SHIFT | r.last_id
 WHERE r.queue_id = ?1 AND r.leased_until >= ?2 ORDER BY r.leased_until, r.first_id, m.place LIMIT ?4

-- :dead
SELECT d.died_at, d.id, d.attempts, d.first_leased_at, d.reason,
       m.created_at, ifnull(m.available_at, m.created_at), m.priority, m.content, m.key, m.headers, m.payload
  FROM penstock_dead d CROSS JOIN penstock_message m ON m.place = d.place
 WHERE d.queue_id = ? AND NOT d.leased AND (d.died_at, d.id) < (?, ?) ORDER BY d.died_at DESC, d.id DESC LIMIT ?

-- :archived
SELECT a.archived_at, a.id, a.attempts, a.first_leased_at, a.leased_at,
       m.created_at, ifnull(m.available_at, m.created_at), m.priority, m.content, m.key, m.headers, m.payload
  FROM penstock_archive a CROSS JOIN penstock_message m ON m.place = a.place
 WHERE a.queue_id = ? AND (a.archived_at, a.id) < (?, ?) ORDER BY a.archived_at DESC, a.id DESC LIMIT ?

-- :lease_of
SELECT leased_until, id, attempts, first_leased_at, expires_at, leased_at, worker
  FROM penstock_single_lease WHERE queue_id = ? AND id = ?

-- :range_of
SELECT leased_until, ?2, 1, leased_at, NULL, leased_at, worker
  FROM penstock_lease_range WHERE queue_id = ?1 AND first_id <= ?2 AND last_id >= ?2

-- :dead_of
SELECT died_at, id, attempts, first_leased_at, reason FROM penstock_dead WHERE queue_id = ? AND id = ? AND NOT leased

-- :archived_of
SELECT archived_at, id, attempts, first_leased_at, leased_at FROM penstock_archive WHERE queue_id = ? AND id = ?

-- :scheduled_of
SELECT attempts, first_leased_at, expires_at FROM penstock_scheduled
 WHERE queue_id = ? AND available_at = ? AND id = ?

-- :ready_of
SELECT attempts, first_leased_at, expires_at FROM penstock_ready
 WHERE queue_id = ? AND rank = ? AND available_at = ? AND id = ?

-- :failures
SELECT attempt, at, error FROM penstock_failure WHERE id = ? ORDER BY attempt DESC

-- :tracebacks
SELECT attempt, at, traceback FROM penstock_failure WHERE id = ? AND traceback IS NOT NULL

-- :totals_at
SELECT n_pushed, n_leased, n_acked, n_nacked, n_lapsed, n_dead, n_expired, n_redriven, n_removed
  FROM penstock_minute WHERE queue_id = ? AND minute <= ? ORDER BY minute DESC LIMIT 1

-- :waiting
-- The first in order, the first by id and the first plain message include both the next one to lease and the oldest.
SELECT r.rank, r.available_at, r.id, m.created_at
  FROM (SELECT rank, available_at, id, place FROM penstock_ready
         WHERE queue_id = ?1 ORDER BY rank, available_at, id LIMIT 1) r
 CROSS JOIN penstock_message m ON m.place = r.place
UNION ALL
SELECT r.rank, r.available_at, r.id, m.created_at
  FROM (SELECT rank, available_at, id, place FROM penstock_ready INDEXED BY penstock_ready_by_id
         WHERE queue_id = ?1 ORDER BY id LIMIT 1) r
 CROSS JOIN penstock_message m ON m.place = r.place
UNION ALL
SELECT * FROM (SELECT 0, ifnull(available_at, created_at), place & ID_MAX, created_at
                 FROM penstock_message WHERE place > ?2 AND place < ?3 ORDER BY place LIMIT 1)

-- :dead_errors
SELECT died_at, id, substr(ifnull(error, ''), 1, ?5), instr(ifnull(error, ''), ?6) > 0 FROM penstock_dead
 WHERE queue_id = ?1 AND NOT leased AND (died_at, id) < (?2, ?3) ORDER BY died_at DESC, id DESC LIMIT ?4

-- :forwarding
-- Options are stored as compact JSON, in which `dlq` is a string only if it names another queue.
SELECT q.name FROM penstock_counter c JOIN penstock_queue q ON q.id = c.queue_id
 WHERE c.dead > 0 AND instr(q.options, '"dlq":"') > 0

-- :naming
SELECT name FROM penstock_queue WHERE instr(options, ?) > 0

-- :find_key
SELECT k.id, q.name, k.name, k.hash, k.rights, k.created_at, NULL
  FROM penstock_api_key k JOIN penstock_queue q ON q.id = k.queue_id WHERE k.id = ?1
UNION ALL
SELECT id, NULL, name, hash, rights, created_at, stream FROM penstock_stream_key WHERE id = ?1

-- :list_queue_keys
SELECT k.id, q.name, k.name, k.hash, k.rights, k.created_at, NULL
  FROM penstock_api_key k JOIN penstock_queue q ON q.id = k.queue_id WHERE q.name = ? ORDER BY k.created_at, k.id

-- :list_stream_keys
SELECT id, NULL, name, hash, rights, created_at, stream FROM penstock_stream_key WHERE stream = ? ORDER BY created_at, id

-- :secret
SELECT secret FROM penstock_queue WHERE name = ?
