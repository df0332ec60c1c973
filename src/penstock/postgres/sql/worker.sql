-- :known
SELECT w.kind, w.name, w.started_at FROM unnest($1::text[], $2::text[]) AS p(kind, name)
  JOIN penstock.worker w ON w.kind = p.kind AND w.name = p.name

-- :count
SELECT count(*) FROM penstock.worker

-- :beat
-- Sorts the rows, so that two servers that report the same consumers do not deadlock.
INSERT INTO penstock.worker AS w
  (kind, name, host, pid, version, server, started_at, seen_at, stale_at, queues)
SELECT p.kind, p.name, p.host, nullif(p.pid, 0), p.version, p.server, p.started_at, $1::bigint, $2::bigint, p.queues
  FROM unnest($3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::bigint[], $10::text[])
    AS p(kind, name, host, pid, version, server, started_at, queues)
 ORDER BY p.kind, p.name
ON CONFLICT (kind, name) DO UPDATE SET
  host = excluded.host, pid = excluded.pid, version = excluded.version, server = excluded.server,
  started_at = CASE w.kind WHEN 'server' THEN excluded.started_at ELSE w.started_at END,
  seen_at = excluded.seen_at, stale_at = excluded.stale_at, queues = excluded.queues
 WHERE w.kind = 'consumer' OR excluded.started_at >= w.started_at
RETURNING kind, name, xmax = 0

-- :leave
DELETE FROM penstock.worker w USING unnest($1::text[], $2::text[], $3::bigint[]) AS p(kind, name, started_at)
 WHERE w.kind = p.kind AND w.name = p.name AND (w.kind = 'consumer' OR w.started_at = p.started_at)
RETURNING w.kind, w.name

-- :stale
SELECT kind, name, stale_at FROM penstock.worker WHERE stale_at < $1::bigint
 ORDER BY kind, name LIMIT $2::bigint FOR UPDATE SKIP LOCKED

-- :holders
SELECT worker, sum(held)::bigint FROM (
  (SELECT worker, 1 AS held FROM penstock.single_lease WHERE leased_until > $1::bigint LIMIT $2::bigint)
  UNION ALL
  (SELECT worker, count FROM penstock.lease_range WHERE leased_until > $1::bigint LIMIT $2::bigint)) l GROUP BY worker

-- :forget
DELETE FROM penstock.worker w USING unnest($1::text[], $2::text[]) AS p(kind, name)
 WHERE w.kind = p.kind AND w.name = p.name

-- :journals
SELECT coalesce((SELECT value FROM penstock.setting WHERE name = 'journal'), 0) > 0

-- :list
SELECT kind, name, host, pid, version, server, started_at, seen_at, stale_at, queues FROM penstock.worker
 WHERE (kind, name) > ($1::text, $2::text) ORDER BY kind, name LIMIT $3::bigint

-- :held
SELECT l.worker, q.name, l.held FROM (
  SELECT worker, queue_id, sum(f.held)::bigint AS held
    FROM ((SELECT worker, queue_id, 1 AS held FROM penstock.single_lease
            WHERE leased_until > penstock.now_ms() LIMIT $1::bigint)
          UNION ALL
          (SELECT worker, queue_id, count FROM penstock.lease_range
            WHERE leased_until > penstock.now_ms() LIMIT $1::bigint)) f
   WHERE worker IS NOT NULL GROUP BY worker, queue_id) l
  JOIN penstock.queue q ON q.id = l.queue_id
