-- Who works here: servers, and consumers that give their names. Each row stands until its own time, unless renewed.
CREATE TABLE penstock_worker (
  kind       TEXT NOT NULL CHECK (kind IN ('server', 'consumer')),
  name       TEXT NOT NULL,
  host       TEXT,
  pid        INTEGER,
  version    TEXT,
  server     TEXT,                 -- through which a consumer leases
  started_at INTEGER NOT NULL,
  seen_at    INTEGER NOT NULL,
  stale_at   INTEGER NOT NULL,
  queues     TEXT NOT NULL,        -- names and scopes, as JSON
  PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
