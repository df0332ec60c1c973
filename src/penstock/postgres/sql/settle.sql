-- :end
-- Looks up each row by its token, because with a join the planner may read all leases.
DELETE FROM penstock.single_lease l WHERE l.ctid = ANY (ARRAY(
  SELECT o.ctid FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[]) AS i(queue_id, leased_until, id, token),
    LATERAL (SELECT o.ctid FROM penstock.single_lease o
      WHERE o.queue_id = i.queue_id AND o.id = i.id AND o.token = i.token
        AND o.leased_until = coalesce((SELECT e.leased_until FROM penstock.extension e WHERE e.id = i.id),
                                      i.leased_until)
        AND o.leased_until > (SELECT penstock.now_ms()) OFFSET 0) o))
RETURNING l.id, l.place, l.attempts, l.first_leased_at, l.leased_at, l.expires_at, l.from_dead, l.extended,
          CASE WHEN $5::boolean THEN (SELECT m.created_at FROM penstock.message m WHERE m.place = l.place) END,
          l.leased_until, l.token

-- :current
SELECT id, token FROM penstock.single_lease WHERE queue_id = $1::bigint AND id = ANY($2::bigint[])
UNION ALL
SELECT i.id, r.token FROM penstock.lease_range r JOIN unnest($2::bigint[]) AS i(id) ON i.id BETWEEN r.first_id AND r.last_id
 WHERE r.queue_id = $1::bigint
   AND EXISTS (SELECT 1 FROM penstock.message m WHERE m.place = ($1::bigint << QUEUE_SHIFT) + i.id)

-- :extend
UPDATE penstock.single_lease l SET leased_until = $5::bigint, extended = true WHERE l.ctid = ANY (ARRAY(
  SELECT o.ctid FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[]) AS i(queue_id, leased_until, id, token),
    LATERAL (SELECT o.ctid FROM penstock.single_lease o
      WHERE o.queue_id = i.queue_id AND o.id = i.id AND o.token = i.token
        AND o.leased_until = coalesce((SELECT e.leased_until FROM penstock.extension e WHERE e.id = i.id),
                                      i.leased_until)
        AND o.leased_until > (SELECT penstock.now_ms()) OFFSET 0) o))
RETURNING l.id, CASE WHEN $6::boolean THEN (SELECT m.created_at FROM penstock.message m WHERE m.place = l.place) END

-- :note_extensions
INSERT INTO penstock.extension (id, leased_until, extended_at) SELECT unnest($1::bigint[]), $2::bigint, $3::bigint
ON CONFLICT (id) DO UPDATE SET leased_until = excluded.leased_until, extended_at = excluded.extended_at

-- :forget_extensions
DELETE FROM penstock.extension WHERE id = ANY($1::bigint[])

-- :known
SELECT m.place FROM penstock.message m
 WHERE m.place = ANY($1::bigint[])
   AND NOT EXISTS (SELECT 1 FROM penstock.archive a WHERE a.id = m.place & ID_MAX)

-- :delete_messages
DELETE FROM penstock.message WHERE place = ANY($1::bigint[]) RETURNING place, created_at

-- :pushed
SELECT place, created_at FROM penstock.message WHERE place = ANY($1::bigint[])

-- :forget_dead
DELETE FROM penstock.dead WHERE id = ANY($1::bigint[])

-- :return_dead
UPDATE penstock.dead SET leased = false WHERE id = ANY($1::bigint[])

-- :forget_failures
DELETE FROM penstock.failure WHERE id = ANY($1::bigint[])

-- :remember_failures
INSERT INTO penstock.failure (id, attempt, at, error, traceback)
SELECT r.id, r.attempt, $1::bigint, r.error, r.traceback
  FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[]) AS r(id, attempt, error, traceback)
ON CONFLICT (id, at, attempt) DO UPDATE SET error = excluded.error, traceback = excluded.traceback

-- :trim_failures
DELETE FROM penstock.failure f WHERE f.id = ANY($1::bigint[]) AND (f.at, f.attempt) < (
  SELECT k.at, k.attempt FROM penstock.failure k WHERE k.id = f.id
   ORDER BY k.at DESC, k.attempt DESC OFFSET $2::bigint - 1 LIMIT 1)

-- :die
INSERT INTO penstock.dead (id, place, queue_id, died_at, attempts, first_leased_at, ttl_left_ms, reason, error)
SELECT r.place & ID_MAX, r.place, r.place >> QUEUE_SHIFT, $1::bigint, r.attempts, r.first_leased_at, r.ttl_left_ms,
       $2::text, r.error
  FROM unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[])
    AS r(place, attempts, first_leased_at, ttl_left_ms, error)

-- :move
UPDATE penstock.message m SET available_at = r.available_at
  FROM unnest($1::bigint[], $2::bigint[]) AS r(place, available_at) WHERE m.place = r.place

-- :schedule
INSERT INTO penstock.scheduled (queue_id, available_at, id, rank, place, attempts, first_leased_at, expires_at)
SELECT r.place >> QUEUE_SHIFT, r.available_at, r.place & ID_MAX, -m.priority, r.place, r.attempts, r.first_leased_at,
       r.expires_at
  FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
    AS r(place, available_at, attempts, first_leased_at, expires_at)
  JOIN penstock.message m ON m.place = r.place

-- :file
INSERT INTO penstock.ready (queue_id, rank, available_at, id, place, attempts, first_leased_at, expires_at)
SELECT r.place >> QUEUE_SHIFT, -m.priority, coalesce(m.available_at, m.created_at), r.place & ID_MAX, r.place,
       r.attempts, r.first_leased_at, r.expires_at
  FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])
    AS r(place, attempts, first_leased_at, expires_at)
  JOIN penstock.message m ON m.place = r.place

-- :remember
INSERT INTO penstock.settled (minute, queue_id, how, token, ids)
SELECT $1::bigint, r.queue_id, r.how, r.token, array_agg(r.id)
  FROM unnest($2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[]) AS r(queue_id, how, token, id)
 GROUP BY r.queue_id, r.how, r.token

-- :recall
SELECT i.queue_id, i.id, i.token, s.how
  FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS i(queue_id, id, token)
 CROSS JOIN generate_series($4::bigint, $5::bigint) AS r(minute),
    LATERAL (SELECT s.how FROM penstock.settled s WHERE s.minute = r.minute AND s.token = i.token
                AND s.queue_id = i.queue_id
                AND (i.id = ANY (s.ids) OR (s.ids[2] < 0 AND i.id BETWEEN s.ids[1] AND -s.ids[2])) OFFSET 0) s

-- :forget_settled
DELETE FROM penstock.settled s WHERE s.ctid = ANY (ARRAY(
  SELECT o.ctid FROM penstock.settled o WHERE o.minute >= $1::bigint AND o.minute < $2::bigint
   ORDER BY o.minute LIMIT $3::bigint FOR UPDATE SKIP LOCKED))
RETURNING 1
