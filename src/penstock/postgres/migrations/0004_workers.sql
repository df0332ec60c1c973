-- Who works here: servers, and consumers that give their names. Each row stands until its own time, unless renewed.
CREATE TABLE penstock.worker (
  kind       text COLLATE "C" NOT NULL CHECK (kind IN ('server', 'consumer')),
  name       text COLLATE "C" NOT NULL,
  host       text,
  pid        bigint,
  version    text,
  server     text,                 -- through which a consumer leases
  started_at bigint NOT NULL,
  seen_at    bigint NOT NULL,
  stale_at   bigint NOT NULL,
  queues     text NOT NULL,        -- names and scopes, as JSON
  PRIMARY KEY (kind, name)
);
ALTER TABLE penstock.worker SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
