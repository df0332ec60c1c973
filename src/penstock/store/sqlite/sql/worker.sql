-- :known
SELECT started_at FROM penstock_worker WHERE kind = ? AND name = ?

-- :count
SELECT count(*) FROM penstock_worker

-- :add
INSERT INTO penstock_worker (kind, name, host, pid, version, server, started_at, seen_at, stale_at, queues)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- :renew
UPDATE penstock_worker
   SET host = ?3, pid = ?4, version = ?5, server = ?6, seen_at = ?8, stale_at = ?9, queues = ?10,
       started_at = CASE kind WHEN 'server' THEN ?7 ELSE started_at END
 WHERE kind = ?1 AND name = ?2

-- :leave
DELETE FROM penstock_worker WHERE kind = ?1 AND name = ?2 AND (kind = 'consumer' OR started_at = ?3)

-- :stale
SELECT kind, name, stale_at FROM penstock_worker WHERE stale_at < ? ORDER BY kind, name LIMIT ?

-- :holders
SELECT worker, count(*) FROM (SELECT worker FROM penstock_leased WHERE leased_until > ? LIMIT ?) GROUP BY worker

-- :forget
DELETE FROM penstock_worker WHERE kind = ? AND name = ?

-- :journals
SELECT value FROM penstock_setting WHERE name = 'journal'

-- :list
SELECT kind, name, host, pid, version, server, started_at, seen_at, stale_at, queues FROM penstock_worker
 WHERE (kind, name) > (?, ?) ORDER BY kind, name LIMIT ?

-- :held
SELECT l.worker, q.name, l.held FROM (
  SELECT worker, queue_id, count(*) AS held
    FROM (SELECT worker, queue_id FROM penstock_leased WHERE leased_until > ? LIMIT ?)
   WHERE worker IS NOT NULL GROUP BY worker, queue_id) l
  JOIN penstock_queue q ON q.id = l.queue_id
