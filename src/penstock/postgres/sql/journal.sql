-- :note
INSERT INTO penstock.spool (base, data)
VALUES (CASE WHEN $1::bigint > 0 THEN currval('penstock.message_id') - $1::bigint + 1 END, $2::bytea)

-- :switch
INSERT INTO penstock.setting AS s VALUES ('journal', $1::bigint)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE s.value <> excluded.value RETURNING 1

-- :make
INSERT INTO penstock.stream (name, options, segment_bytes, record_bytes, created_at)
VALUES ($1::text, $2::text, $3::bigint, $4::bigint, penstock.now_ms()) ON CONFLICT DO NOTHING

-- :holding
SELECT q.id, q.name, q.options, sum(c.ready + c.scheduled)::bigint, sum(c.leased)::bigint, sum(c.dead)::bigint
  FROM penstock.queue q JOIN penstock.counter c ON c.queue_id = q.id GROUP BY q.id ORDER BY q.id

-- :pushed_at
SELECT place, created_at FROM penstock.message WHERE place = ANY($1::bigint[])

-- :failures
SELECT id, attempt, at, error FROM penstock.failure WHERE id = ANY($1::bigint[]) ORDER BY id, at, attempt

-- :given
-- Returns the last number assigned.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM penstock.spool_seq_seq

-- :oldest
-- Returns the transaction before which all others have ended.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint

-- :own
-- Returns NULL if this transaction has not changed anything yet.
SELECT pg_current_xact_id_if_assigned()::text::bigint

-- :take
WITH few AS (
  SELECT w.seq FROM (
    SELECT n.seq, sum(n.size) OVER (ORDER BY n.seq) - n.size AS before FROM (
      SELECT seq, length(data) AS size FROM penstock.spool WHERE seq > $1::bigint ORDER BY seq LIMIT $2::bigint) n) w
   WHERE w.before < $3::bigint)
DELETE FROM penstock.spool s USING few WHERE s.seq = few.seq RETURNING s.seq, s.base, s.data

-- :find
SELECT id, time_ms, penstock.now_ms() FROM penstock.stream_state WHERE name = '!journal'
