-- :add
INSERT INTO penstock.lease_range (queue_id, leased_until, first_id, last_id, count, token, leased_at, worker)
SELECT r.queue_id, r.leased_until, r.first_id, r.last_id, r.count, r.token, $1::bigint, r.worker
  FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[], $8::text[])
    AS r(queue_id, leased_until, first_id, last_id, count, token, worker)

-- :find
-- Looks up each message by its token. The first columns are those of the statement that ends a single lease.
SELECT i.id, m.place, 1::bigint, r.leased_at, r.leased_at, NULL::bigint, false, false, m.created_at, r.leased_until,
       r.token, r.queue_id, r.first_id, r.last_id, r.count, r.worker
  FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[]) AS i(queue_id, leased_until, id, token),
    LATERAL (SELECT * FROM penstock.lease_range r WHERE r.queue_id = i.queue_id AND r.leased_until = i.leased_until
                AND r.first_id <= i.id ORDER BY r.first_id DESC LIMIT 1) r,
    LATERAL (SELECT m.place, m.created_at FROM penstock.message m
              WHERE m.place = (i.queue_id << QUEUE_SHIFT) + i.id OFFSET 0) m
 WHERE r.token = i.token AND r.last_id >= i.id AND r.leased_until > (SELECT penstock.now_ms())

-- :finish
SELECT penstock.finish_ranges($1::bigint, $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
                              $7::bytea[], $8::text[], $9::bigint[], $10::bigint[])

-- :split
SELECT penstock.split_ranges($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[],
                             $7::bigint[], $8::bigint[], $9::bigint[])

-- :extend
INSERT INTO penstock.single_lease (queue_id, leased_until, id, place, token, leased_at, attempts, first_leased_at,
                                   extended, worker)
SELECT r.place >> QUEUE_SHIFT, $1::bigint, r.place & ID_MAX, r.place, r.token, r.leased_at, 1, r.leased_at, true, r.worker
  FROM unnest($2::bigint[], $3::bytea[], $4::bigint[], $5::text[]) AS r(place, token, leased_at, worker)

-- :lapsed
-- Returns the same columns as the statement that ends single leases.
SELECT t.place & ID_MAX, t.place, 1::bigint, t.leased_at, t.leased_at, NULL::bigint, false, false, t.created_at,
       t.leased_until, t.token
  FROM (SELECT array_agg(r.leased_until) AS untils, array_agg(r.first_id) AS firsts
          FROM (SELECT r.leased_until, r.first_id FROM penstock.lease_range r
                 WHERE r.queue_id = $1::bigint AND r.leased_until > $2::bigint AND r.leased_until <= $3::bigint
                 ORDER BY r.leased_until, r.first_id LIMIT $4::bigint) r) k,
       penstock.take_from_ranges($1::bigint, k.untils, k.firsts, ID_MAX, $4::bigint) t

-- :end_far
SELECT t.place & ID_MAX, t.place, 1::bigint, t.leased_at, t.leased_at, NULL::bigint, false, false, t.created_at,
       t.leased_until, t.token
  FROM penstock.take_from_ranges($1::bigint, $2::bigint[], $3::bigint[], ID_MAX, $4::bigint) t

-- :purge
SELECT t.place & ID_MAX, t.place, false
  FROM (SELECT array_agg(r.leased_until) AS untils, array_agg(r.first_id) AS firsts
          FROM (SELECT r.leased_until, r.first_id FROM penstock.lease_range r
                 WHERE r.queue_id = $1::bigint AND r.first_id <= $2::bigint
                   AND EXISTS (SELECT 1 FROM penstock.message m
                                WHERE m.place BETWEEN (r.queue_id << QUEUE_SHIFT) + r.first_id
                                                  AND (r.queue_id << QUEUE_SHIFT) + least(r.last_id, $2::bigint))
                 ORDER BY r.leased_until, r.first_id LIMIT $3::bigint) r) k,
       penstock.take_from_ranges($1::bigint, k.untils, k.firsts, $2::bigint, $3::bigint) t

-- :remove
SELECT penstock.remove_from_ranges($1::bigint, $2::bigint[]), false
