-- :keep
INSERT INTO penstock.latency (queue_id, minute, kind, writer, counts)
SELECT r.queue_id, r.minute, r.kind, $1::bigint, r.counts
  FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::text[]) AS r(queue_id, minute, kind, counts)
  JOIN penstock.queue q ON q.id = r.queue_id
ON CONFLICT (queue_id, minute, kind, writer) DO UPDATE SET counts = excluded.counts

-- :between
SELECT l.queue_id, l.minute, l.kind, l.counts FROM unnest($1::bigint[]) AS wanted(id)
  JOIN penstock.latency l ON l.queue_id = wanted.id AND l.minute >= $2::bigint AND l.minute < $3::bigint
