-- :of_minute
SELECT counts FROM penstock_latency WHERE queue_id = ? AND minute = ? AND kind = ?

-- :keep
INSERT OR REPLACE INTO penstock_latency (queue_id, minute, kind, counts) VALUES (?, ?, ?, ?)

-- :since
SELECT kind, counts FROM penstock_latency WHERE queue_id = ? AND minute >= ?

-- :forget
DELETE FROM penstock_latency WHERE queue_id = ? AND minute < ?
