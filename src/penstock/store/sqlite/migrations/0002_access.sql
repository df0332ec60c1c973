CREATE TABLE penstock_api_key (
  id         TEXT PRIMARY KEY,
  queue_id   INTEGER NOT NULL REFERENCES penstock_queue (id),
  name       TEXT NOT NULL,
  hash       BLOB NOT NULL,
  rights     TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_api_key_queue ON penstock_api_key (queue_id);

-- A queue with a secret takes only messages signed with it.
ALTER TABLE penstock_queue ADD COLUMN secret TEXT;
