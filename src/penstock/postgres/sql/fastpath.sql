-- :push
SELECT penstock.push_at_once($1::bigint, $2::bigint, $3::bigint, $4::bigint, $5::text, $6::text, $7::bigint,
                             $8::bigint, $9::bigint[], $10::text[], $11::bytea[])

-- :lease
SELECT * FROM penstock.lease_at_once($1::bigint, $2::bigint, $3::bigint, $4::text, $5::text, $6::bigint, $7::bigint,
                                     $8::boolean, $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[])

-- :ack
SELECT penstock.ack_at_once($1::bigint, $2::bigint, $3::text, $4::text, $5::bigint[], $6::bigint[], $7::bytea[])

-- :claim
-- Waits for a transaction that is about to insert the same mark.
INSERT INTO penstock.mark VALUES ($1::bigint) ON CONFLICT DO NOTHING RETURNING 1

-- :became
SELECT first_id, at FROM penstock.mark WHERE mark = $1::bigint

-- :forget_marks
DELETE FROM penstock.mark WHERE mark > $1::bigint AND mark < $2::bigint
