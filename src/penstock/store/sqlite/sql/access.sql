-- :add_key
INSERT INTO penstock_api_key (id, queue_id, name, hash, rights, created_at) VALUES (?, ?, ?, ?, ?, ?)

-- :remove_key
DELETE FROM penstock_api_key WHERE id = ? AND queue_id = ?

-- :find_key
SELECT k.id, q.name, k.name, k.hash, k.rights, k.created_at, NULL
  FROM penstock_api_key k JOIN penstock_queue q ON q.id = k.queue_id WHERE k.id = ?1
UNION ALL
SELECT id, NULL, name, hash, rights, created_at, stream FROM penstock_stream_key WHERE id = ?1

-- :add_stream_key
INSERT INTO penstock_stream_key (id, stream, name, hash, rights, created_at) VALUES (?, ?, ?, ?, ?, ?)

-- :remove_stream_keys
DELETE FROM penstock_stream_key WHERE stream = ?1 AND (?2 IS NULL OR id = ?2)

-- :list_stream_keys
SELECT id, NULL, name, hash, rights, created_at, stream FROM penstock_stream_key WHERE stream = ? ORDER BY created_at, id

-- :list_keys
SELECT k.id, q.name, k.name, k.hash, k.rights, k.created_at, NULL
  FROM penstock_api_key k JOIN penstock_queue q ON q.id = k.queue_id WHERE q.name = ? ORDER BY k.created_at, k.id

-- :set_secret
UPDATE penstock_queue SET secret = ? WHERE id = ?

-- :secret
SELECT secret FROM penstock_queue WHERE name = ?
