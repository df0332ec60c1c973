-- Reads each queue until its messages reach the byte limit of one response ($3); messages beyond it are not leased.

-- :plain
SELECT m.place, m.created_at, m.available_at, m.priority, m.content, m.key, m.headers, m.payload
  FROM unnest($1::bigint[], $2::bigint[]) AS f(queue_id, wanted),
       LATERAL (SELECT m.*, sum(octet_length(m.payload)) OVER (ROWS UNBOUNDED PRECEDING) AS bytes
         FROM (SELECT * FROM penstock.message m
           WHERE m.place > (SELECT c.cursor FROM penstock.counter c WHERE c.queue_id = f.queue_id
                               AND c.cursor IS NOT NULL ORDER BY c.cursor DESC LIMIT 1)
             AND m.place < (f.queue_id * 2 + 1) << ID_BITS ORDER BY m.place LIMIT f.wanted) m) m
 WHERE m.bytes - octet_length(m.payload) < $3::bigint

-- :newest
SELECT created_at FROM (
  (SELECT place & ID_MAX AS id, created_at FROM penstock.message
    WHERE place > ($1::bigint * 2) << ID_BITS AND place < ($1::bigint * 2 + 1) << ID_BITS ORDER BY place DESC LIMIT 1)
  UNION ALL
  (SELECT place & ID_MAX, created_at FROM penstock.message
    WHERE place > ($1::bigint * 2 + 1) << ID_BITS AND place < ($1::bigint * 2 + 2) << ID_BITS ORDER BY place DESC LIMIT 1)) m
 ORDER BY id DESC LIMIT 1

-- :indexed
SELECT h.queue_id, h.rank, h.available_at, h.id, h.place, h.attempts, h.first_leased_at, h.expires_at,
       h.created_at, h.priority, h.content, h.key, h.headers, h.payload
  FROM (SELECT r.*, m.created_at, m.priority, m.content, m.key, m.headers, m.payload,
               sum(octet_length(m.payload)) OVER (PARTITION BY r.queue_id ORDER BY r.rank, r.available_at, r.id) AS bytes
          FROM unnest($1::bigint[], $2::bigint[]) AS f(queue_id, wanted),
               LATERAL (SELECT * FROM penstock.ready r WHERE r.queue_id = f.queue_id
                         ORDER BY r.rank, r.available_at, r.id LIMIT f.wanted FOR UPDATE SKIP LOCKED) r
          JOIN penstock.message m ON m.place = r.place) h
 WHERE h.bytes - octet_length(h.payload) < $3::bigint
 ORDER BY h.queue_id, h.rank, h.available_at, h.id

-- :lease
INSERT INTO penstock.single_lease (queue_id, leased_until, id, place, token, leased_at, attempts, first_leased_at,
                            expires_at, worker)
SELECT r.place >> QUEUE_SHIFT, r.leased_until, r.place & ID_MAX, r.place, r.token, $1::bigint, coalesce(r.attempts, 1),
       coalesce(r.first_leased_at, $1::bigint), r.expires_at, r.worker
  FROM unnest($2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[])
    AS r(place, leased_until, token, attempts, first_leased_at, expires_at, worker)

-- :unfile
DELETE FROM penstock.ready r WHERE r.ctid = ANY (ARRAY(
  SELECT o.ctid FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS i(queue_id, rank, available_at, id),
    LATERAL (SELECT o.ctid FROM penstock.ready o
      WHERE o.queue_id = i.queue_id AND o.rank = i.rank AND o.available_at = i.available_at AND o.id = i.id OFFSET 0) o))

-- :dead
WITH head AS MATERIALIZED (
  SELECT o.id, o.place, o.died_at FROM penstock.dead o WHERE o.queue_id = $1::bigint AND NOT o.leased
   ORDER BY o.died_at, o.id LIMIT $2::bigint FOR UPDATE SKIP LOCKED),
found AS MATERIALIZED (
  SELECT h.id, sum(octet_length(m.payload)) OVER (ORDER BY h.died_at, h.id) AS bytes
    FROM head h JOIN penstock.message m ON m.place = h.place)
UPDATE penstock.dead d SET leased = true FROM found o, penstock.message m
 WHERE d.id = o.id AND m.place = d.place AND o.bytes - octet_length(m.payload) < $3::bigint
RETURNING d.died_at, d.id, d.place, d.attempts, d.first_leased_at,
          m.created_at, m.priority, m.content, m.key, m.headers, m.payload

-- :lease_dead
INSERT INTO penstock.single_lease (queue_id, leased_until, id, place, token, leased_at, attempts, first_leased_at, worker,
                            from_dead)
SELECT r.place >> QUEUE_SHIFT, $2::bigint, r.place & ID_MAX, r.place, $3::bytea, $1::bigint, r.attempts,
       coalesce(r.first_leased_at, $1::bigint), $4::text, true
  FROM unnest($5::bigint[], $6::bigint[], $7::bigint[]) AS r(place, attempts, first_leased_at)

-- :archive
INSERT INTO penstock.archive (id, place, queue_id, archived_at, attempts, first_leased_at, leased_at)
SELECT r.place & ID_MAX, r.place, r.place >> QUEUE_SHIFT, $1::bigint, coalesce(r.attempts, 1),
       coalesce(r.first_leased_at, $1::bigint), coalesce(r.leased_at, $1::bigint)
  FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
    AS r(place, attempts, first_leased_at, leased_at)

-- :busy_in_scope
SELECT name, queue_id FROM penstock.busy WHERE name >= $1::text AND name < $2::text ORDER BY name

-- :holding
SELECT c.queue_id FROM penstock.counter c WHERE c.queue_id = ANY($1::bigint[])
 GROUP BY c.queue_id HAVING sum(c.ready + c.scheduled + c.leased) > 0

-- :heads
-- Returns (available_at, id) of the next messages of many queues; callers sort them within each queue.
SELECT f.queue_id, 0::bigint, coalesce(m.available_at, m.created_at), m.place & ID_MAX
  FROM unnest($1::bigint[], $2::bigint[]) AS f(queue_id, wanted),
       LATERAL (SELECT m.place, m.available_at, m.created_at FROM penstock.message m
         WHERE m.place > (SELECT c.cursor FROM penstock.counter c WHERE c.queue_id = f.queue_id
                             AND c.cursor IS NOT NULL ORDER BY c.cursor DESC LIMIT 1)
           AND m.place < (f.queue_id * 2 + 1) << ID_BITS ORDER BY m.place LIMIT f.wanted) m
UNION ALL
SELECT f.queue_id, r.rank, r.available_at, r.id
  FROM unnest($1::bigint[], $2::bigint[]) AS f(queue_id, wanted),
       LATERAL (SELECT r.rank, r.available_at, r.id FROM penstock.ready r WHERE r.queue_id = f.queue_id
                 ORDER BY r.rank, r.available_at, r.id LIMIT f.wanted) r
