-- :of_minute
SELECT counts FROM penstock_latency WHERE queue_id = ? AND minute = ? AND kind = ?

-- :keep
INSERT OR REPLACE INTO penstock_latency (queue_id, minute, kind, counts) VALUES (?, ?, ?, ?)

-- :between
SELECT minute, kind, counts FROM penstock_latency WHERE queue_id = ? AND minute >= ? AND minute < ?

-- :forget
DELETE FROM penstock_latency WHERE (queue_id, minute, kind) IN (
  SELECT l.queue_id, l.minute, l.kind FROM penstock_queue q CROSS JOIN penstock_latency l ON l.queue_id = q.id
   WHERE l.minute < ? LIMIT ?)
