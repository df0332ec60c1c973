-- :due
WITH found AS MATERIALIZED (
  SELECT o.queue_id, o.available_at, o.id FROM penstock.scheduled o
   WHERE o.queue_id = $1::bigint AND o.available_at > $2::bigint AND o.available_at <= $3::bigint
   ORDER BY o.available_at, o.id LIMIT $4::bigint FOR UPDATE SKIP LOCKED),
due AS (
  DELETE FROM penstock.scheduled s USING found o
   WHERE s.queue_id = o.queue_id AND s.available_at = o.available_at AND s.id = o.id
  RETURNING s.*)
INSERT INTO penstock.ready (queue_id, rank, available_at, id, place, attempts, first_leased_at, expires_at)
SELECT queue_id, rank, available_at, id, place, attempts, first_leased_at, expires_at FROM due
RETURNING id

-- :lapsed
WITH found AS MATERIALIZED (
  SELECT o.queue_id, o.leased_until, o.id FROM penstock.single_lease o
   WHERE o.queue_id = $1::bigint AND o.leased_until > $2::bigint AND o.leased_until <= $3::bigint
   ORDER BY o.leased_until, o.id LIMIT $4::bigint FOR UPDATE SKIP LOCKED)
DELETE FROM penstock.single_lease l USING found o
 WHERE l.queue_id = o.queue_id AND l.leased_until = o.leased_until AND l.id = o.id
RETURNING l.id, l.place, l.attempts, l.first_leased_at, l.leased_at, l.expires_at, l.from_dead, l.extended,
          CASE WHEN $5::boolean THEN (SELECT m.created_at FROM penstock.message m WHERE m.place = l.place) END,
          l.leased_until, l.token

-- :expired_ready
WITH found AS MATERIALIZED (
  SELECT o.queue_id, o.rank, o.available_at, o.id FROM penstock.ready o
   WHERE o.queue_id = $1::bigint AND o.expires_at IS NOT NULL AND o.expires_at <= $2::bigint
   ORDER BY o.expires_at LIMIT $3::bigint FOR UPDATE SKIP LOCKED)
DELETE FROM penstock.ready r USING found o
 WHERE r.queue_id = o.queue_id AND r.rank = o.rank AND r.available_at = o.available_at AND r.id = o.id
RETURNING r.id, r.place, r.attempts, r.first_leased_at,
          CASE WHEN $4::boolean THEN (SELECT m.created_at FROM penstock.message m WHERE m.place = r.place) END

-- :expired_scheduled
WITH found AS MATERIALIZED (
  SELECT o.queue_id, o.available_at, o.id FROM penstock.scheduled o
   WHERE o.queue_id = $1::bigint AND o.expires_at IS NOT NULL AND o.expires_at <= $2::bigint
   ORDER BY o.expires_at LIMIT $3::bigint FOR UPDATE SKIP LOCKED)
DELETE FROM penstock.scheduled r USING found o
 WHERE r.queue_id = o.queue_id AND r.available_at = o.available_at AND r.id = o.id
RETURNING r.id, r.place, r.attempts, r.first_leased_at,
          CASE WHEN $4::boolean THEN (SELECT m.created_at FROM penstock.message m WHERE m.place = r.place) END

-- :bounds
SELECT (SELECT s.available_at FROM penstock.scheduled s WHERE s.queue_id = $1::bigint AND s.available_at > $2::bigint
           AND s.available_at <= $4::bigint ORDER BY s.available_at LIMIT 1),
       least((SELECT l.leased_until FROM penstock.single_lease l WHERE l.queue_id = $1::bigint
                 AND l.leased_until > $3::bigint AND l.leased_until <= $4::bigint ORDER BY l.leased_until LIMIT 1),
             (SELECT l.leased_until FROM penstock.lease_range l WHERE l.queue_id = $1::bigint
                 AND l.leased_until > $3::bigint AND l.leased_until <= $4::bigint ORDER BY l.leased_until LIMIT 1)),
       least((SELECT r.expires_at FROM penstock.ready r WHERE r.queue_id = $1::bigint AND r.expires_at IS NOT NULL
                 AND r.expires_at <= $4::bigint ORDER BY r.expires_at LIMIT 1),
             (SELECT s.expires_at FROM penstock.scheduled s WHERE s.queue_id = $1::bigint AND s.expires_at IS NOT NULL
                 AND s.expires_at <= $4::bigint ORDER BY s.expires_at LIMIT 1))

-- :wakes
SELECT f.queue_id, least(
         (SELECT s.available_at FROM penstock.scheduled s
           WHERE s.queue_id = f.queue_id AND s.available_at > f.due_floor ORDER BY s.available_at LIMIT 1),
         (SELECT l.leased_until FROM penstock.single_lease l
           WHERE l.queue_id = f.queue_id AND l.leased_until > f.lapse_floor ORDER BY l.leased_until LIMIT 1),
         (SELECT l.leased_until FROM penstock.lease_range l
           WHERE l.queue_id = f.queue_id AND l.leased_until > f.lapse_floor ORDER BY l.leased_until LIMIT 1))
  FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS f(queue_id, due_floor, lapse_floor)

-- :far_queues
SELECT f.queue_id FROM unnest($1::bigint[], $2::bigint[]) AS f(queue_id, after)
 WHERE EXISTS (SELECT 1 FROM penstock.single_lease l WHERE l.queue_id = f.queue_id AND l.leased_until > f.after)
    OR EXISTS (SELECT 1 FROM penstock.lease_range l WHERE l.queue_id = f.queue_id AND l.leased_until > f.after)

-- :far
-- A range is listed under its first id.
(SELECT l.leased_until, l.id,
       coalesce(CASE WHEN l.extended THEN (SELECT e.extended_at FROM penstock.extension e WHERE e.id = l.id) END, l.leased_at)
  FROM penstock.single_lease l
 WHERE l.queue_id = $1::bigint AND (l.leased_until, l.id) > ($2::bigint, $3::bigint)
 ORDER BY l.leased_until, l.id LIMIT $4::bigint)
UNION ALL
(SELECT r.leased_until, r.first_id, r.leased_at FROM penstock.lease_range r
  WHERE r.queue_id = $1::bigint AND (r.leased_until, r.first_id) > ($2::bigint, $3::bigint)
  ORDER BY r.leased_until, r.first_id LIMIT $4::bigint)
ORDER BY 1, 2 LIMIT $4::bigint

-- :end_far
WITH found AS MATERIALIZED (
  SELECT o.queue_id, o.leased_until, o.id FROM unnest($2::bigint[], $3::bigint[]) AS i(leased_until, id),
    LATERAL (SELECT o.queue_id, o.leased_until, o.id FROM penstock.single_lease o
      WHERE o.queue_id = $1::bigint AND o.leased_until = i.leased_until AND o.id = i.id FOR UPDATE SKIP LOCKED) o)
DELETE FROM penstock.single_lease l USING found o
 WHERE l.queue_id = o.queue_id AND l.leased_until = o.leased_until AND l.id = o.id
RETURNING l.id, l.place, l.attempts, l.first_leased_at, l.leased_at, l.expires_at, l.from_dead, l.extended,
          CASE WHEN $4::boolean THEN (SELECT m.created_at FROM penstock.message m WHERE m.place = l.place) END,
          l.leased_until, l.token
