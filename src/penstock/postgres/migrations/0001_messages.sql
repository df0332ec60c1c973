-- A message's place is its key: (queue_id * 2 + lane) << 44 | id. Lane 0 holds plain messages (no priority, delay or
-- TTL), whose ids grow in the order of their commits; those behind the queue's cursor are ready with no row elsewhere.
CREATE TABLE penstock.message (
  place        bigint PRIMARY KEY,
  created_at   bigint NOT NULL,
  available_at bigint,             -- NULL: created_at. Finds the message's row in ready or scheduled
  priority     integer NOT NULL,
  content      smallint NOT NULL,
  key          text,
  headers      text,
  payload      bytea NOT NULL
);
CREATE SEQUENCE penstock.message_id MAXVALUE 17592186044415;

CREATE TABLE penstock.queue (
  id         bigint PRIMARY KEY CHECK (id BETWEEN 1 AND 262143),
  name       text COLLATE "C" NOT NULL UNIQUE,
  options    text NOT NULL,
  paused     boolean NOT NULL DEFAULT false,
  limited    boolean NOT NULL,     -- a push or a lease has to know how many messages there are
  created_at bigint NOT NULL,
  secret     text
);

-- What each commit changed, as rows that only ever are added: no two commits wait for one counter, and a held snapshot
-- makes no row slower to find. A queue's count is the sum of its rows, its cursor the highest. Folded by the sweeper.
CREATE TABLE penstock.counter (
  queue_id   bigint NOT NULL,
  minute     bigint,               -- NULL: folded, and counted in the minutes already
  cursor     bigint,
  newest_at  bigint,
  ready      bigint NOT NULL DEFAULT 0,
  scheduled  bigint NOT NULL DEFAULT 0,
  leased     bigint NOT NULL DEFAULT 0,
  dead       bigint NOT NULL DEFAULT 0,
  archived   bigint NOT NULL DEFAULT 0,
  n_pushed   bigint NOT NULL DEFAULT 0,
  n_leased   bigint NOT NULL DEFAULT 0,
  n_acked    bigint NOT NULL DEFAULT 0,
  n_nacked   bigint NOT NULL DEFAULT 0,
  n_lapsed   bigint NOT NULL DEFAULT 0,
  n_dead     bigint NOT NULL DEFAULT 0,
  n_expired  bigint NOT NULL DEFAULT 0,
  n_redriven bigint NOT NULL DEFAULT 0,
  n_removed  bigint NOT NULL DEFAULT 0
);
CREATE INDEX counter_queue ON penstock.counter (queue_id);
CREATE INDEX counter_cursor ON penstock.counter (queue_id, cursor) WHERE cursor IS NOT NULL;
CREATE INDEX counter_newest ON penstock.counter (queue_id, newest_at) WHERE newest_at IS NOT NULL;

-- What happened in each minute in which something did.
CREATE TABLE penstock.minute (
  queue_id   bigint NOT NULL,
  minute     bigint NOT NULL,
  ready      bigint NOT NULL,
  scheduled  bigint NOT NULL,
  leased     bigint NOT NULL,
  dead       bigint NOT NULL,
  archived   bigint NOT NULL,
  n_pushed   bigint NOT NULL,
  n_leased   bigint NOT NULL,
  n_acked    bigint NOT NULL,
  n_nacked   bigint NOT NULL,
  n_lapsed   bigint NOT NULL,
  n_dead     bigint NOT NULL,
  n_expired  bigint NOT NULL,
  n_redriven bigint NOT NULL,
  n_removed  bigint NOT NULL,
  PRIMARY KEY (queue_id, minute)
);

-- How long messages waited (kind 0) and were worked on (kind 1), as counts per bucket in JSON, one row a writer.
CREATE TABLE penstock.latency (
  queue_id bigint NOT NULL,
  minute   bigint NOT NULL,
  kind     bigint NOT NULL,
  writer   bigint NOT NULL,
  counts   text NOT NULL,
  PRIMARY KEY (queue_id, minute, kind, writer)
);

-- Queues of the tree that may hold messages, so that a namespace pop meets few empty ones.
CREATE TABLE penstock.busy (
  name     text COLLATE "C" PRIMARY KEY,
  queue_id bigint NOT NULL
);

CREATE TABLE penstock.bucket (
  queue_id  bigint PRIMARY KEY,
  tokens    double precision NOT NULL,
  tokens_at bigint NOT NULL
);

