CREATE TABLE penstock_stream_key (
  id         TEXT PRIMARY KEY,
  stream     TEXT NOT NULL,
  name       TEXT NOT NULL,
  hash       BLOB NOT NULL,
  rights     TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_stream_key_stream ON penstock_stream_key (stream);
