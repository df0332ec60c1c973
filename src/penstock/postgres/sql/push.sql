-- :messages
-- Assigns consecutive ids and returns the first. The mark, if any, shows later whether the push was committed.
WITH numbers AS MATERIALIZED (SELECT penstock.take_ids($1::bigint) AS first_id),
marked AS (
  INSERT INTO penstock.mark (mark, first_id, at) SELECT $2::bigint, n.first_id, $3::bigint FROM numbers n
   WHERE $2::bigint IS NOT NULL),
added AS (
  INSERT INTO penstock.message (place, created_at, available_at, priority, content, key, headers, payload)
  SELECT coalesce(r.lane, $4::bigint) + n.first_id + r.number - 1, $3::bigint, r.available_at, coalesce(r.priority, 0),
         coalesce(r.content, 0), r.key, r.headers, r.payload
    FROM numbers n, unnest($5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[], $10::text[], $11::bytea[])
      WITH ORDINALITY AS r(lane, available_at, priority, content, key, headers, payload, number))
SELECT first_id FROM numbers

-- :ready
INSERT INTO penstock.ready (queue_id, rank, available_at, id, place, attempts, expires_at)
SELECT r.lane >> QUEUE_SHIFT, r.rank, r.available_at, currval('penstock.message_id') - r.back,
       r.lane + currval('penstock.message_id') - r.back, 0, r.expires_at
  FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
    AS r(lane, back, rank, available_at, expires_at)

-- :scheduled
INSERT INTO penstock.scheduled (queue_id, rank, available_at, id, place, attempts, expires_at)
SELECT r.lane >> QUEUE_SHIFT, r.rank, r.available_at, currval('penstock.message_id') - r.back,
       r.lane + currval('penstock.message_id') - r.back, 0, r.expires_at
  FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
    AS r(lane, back, rank, available_at, expires_at)

-- :find_keys
-- A global key ends with the queue of its message; a dropped queue has deleted its own keys.
SELECT k.space, k.key, k.id, k.created_at,
       CASE WHEN k.space > 0 OR k.place < 0 OR EXISTS (SELECT 1 FROM penstock.queue q WHERE q.id = k.place >> QUEUE_SHIFT)
            THEN k.expires_at ELSE 0 END,
       EXISTS (SELECT 1 FROM penstock.message m WHERE m.place = k.place)
         AND NOT EXISTS (SELECT 1 FROM penstock.archive a WHERE a.id = k.id),
       k.place >> QUEUE_SHIFT
  FROM unnest($1::bigint[], $2::text[]) AS wanted(space, key)
  JOIN penstock.key k ON k.space = wanted.space AND k.key = wanted.key

-- :forget_keys
DELETE FROM penstock.key k USING unnest($1::bigint[], $2::text[]) AS old(space, key)
 WHERE k.space = old.space AND k.key = old.key

-- :keep_keys
-- Sorts by key, so that two transactions that insert the same keys do not deadlock.
INSERT INTO penstock.key (space, key, id, place, created_at, expires_at, check_at)
SELECT r.space, r.key, currval('penstock.message_id') - r.back,
       CASE WHEN r.lane < 0 THEN r.lane ELSE r.lane + currval('penstock.message_id') - r.back END,
       r.created_at, r.expires_at, r.expires_at
  FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
    AS r(space, key, lane, back, created_at, expires_at)
 ORDER BY r.space, r.key

-- :busy
INSERT INTO penstock.busy (queue_id, name) SELECT * FROM unnest($1::bigint[], $2::text[]) ORDER BY 2
ON CONFLICT DO NOTHING

-- :tokens
SELECT tokens, tokens_at FROM penstock.bucket WHERE queue_id = $1::bigint

-- :keep_tokens
INSERT INTO penstock.bucket (queue_id, tokens, tokens_at) VALUES ($1::bigint, $2::double precision, $3::bigint)
ON CONFLICT (queue_id) DO UPDATE SET tokens = excluded.tokens, tokens_at = excluded.tokens_at

-- :own_transaction
SELECT penstock.push_messages($1::bigint, $2::bigint, $3::boolean, $4::text, $5::bytea[], $6::bigint[], $7::bigint[],
                              $8::bigint[], $9::bigint[], $10::text[], $11::text[])::text
