-- :queue
-- Includes deferred counts: plain pushes beyond the last id, and leases of plain messages beyond the cursor.
SELECT q.id, q.name, q.options, q.paused, q.created_at, c.last_id, c.cursor, c.newest_at, c.minute, c.tokens, c.tokens_at,
       c.ready, c.scheduled, c.leased, c.dead, c.archived,
       c.n_pushed, c.n_leased, c.n_acked, c.n_nacked, c.n_lapsed, c.n_dead, c.n_expired, c.n_redriven, c.n_removed,
       (SELECT count(*) FROM penstock_message m
         WHERE m.place > (q.id << QUEUE_SHIFT | c.last_id) AND m.place < (q.id * 2 + 1) << ID_BITS),
       (SELECT ifnull(m.available_at, m.created_at) FROM penstock_message m
         WHERE m.place > (q.id << QUEUE_SHIFT | c.last_id) AND m.place < (q.id * 2 + 1) << ID_BITS ORDER BY m.place DESC LIMIT 1),
       (SELECT max(m.place) & ID_MAX FROM penstock_message m
         WHERE m.place > (q.id << QUEUE_SHIFT | c.last_id) AND m.place < (q.id * 2 + 1) << ID_BITS),
       CASE WHEN c.leased <= UNCOUNTED_MAX THEN (SELECT count(*) FROM penstock_single_lease l
         WHERE l.queue_id = q.id AND l.place > c.cursor AND l.place < (q.id * 2 + 1) << ID_BITS) +
         (SELECT count(*) FROM penstock_lease_range r CROSS JOIN penstock_message m
              ON m.place BETWEEN q.id << QUEUE_SHIFT | r.first_id AND q.id << QUEUE_SHIFT | r.last_id
           WHERE r.queue_id = q.id AND q.id << QUEUE_SHIFT | r.first_id > c.cursor) ELSE 0 END,
       CASE WHEN c.leased <= UNCOUNTED_MAX THEN max(ifnull((SELECT max(l.place) FROM penstock_single_lease l
         WHERE l.queue_id = q.id AND l.place > c.cursor AND l.place < (q.id * 2 + 1) << ID_BITS), 0),
         ifnull((SELECT q.id << QUEUE_SHIFT | max(r.last_id) FROM penstock_lease_range r WHERE r.queue_id = q.id), 0)) END,
       (SELECT value FROM penstock_setting WHERE name = 'journal')
  FROM penstock_queue q JOIN penstock_counter c ON c.queue_id = q.id

-- :last_id
SELECT max((SELECT max(last_id) FROM penstock_counter),
           (SELECT ifnull(max(place), 0) & ID_MAX FROM penstock_message
             WHERE place > s.value << QUEUE_SHIFT AND place < (s.value * 2 + 1) << ID_BITS))
  FROM penstock_setting s WHERE s.name = 'uncounted'

-- :leave_uncounted
UPDATE penstock_setting SET value = ? WHERE name = 'uncounted'

-- :set_writer
UPDATE penstock_setting SET value = ? WHERE name = 'writer'

-- :name_of
SELECT name FROM penstock_queue WHERE id = ?

-- :uncounted_in
SELECT s.value, q.name, (SELECT value FROM penstock_setting WHERE name = 'journal'),
       (SELECT value FROM penstock_setting WHERE name = 'writer')
  FROM penstock_setting s LEFT JOIN penstock_queue q ON q.id = s.value WHERE s.name = 'uncounted'

-- :count_before_minute
UPDATE penstock_counter SET ready = ready + ?1 - ?2, n_pushed = n_pushed + ?1, leased = leased + ?2,
       n_leased = n_leased + ?2
 WHERE queue_id = ?3

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
