-- :keep
INSERT INTO penstock.latency (queue_id, minute, kind, writer, counts)
SELECT r.queue_id, r.minute, r.kind, $1::bigint, r.counts
  FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::text[]) AS r(queue_id, minute, kind, counts)
  JOIN penstock.queue q ON q.id = r.queue_id
ON CONFLICT (queue_id, minute, kind, writer) DO UPDATE SET counts = excluded.counts

-- :since
SELECT kind, counts FROM penstock.latency WHERE queue_id = $1::bigint AND minute >= $2::bigint
