-- :find
SELECT id FROM penstock.stream WHERE name = $1::text

-- :create
INSERT INTO penstock.stream (name, options, segment_bytes, record_bytes, created_at)
VALUES ($1::text, $2::text, $3::bigint, $4::bigint, penstock.now_ms()) ON CONFLICT (name) DO NOTHING RETURNING id

-- :configure
UPDATE penstock.stream SET options = $2::text, segment_bytes = $3::bigint, record_bytes = $4::bigint
 WHERE name = $1::text RETURNING id

-- :show
SELECT s.id, s.name, s.options, s.created_at, s.first, s.next, s.active, s.filled, s.time_ms, g.segments, g.bytes,
       (SELECT count(*) FROM penstock.consumer c WHERE c.stream_id = s.id)
  FROM penstock.stream_state s CROSS JOIN LATERAL (
       SELECT count(*) AS segments, coalesce(sum(x.bytes), 0)::bigint AS bytes FROM penstock.segment x
        WHERE x.stream_id = s.id AND x.first >= s.first) g
 WHERE s.name = $1::text

-- :list
SELECT s.id, s.name, s.options, s.created_at, s.first, s.next, s.active, s.filled, s.time_ms, g.segments, g.bytes,
       (SELECT count(*) FROM penstock.consumer c WHERE c.stream_id = s.id)
  FROM penstock.stream_state s CROSS JOIN LATERAL (
       SELECT count(*) AS segments, coalesce(sum(x.bytes), 0)::bigint AS bytes FROM penstock.segment x
        WHERE x.stream_id = s.id AND x.first >= s.first) g
 WHERE s.name > $1::text AND s.name > '!journal' AND s.name < '~' AND s.name >= $2::text AND starts_with(s.name, $2::text) ORDER BY s.name LIMIT $3::bigint

-- :ends
SELECT name, next FROM penstock.stream_state WHERE name = ANY($1::text[])

-- :segments
SELECT x.first, x.last, x.bytes, x.time_ms FROM penstock.segment x JOIN penstock.stream s ON s.id = x.stream_id
 WHERE s.name = $1::text AND x.first >= s.first ORDER BY x.first

-- :lock
SELECT pg_advisory_xact_lock($1::bigint)

-- :append
SELECT * FROM penstock.append($1::bigint, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::bigint[], $7::bigint[],
                              $8::bytea[], $9::bytea[])

-- :appended
-- Returns the newest batches that have a mark.
SELECT min(n.last - n.records + 1), max(n.last), max(n.time_ms) FROM (
  SELECT b.last, b.records, b.time_ms, b.mark FROM penstock.batch b WHERE b.stream_id = $1::bigint
   ORDER BY b.last DESC LIMIT 10000) n
 WHERE n.mark = $2::bigint

-- :read
-- Returns batches from the one that contains an offset, limited by number and bytes.
SELECT s.first, s.next, r.last, r.records, r.sum, r.ends, r.data
  FROM penstock.stream_state s LEFT JOIN LATERAL (
       SELECT w.* FROM (
         SELECT n.*, sum(n.size) OVER (ORDER BY n.last) - n.size AS before FROM (
           SELECT b.last, b.records, b.sum, b.ends, b.data, length(b.data) AS size FROM penstock.batch b
            WHERE b.stream_id = s.id AND b.last >= greatest($2::bigint, s.first)
            ORDER BY b.last LIMIT $3::bigint) n) w
        WHERE w.before < $4::bigint) r ON true
 WHERE s.name = $1::text ORDER BY r.last

-- :move_consumer
SELECT * FROM penstock.move_consumer($1::text, $2::text, $3::bigint, $4::boolean, $5::text, $6::bigint)

-- :consumers
SELECT s.first, s.next, s.options, c.name, c.kind, c.position, c.seen_at, c.created_at, penstock.now_ms()
  FROM penstock.stream_state s LEFT JOIN penstock.consumer c ON c.stream_id = s.id
   AND ($2::text IS NULL OR c.name = $2::text)
 WHERE s.name = $1::text ORDER BY c.name

-- :forget
WITH gone AS (
  DELETE FROM penstock.consumer c USING penstock.stream s
   WHERE s.name = $1::text AND c.stream_id = s.id AND c.name = $2::text RETURNING 1)
SELECT (SELECT count(*) FROM penstock.stream WHERE name = $1::text), (SELECT count(*) FROM gone)

-- :seal
-- Closes the active segment.
INSERT INTO penstock.segment
SELECT s.id, s.active, s.next - 1, s.filled, s.time_ms FROM penstock.stream_state s
 WHERE s.id = $1::bigint AND s.active IS NOT NULL AND s.time_ms < $2::bigint
ON CONFLICT DO NOTHING

-- :forget_before
UPDATE penstock.stream SET first = $2::bigint,
       trimmed_to_ms = greatest(trimmed_to_ms, (SELECT max(x.time_ms) FROM penstock.segment x
                                                 WHERE x.stream_id = $1::bigint AND x.last < $2::bigint))
 WHERE id = $1::bigint AND first < $2::bigint RETURNING id

-- :remove
WITH few AS (
  SELECT b.last FROM penstock.batch b WHERE b.stream_id = $1::bigint AND b.last < $2::bigint
   ORDER BY b.last LIMIT $3::bigint)
DELETE FROM penstock.batch b USING few WHERE b.stream_id = $1::bigint AND b.last = few.last RETURNING 1

-- :remove_segments
DELETE FROM penstock.segment WHERE stream_id = $1::bigint AND last < $2::bigint

-- :drop
-- Frees the name immediately; the contents are deleted in steps.
UPDATE penstock.stream SET name = '~' || id WHERE id = $1::bigint AND name < '~' RETURNING id

-- :dropped
SELECT id, next FROM penstock.stream_state WHERE name >= '~' ORDER BY name LIMIT 1

-- :remove_stream
DELETE FROM penstock.stream WHERE id = $1::bigint AND name >= '~'

-- :check
SELECT last, records, sum, ends, data, segment FROM penstock.batch
 WHERE stream_id = $1::bigint AND last >= $2::bigint ORDER BY last LIMIT $3::bigint

-- :replace_damaged
UPDATE penstock.batch SET sum = $3::bigint, ends = $4::bytea, data = $5::bytea
 WHERE stream_id = $1::bigint AND last = $2::bigint

-- :fill_gap
INSERT INTO penstock.batch
SELECT b.stream_id, $3::bigint, $4::bigint, b.time_ms, b.segment, b.filled - length(b.data), 0, $5::bigint, $6::bytea,
       $7::bytea
  FROM penstock.batch b WHERE b.stream_id = $1::bigint AND b.last = $2::bigint
