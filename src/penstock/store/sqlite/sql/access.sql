-- :count_queue_keys
SELECT count(*) FROM penstock_api_key WHERE queue_id = ?

-- :add_queue_key
INSERT INTO penstock_api_key (id, queue_id, name, hash, rights, created_at) VALUES (?, ?, ?, ?, ?, ?)

-- :remove_queue_keys
DELETE FROM penstock_api_key WHERE queue_id = ?1 AND (?2 IS NULL OR id = ?2)

-- :count_stream_keys
SELECT count(*) FROM penstock_stream_key WHERE stream = ?

-- :add_stream_key
INSERT INTO penstock_stream_key (id, stream, name, hash, rights, created_at) VALUES (?, ?, ?, ?, ?, ?)

-- :remove_stream_keys
DELETE FROM penstock_stream_key WHERE stream = ?1 AND (?2 IS NULL OR id = ?2)

-- :set_secret
UPDATE penstock_queue SET secret = ? WHERE id = ?