CREATE TABLE penstock.ready (
  queue_id        bigint NOT NULL,
  rank            bigint NOT NULL,   -- minus the priority, so that one ascending range is the order
  available_at    bigint NOT NULL,
  id              bigint NOT NULL,
  place           bigint NOT NULL,
  attempts        bigint NOT NULL,
  first_leased_at bigint,
  expires_at      bigint,
  PRIMARY KEY (queue_id, rank, available_at, id)
);
CREATE INDEX ready_ttl ON penstock.ready (queue_id, expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE penstock.scheduled (
  queue_id        bigint NOT NULL,
  available_at    bigint NOT NULL,
  id              bigint NOT NULL,
  rank            bigint NOT NULL,
  place           bigint NOT NULL,
  attempts        bigint NOT NULL,
  first_leased_at bigint,
  expires_at      bigint,
  PRIMARY KEY (queue_id, available_at, id)
);
CREATE INDEX scheduled_ttl ON penstock.scheduled (queue_id, expires_at) WHERE expires_at IS NOT NULL;

-- In the order in which leases lapse, and in no other: a token begins with the time that finds its row.
CREATE TABLE penstock.lease (
  queue_id        bigint NOT NULL,
  leased_until    bigint NOT NULL,
  id              bigint NOT NULL,
  place           bigint NOT NULL,
  token           bytea NOT NULL,
  leased_at       bigint NOT NULL,
  attempts        bigint NOT NULL,
  first_leased_at bigint NOT NULL,
  expires_at      bigint,
  from_dead       boolean NOT NULL DEFAULT false,
  extended        boolean NOT NULL DEFAULT false,
  worker          text,
  PRIMARY KEY (queue_id, leased_until, id)
);

-- Where the row of an extended lease is now; its token still tells the first time.
CREATE TABLE penstock.extension (
  id           bigint PRIMARY KEY,
  leased_until bigint NOT NULL
);

-- A dead letter that is leased keeps its row, out of the index, to come back to.
CREATE TABLE penstock.dead (
  id              bigint PRIMARY KEY,
  place           bigint NOT NULL,
  queue_id        bigint NOT NULL,
  died_at         bigint NOT NULL,
  attempts        bigint NOT NULL,
  first_leased_at bigint,
  ttl_left_ms     bigint,
  reason          text NOT NULL,
  error           text,
  leased          boolean NOT NULL DEFAULT false
);
CREATE INDEX dead_by_age ON penstock.dead (queue_id, died_at, id) WHERE NOT leased;

CREATE TABLE penstock.archive (
  id              bigint PRIMARY KEY,
  place           bigint NOT NULL,
  queue_id        bigint NOT NULL,
  archived_at     bigint NOT NULL,
  attempts        bigint NOT NULL,
  first_leased_at bigint,
  leased_at       bigint
);
CREATE INDEX archive_by_age ON penstock.archive (queue_id, archived_at, id);

CREATE TABLE penstock.failure (
  id      bigint NOT NULL,
  attempt bigint NOT NULL,
  at      bigint NOT NULL,
  error   text NOT NULL,
  PRIMARY KEY (id, at, attempt)
);

-- Idempotency keys outlive their messages. Space 0 is shared by all queues.
CREATE TABLE penstock.key (
  space      bigint NOT NULL,
  key        text COLLATE "C" NOT NULL,
  id         bigint NOT NULL,
  place      bigint NOT NULL,
  created_at bigint NOT NULL,
  expires_at bigint NOT NULL,
  check_at   bigint NOT NULL,      -- when the sweeper looks at it again
  PRIMARY KEY (space, key)
);
CREATE INDEX key_check ON penstock.key (check_at);

CREATE TABLE penstock.api_key (
  id         text PRIMARY KEY,
  queue_id   bigint NOT NULL,
  name       text NOT NULL,
  hash       bytea NOT NULL,
  rights     text NOT NULL,
  created_at bigint NOT NULL
);
CREATE INDEX api_key_queue ON penstock.api_key (queue_id);

CREATE TABLE penstock.setting (
  name  text PRIMARY KEY,
  value bigint NOT NULL
);

-- The time, for all servers alike. A session may move it, as tests do.
CREATE FUNCTION penstock.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(nullif(current_setting('penstock_clock.now_ms', true), '')::bigint,
                  floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

-- Takes `count` ids that follow each other and answers the first; currval is the last. The lock is held for no longer
-- than this call.
CREATE FUNCTION penstock.take_ids(count bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE first bigint;
BEGIN
  PERFORM pg_advisory_lock(1346720332, 'penstock.message_id'::regclass::integer);
  first := nextval('penstock.message_id');
  IF count > 1 THEN
    PERFORM setval('penstock.message_id', first + count - 1);
  END IF;
  PERFORM pg_advisory_unlock(1346720332, 'penstock.message_id'::regclass::integer);
  RETURN first;
END
$$;

-- Takes locks in the given order, until the transaction ends; a negative key is shared.
CREATE FUNCTION penstock.enter(keys bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE each bigint;
BEGIN
  FOREACH each IN ARRAY keys LOOP
    IF each < 0 THEN
      PERFORM pg_advisory_xact_lock_shared(-each);
    ELSE
      PERFORM pg_advisory_xact_lock(each);
    END IF;
  END LOOP;
END
$$;

-- Small and busy tables are cleaned after a number of changes, not after a share of their size.
ALTER TABLE penstock.message SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000,
                                  autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE penstock.lease SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
                                autovacuum_vacuum_cost_delay = 0);
ALTER TABLE penstock.counter SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
                                  autovacuum_vacuum_cost_delay = 0);
ALTER TABLE penstock.ready SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
                                autovacuum_vacuum_cost_delay = 0);
ALTER TABLE penstock.scheduled SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
                                    autovacuum_vacuum_cost_delay = 0);
