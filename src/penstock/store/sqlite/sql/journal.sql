-- :next_offset
SELECT first_offset + records FROM penstock_journal ORDER BY first_offset DESC LIMIT 1

-- :write
-- Replaces only a row without records, which merely stores the next offset.
INSERT OR REPLACE INTO penstock_journal (first_offset, records, bytes) VALUES (?, ?, ?)

-- :switch
INSERT OR REPLACE INTO penstock_setting VALUES ('journal', ?)

-- :holding
SELECT q.id, q.name, q.options, c.ready + c.scheduled, c.leased, c.dead
  FROM penstock_queue q JOIN penstock_counter c ON c.queue_id = q.id ORDER BY q.id

-- :forget
-- Keeps the newest row, which holds the next offset.
DELETE FROM penstock_journal
 WHERE first_offset + records <= ? AND first_offset < (SELECT max(first_offset) FROM penstock_journal)

-- :bounds
SELECT (SELECT min(first_offset) FROM penstock_journal),
       (SELECT first_offset + records FROM penstock_journal ORDER BY first_offset DESC LIMIT 1)

-- :from
SELECT first_offset, records, bytes FROM penstock_journal
 WHERE first_offset >= ifnull((SELECT max(first_offset) FROM penstock_journal WHERE first_offset <= ?1), 0)
   AND first_offset + records > ?1 ORDER BY first_offset

-- :uncounted_pushes
SELECT m.place, m.created_at, m.available_at, m.priority, m.content, m.key, m.headers, m.payload
  FROM penstock_counter c JOIN penstock_message m ON m.place > (c.queue_id << QUEUE_SHIFT | c.last_id)
   AND m.place < (c.queue_id * 2 + 1) << ID_BITS
 WHERE c.queue_id = ? ORDER BY m.place

-- :uncounted_leases
SELECT l.id, m.created_at, l.first_leased_at, l.leased_at, l.leased_until, l.attempts, l.worker
  FROM penstock_counter c JOIN penstock_leased l ON l.queue_id = c.queue_id AND l.place > c.cursor
   AND l.place < (c.queue_id * 2 + 1) << ID_BITS JOIN penstock_message m ON m.place = l.place
 WHERE c.queue_id = ? ORDER BY l.place

-- :pushed_between
SELECT place, created_at FROM penstock_message WHERE place BETWEEN ? AND ?

-- :pushed_at_places
SELECT place, created_at FROM penstock_message WHERE place IN (SELECT value FROM json_each(?))

-- :failures
SELECT attempt, at, error FROM penstock_failure WHERE id = ? ORDER BY at, attempt
