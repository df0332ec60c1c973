-- :message
INSERT INTO penstock_message (place, created_at, available_at, priority, content, key, headers, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- :ready
INSERT INTO penstock_ready (queue_id, rank, available_at, id, place, attempts, first_leased_at, expires_at)
VALUES (?, ?, ?, ?, ?, 0, NULL, ?)

-- :scheduled
INSERT INTO penstock_scheduled (queue_id, rank, available_at, id, place, attempts, first_leased_at, expires_at)
VALUES (?, ?, ?, ?, ?, 0, NULL, ?)

-- :find_key
-- A global key ends with the queue of its message; a dropped queue has deleted its own keys.
SELECT id, place, created_at, expires_at FROM penstock_key k
 WHERE space = ? AND key = ?
   AND (space > 0 OR place < 0 OR EXISTS (SELECT 1 FROM penstock_queue q WHERE q.id = k.place >> QUEUE_SHIFT))

-- :is_alive
SELECT 1 FROM penstock_message m
 WHERE m.place = ? AND NOT EXISTS (SELECT 1 FROM penstock_archive a WHERE a.id = ?)

-- :keep_key
INSERT OR REPLACE INTO penstock_key (space, key, id, place, created_at, expires_at, check_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)
