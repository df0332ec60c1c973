-- :ids
SELECT name, id FROM penstock.queue WHERE name = ANY($1::text[])

-- :lock
SELECT pg_advisory_xact_lock($1::bigint)

-- :try_locks
SELECT k, pg_try_advisory_xact_lock(k) FROM unnest($1::bigint[]) AS k

-- :add_queue
INSERT INTO penstock.queue (id, name, options, limited, created_at)
VALUES ($1::bigint, $2::text, $3::text, $4::boolean, $5::bigint) ON CONFLICT DO NOTHING RETURNING id

-- :free_queue_id
-- Ids are not reused, so that rows that outlive a dropped queue never belong to another one. Once all ids were used, the
-- first free one is taken.
SELECT CASE WHEN used.id < QUEUE_ID_MAX THEN used.id + 1
            ELSE (SELECT min(q.id) + 1 FROM (SELECT 0 AS id UNION ALL SELECT id FROM penstock.queue) q
                   WHERE NOT EXISTS (SELECT 1 FROM penstock.queue r WHERE r.id = q.id + 1)) END,
       EXISTS (SELECT 1 FROM penstock.setting s WHERE s.name = 'journal' AND s.value > 0)
  FROM (SELECT greatest(coalesce((SELECT max(id) FROM penstock.queue), 0),
                   coalesce((SELECT value FROM penstock.setting WHERE name = 'last_queue_id'), 0)) AS id) used

-- :keep_last_queue_id
INSERT INTO penstock.setting AS s (name, value) VALUES ('last_queue_id', $1::bigint)
ON CONFLICT (name) DO UPDATE SET value = greatest(s.value, excluded.value)

-- :add_counter
INSERT INTO penstock.counter (queue_id, cursor, newest_at) VALUES ($1::bigint, $2::bigint, 0)

-- :set_options
UPDATE penstock.queue SET options = $2::text, limited = $3::boolean WHERE id = $1::bigint

-- :set_paused
UPDATE penstock.queue SET paused = $2::boolean WHERE id = $1::bigint

-- :oldest_alive
-- Excludes dead and archived messages.
SELECT min(created_at) FROM penstock.message m WHERE place BETWEEN $1::bigint AND $2::bigint
   AND NOT EXISTS (SELECT 1 FROM penstock.dead d WHERE d.id = m.place & ID_MAX)
   AND NOT EXISTS (SELECT 1 FROM penstock.archive a WHERE a.id = m.place & ID_MAX)

-- :forget_failures_between
DELETE FROM penstock.failure f USING penstock.message m
 WHERE m.place BETWEEN $1::bigint AND $2::bigint AND f.id = m.place & ID_MAX

-- :forget_messages_between
DELETE FROM penstock.message WHERE place BETWEEN $1::bigint AND $2::bigint

-- :forget_extension
DELETE FROM penstock.extension e USING penstock.single_lease l
 WHERE l.queue_id = $1::bigint AND l.extended AND e.id = l.id

-- :forget_ready
DELETE FROM penstock.ready WHERE queue_id = $1::bigint

-- :forget_scheduled
DELETE FROM penstock.scheduled WHERE queue_id = $1::bigint

-- :forget_single_lease
DELETE FROM penstock.single_lease WHERE queue_id = $1::bigint

-- :forget_lease_range
DELETE FROM penstock.lease_range WHERE queue_id = $1::bigint

-- :forget_dead
DELETE FROM penstock.dead WHERE queue_id = $1::bigint

-- :forget_archive
DELETE FROM penstock.archive WHERE queue_id = $1::bigint

-- :forget_key
DELETE FROM penstock.key WHERE space = $1::bigint

-- :forget_minute
DELETE FROM penstock.minute WHERE queue_id = $1::bigint

-- :forget_latency
DELETE FROM penstock.latency WHERE queue_id = $1::bigint

-- :forget_busy
DELETE FROM penstock.busy WHERE queue_id = $1::bigint

