-- :count_queue_keys
SELECT count(*) FROM penstock.api_key WHERE queue_id = $1::bigint

-- :add_queue_key
INSERT INTO penstock.api_key (id, queue_id, name, hash, rights, created_at)
VALUES ($1::text, $2::bigint, $3::text, $4::bytea, $5::text, $6::bigint)

-- :remove_queue_keys
DELETE FROM penstock.api_key WHERE queue_id = $1::bigint AND ($2::text IS NULL OR id = $2::text) RETURNING id

-- :count_stream_keys
SELECT count(*) FROM penstock.stream_key WHERE stream = $1::text

-- :add_stream_key
INSERT INTO penstock.stream_key (id, stream, name, hash, rights, created_at)
VALUES ($1::text, $2::text, $3::text, $4::bytea, $5::text, $6::bigint)

-- :remove_stream_keys
DELETE FROM penstock.stream_key WHERE stream = $1::text AND ($2::text IS NULL OR id = $2::text) RETURNING id

-- :set_secret
UPDATE penstock.queue SET secret = $2::text WHERE id = $1::bigint
