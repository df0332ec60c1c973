-- :add_key
INSERT INTO penstock_api_key (id, queue_id, name, hash, rights, created_at) VALUES (?, ?, ?, ?, ?, ?)

-- :remove_key
DELETE FROM penstock_api_key WHERE id = ? AND queue_id = ?

-- :find_key
SELECT k.id, q.name, k.name, k.hash, k.rights, k.created_at
  FROM penstock_api_key k JOIN penstock_queue q ON q.id = k.queue_id WHERE k.id = ?

-- :list_keys
SELECT k.id, q.name, k.name, k.hash, k.rights, k.created_at
  FROM penstock_api_key k JOIN penstock_queue q ON q.id = k.queue_id WHERE q.name = ? ORDER BY k.created_at, k.id

-- :set_secret
UPDATE penstock_queue SET secret = ? WHERE id = ?

-- :secret
SELECT secret FROM penstock_queue WHERE name = ?