-- :forget_bucket
DELETE FROM penstock.bucket WHERE queue_id = $1::bigint

-- :forget_api_key
DELETE FROM penstock.api_key WHERE queue_id = $1::bigint

-- :forget_counter
DELETE FROM penstock.counter WHERE queue_id = $1::bigint

-- :forget_queue
DELETE FROM penstock.queue WHERE id = $1::bigint

-- :last_id
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM penstock.message_id

-- :messages_of
SELECT place, -priority, coalesce(available_at, created_at), created_at FROM penstock.message WHERE place = ANY($1::bigint[])

-- :remove_dead
DELETE FROM penstock.dead WHERE queue_id = $1::bigint AND NOT leased AND id = ANY($2::bigint[]) RETURNING id

-- :remove_archived
DELETE FROM penstock.archive WHERE queue_id = $1::bigint AND id = ANY($2::bigint[]) RETURNING id

-- :remove_scheduled
DELETE FROM penstock.scheduled s USING unnest($2::bigint[], $3::bigint[]) AS i(available_at, id)
 WHERE s.queue_id = $1::bigint AND s.available_at = i.available_at AND s.id = i.id RETURNING s.id

-- :remove_ready
DELETE FROM penstock.ready r USING unnest($2::bigint[], $3::bigint[], $4::bigint[]) AS i(rank, available_at, id)
 WHERE r.queue_id = $1::bigint AND r.rank = i.rank AND r.available_at = i.available_at AND r.id = i.id RETURNING r.id

-- :remove_leased
DELETE FROM penstock.single_lease WHERE queue_id = $1::bigint AND id = ANY($2::bigint[]) RETURNING id, from_dead

-- :purge_plain
WITH found AS MATERIALIZED (
  SELECT place FROM penstock.message WHERE place > $1::bigint AND place <= $2::bigint ORDER BY place LIMIT $3::bigint)
DELETE FROM penstock.message m USING found o WHERE m.place = o.place RETURNING m.place, m.created_at

-- :purge_ready
WITH found AS MATERIALIZED (
  SELECT queue_id, rank, available_at, id FROM penstock.ready
   WHERE queue_id = $1::bigint AND id <= $2::bigint LIMIT $3::bigint FOR UPDATE SKIP LOCKED)
DELETE FROM penstock.ready r USING found o
 WHERE r.queue_id = o.queue_id AND r.rank = o.rank AND r.available_at = o.available_at AND r.id = o.id
RETURNING r.id, r.place, false

-- :purge_scheduled
WITH found AS MATERIALIZED (
  SELECT queue_id, available_at, id FROM penstock.scheduled
   WHERE queue_id = $1::bigint AND id <= $2::bigint LIMIT $3::bigint FOR UPDATE SKIP LOCKED)
DELETE FROM penstock.scheduled s USING found o
 WHERE s.queue_id = o.queue_id AND s.available_at = o.available_at AND s.id = o.id
RETURNING s.id, s.place, false

-- :purge_leased
WITH found AS MATERIALIZED (
  SELECT queue_id, leased_until, id FROM penstock.single_lease
   WHERE queue_id = $1::bigint AND id <= $2::bigint LIMIT $3::bigint FOR UPDATE SKIP LOCKED)
DELETE FROM penstock.single_lease l USING found o
 WHERE l.queue_id = o.queue_id AND l.leased_until = o.leased_until AND l.id = o.id
RETURNING l.id, l.place, l.from_dead

-- :purge_dead
WITH found AS MATERIALIZED (
  SELECT id FROM penstock.dead
   WHERE queue_id = $1::bigint AND NOT leased AND id <= $2::bigint LIMIT $3::bigint FOR UPDATE SKIP LOCKED)
DELETE FROM penstock.dead d USING found o WHERE d.id = o.id RETURNING d.id, d.place, false

-- :purge_archived
WITH found AS MATERIALIZED (
  SELECT id FROM penstock.archive
   WHERE queue_id = $1::bigint AND id <= $2::bigint LIMIT $3::bigint FOR UPDATE SKIP LOCKED)
