-- A message's place is its clustering key: (queue_id * 2 + lane) << 44 | id. Lane 0 holds plain messages (no priority,
-- delay or TTL); those behind the queue's cursor are ready with no row elsewhere. Lane 1 holds all others.
CREATE TABLE penstock_message (
  place        INTEGER PRIMARY KEY,
  created_at   INTEGER NOT NULL,
  available_at INTEGER,            -- NULL: created_at. Finds the message's row in ready or scheduled
  priority     INTEGER NOT NULL,
  content      INTEGER NOT NULL,
  key          TEXT,
  headers      TEXT,
  payload      BLOB NOT NULL
) STRICT;

CREATE TABLE penstock_queue (
  id         INTEGER PRIMARY KEY CHECK (id BETWEEN 1 AND 262143),
  name       TEXT NOT NULL UNIQUE,
  options    TEXT NOT NULL,
  paused     INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL
) STRICT;

-- last_id: the newest message id that the row knows of; row 0 keeps that of queues that are gone.
-- One queue of the file (setting 'uncounted' says which) may be ahead of its row: plain messages beyond last_id are pushes,
-- and leases of plain messages beyond the cursor are leases, that are counted with the queue's next other change.
CREATE TABLE penstock_counter (
  queue_id   INTEGER PRIMARY KEY,
  last_id    INTEGER NOT NULL DEFAULT 0,
  cursor     INTEGER NOT NULL DEFAULT 0,
  newest_at  INTEGER NOT NULL DEFAULT 0,
  minute     INTEGER NOT NULL DEFAULT 0,
  tokens     REAL,
  tokens_at  INTEGER,
  ready      INTEGER NOT NULL DEFAULT 0,
  scheduled  INTEGER NOT NULL DEFAULT 0,
  leased     INTEGER NOT NULL DEFAULT 0,
  dead       INTEGER NOT NULL DEFAULT 0,
  archived   INTEGER NOT NULL DEFAULT 0,
  n_pushed   INTEGER NOT NULL DEFAULT 0,
  n_leased   INTEGER NOT NULL DEFAULT 0,
  n_acked    INTEGER NOT NULL DEFAULT 0,
  n_nacked   INTEGER NOT NULL DEFAULT 0,
  n_lapsed   INTEGER NOT NULL DEFAULT 0,
  n_dead     INTEGER NOT NULL DEFAULT 0,
  n_expired  INTEGER NOT NULL DEFAULT 0,
  n_redriven INTEGER NOT NULL DEFAULT 0,
  n_removed  INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO penstock_counter (queue_id) VALUES (0);

-- The counters as they stood at the end of each minute in which something happened.
CREATE TABLE penstock_minute (
  queue_id   INTEGER NOT NULL,
  minute     INTEGER NOT NULL,
  ready      INTEGER NOT NULL,
  scheduled  INTEGER NOT NULL,
  leased     INTEGER NOT NULL,
  dead       INTEGER NOT NULL,
  archived   INTEGER NOT NULL,
  n_pushed   INTEGER NOT NULL,
  n_leased   INTEGER NOT NULL,
  n_acked    INTEGER NOT NULL,
  n_nacked   INTEGER NOT NULL,
  n_lapsed   INTEGER NOT NULL,
  n_dead     INTEGER NOT NULL,
  n_expired  INTEGER NOT NULL,
  n_redriven INTEGER NOT NULL,
  n_removed  INTEGER NOT NULL,
  PRIMARY KEY (queue_id, minute)
) STRICT, WITHOUT ROWID;

-- Queues of the tree that hold messages, so that a namespace pop meets no empty ones.
CREATE TABLE penstock_busy (
  name     TEXT PRIMARY KEY,
  queue_id INTEGER NOT NULL REFERENCES penstock_queue (id)
) STRICT, WITHOUT ROWID;

CREATE TABLE penstock_ready (
  queue_id        INTEGER NOT NULL REFERENCES penstock_queue (id),
  rank            INTEGER NOT NULL,   -- minus the priority, so that one ascending range is the order
  available_at    INTEGER NOT NULL,
  id              INTEGER NOT NULL,
  place           INTEGER NOT NULL,
  attempts        INTEGER NOT NULL,
  first_leased_at INTEGER,
  expires_at      INTEGER,
  PRIMARY KEY (queue_id, rank, available_at, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_ready_ttl ON penstock_ready (queue_id, expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE penstock_scheduled (
  queue_id        INTEGER NOT NULL REFERENCES penstock_queue (id),
  available_at    INTEGER NOT NULL,
  id              INTEGER NOT NULL,
  rank            INTEGER NOT NULL,
  place           INTEGER NOT NULL,
  attempts        INTEGER NOT NULL,
  first_leased_at INTEGER,
  expires_at      INTEGER,
  PRIMARY KEY (queue_id, available_at, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_scheduled_ttl ON penstock_scheduled (queue_id, expires_at) WHERE expires_at IS NOT NULL;

-- In the order in which leases lapse, and in no other: a token begins with the time that finds its row.
CREATE TABLE penstock_lease (
  queue_id        INTEGER NOT NULL REFERENCES penstock_queue (id),
  leased_until    INTEGER NOT NULL,
  id              INTEGER NOT NULL,
  place           INTEGER NOT NULL,
  token           BLOB NOT NULL,
  leased_at       INTEGER NOT NULL,
  attempts        INTEGER NOT NULL,
  first_leased_at INTEGER NOT NULL,
  expires_at      INTEGER,
  from_dead       INTEGER NOT NULL DEFAULT 0,
  extended        INTEGER NOT NULL DEFAULT 0,
  worker          TEXT,
  PRIMARY KEY (queue_id, leased_until, id)
) STRICT, WITHOUT ROWID;

-- Where the row of an extended lease is now; its token still tells the first time.
CREATE TABLE penstock_extension (
  id           INTEGER PRIMARY KEY,
  leased_until INTEGER NOT NULL
) STRICT;

-- A dead letter that is leased keeps its row, out of the index, to come back to.
CREATE TABLE penstock_dead (
  id              INTEGER PRIMARY KEY,
  place           INTEGER NOT NULL,
  queue_id        INTEGER NOT NULL REFERENCES penstock_queue (id),
  died_at         INTEGER NOT NULL,
  attempts        INTEGER NOT NULL,
  first_leased_at INTEGER,
  ttl_left_ms     INTEGER,
  reason          TEXT NOT NULL,
  error           TEXT,
  leased          INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX penstock_dead_by_age ON penstock_dead (queue_id, died_at, id) WHERE NOT leased;

CREATE TABLE penstock_archive (
  id              INTEGER PRIMARY KEY,
  place           INTEGER NOT NULL,
  queue_id        INTEGER NOT NULL REFERENCES penstock_queue (id),
  archived_at     INTEGER NOT NULL,
  attempts        INTEGER NOT NULL,
  first_leased_at INTEGER,
  leased_at       INTEGER
) STRICT;
CREATE INDEX penstock_archive_by_age ON penstock_archive (queue_id, archived_at, id);

CREATE TABLE penstock_failure (
  id      INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  at      INTEGER NOT NULL,
  error   TEXT NOT NULL,
  PRIMARY KEY (id, at, attempt)
) STRICT, WITHOUT ROWID;

-- Idempotency keys outlive their messages. Space 0 is shared by all queues.
CREATE TABLE penstock_key (
  space      INTEGER NOT NULL,
  key        TEXT NOT NULL,
  id         INTEGER NOT NULL,
  place      INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  check_at   INTEGER NOT NULL,     -- when the sweeper looks at it again
  PRIMARY KEY (space, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_key_check ON penstock_key (check_at);

CREATE TABLE penstock_setting (
  name  TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;
-- uncounted: the queue that may be ahead of its counters. writer: who has written last and says so; 0 if nobody does.
INSERT INTO penstock_setting VALUES ('uncounted', 0), ('writer', 0);