DELETE FROM penstock.archive a USING found o WHERE a.id = o.id RETURNING a.id, a.place, false

-- :dead_letters
SELECT id, place, died_at, ttl_left_ms, coalesce(error, '') FROM penstock.dead
 WHERE queue_id = $1::bigint AND NOT leased AND (died_at, id) > ($2::bigint, $3::bigint) AND died_at <= $4::bigint
 ORDER BY died_at, id LIMIT $5::bigint

-- :dead_letters_of
-- Selects first and sorts afterwards, because otherwise the planner may scan all dead letters in order.
WITH found AS MATERIALIZED (
  SELECT id, place, died_at, ttl_left_ms, coalesce(error, '') FROM penstock.dead
   WHERE id = ANY($6::bigint[]) AND queue_id = $1::bigint AND NOT leased
     AND (died_at, id) > ($2::bigint, $3::bigint) AND died_at <= $4::bigint)
SELECT * FROM found ORDER BY died_at, id LIMIT $5::bigint

-- :revive
WITH taken AS (
  DELETE FROM penstock.dead WHERE NOT leased AND id = ANY($1::bigint[]) RETURNING id, place, queue_id, ttl_left_ms),
moved AS (
  UPDATE penstock.message m SET available_at = $2::bigint FROM taken t WHERE m.place = t.place
  RETURNING m.place, m.priority)
INSERT INTO penstock.ready (queue_id, rank, available_at, id, place, attempts, expires_at)
SELECT t.queue_id, -m.priority, $2::bigint, t.id, t.place, 0, $3::bigint + nullif(t.ttl_left_ms, 0)
  FROM taken t JOIN moved m ON m.place = t.place
RETURNING id, expires_at

-- :holding
-- Returns the queues that may have due transitions, with their numbers of unfinished and archived messages, and of
-- counter rows to compact.
SELECT q.name, q.id, sum(c.ready + c.scheduled + c.leased)::bigint, sum(c.archived)::bigint, count(*)
  FROM penstock.counter c JOIN penstock.queue q ON q.id = c.queue_id
 GROUP BY q.id ORDER BY q.name

-- :old_archive
WITH found AS MATERIALIZED (
  SELECT id FROM penstock.archive WHERE queue_id = $1::bigint AND archived_at <= $2::bigint
   ORDER BY archived_at LIMIT $3::bigint FOR UPDATE SKIP LOCKED)
DELETE FROM penstock.archive a USING found o WHERE a.id = o.id RETURNING a.id, a.place, false

-- :old_keys
SELECT k.space, k.key,
       EXISTS (SELECT 1 FROM penstock.message m WHERE m.place = k.place)
         AND NOT EXISTS (SELECT 1 FROM penstock.archive a WHERE a.id = k.id),
       k.id
  FROM penstock.key k WHERE k.check_at <= $1::bigint ORDER BY k.check_at LIMIT $2::bigint FOR UPDATE OF k SKIP LOCKED

-- :keep_keys
UPDATE penstock.key k SET check_at = $1::bigint FROM unnest($2::bigint[], $3::text[]) AS r(space, key)
 WHERE k.space = r.space AND k.key = r.key

-- :forget_minutes
DELETE FROM penstock.minute WHERE queue_id = ANY($1::bigint[]) AND minute < $2::bigint

-- :forget_latencies
DELETE FROM penstock.latency WHERE queue_id = ANY($1::bigint[]) AND minute < $2::bigint

-- :idle
-- Runs under the push locks, so that queues that are empty now stay empty until the locks are released.
DELETE FROM penstock.busy b WHERE b.queue_id = ANY($1::bigint[])
   AND (SELECT sum(c.ready + c.scheduled + c.leased) FROM penstock.counter c WHERE c.queue_id = b.queue_id) = 0

-- :busy_ids
SELECT queue_id FROM penstock.busy WHERE queue_id = ANY($1::bigint[])
