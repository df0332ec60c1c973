-- Logs that users append to. Nothing here is updated by an append: where a stream ends is told by its newest batch.
CREATE TABLE penstock.stream (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name          text COLLATE "C" NOT NULL UNIQUE,   -- of one that was dropped and is being removed: ~ and its id
  options       text NOT NULL,
  segment_bytes bigint NOT NULL,
  record_bytes  bigint NOT NULL,
  created_at    bigint NOT NULL,
  first         bigint NOT NULL DEFAULT 0,   -- the first offset that is kept
  trimmed_to_ms bigint NOT NULL DEFAULT 0    -- the time of the newest record that was removed
);

-- Records of one append, or of several that were joined, as the log encodes them, back to back.
CREATE TABLE penstock.batch (
  stream_id bigint NOT NULL,
  last      bigint NOT NULL,                 -- the offset of its last record
  records   bigint NOT NULL,
  time_ms   bigint NOT NULL,
  segment   bigint NOT NULL,                 -- the first offset of its segment, and how far this fills that
  filled    bigint NOT NULL,
  mark      bigint NOT NULL,                 -- drawn by who appended, to know it again
  sum       bigint NOT NULL,                 -- CRC-32 of all of the data
  ends      bytea NOT NULL,                  -- where each record ends: u32, little-endian
  data      bytea NOT NULL,
  PRIMARY KEY (stream_id, last)
);
-- Bytes of users are rarely worth compressing here, and reading part of a value is possible only without.
ALTER TABLE penstock.batch ALTER ends SET STORAGE EXTERNAL, ALTER data SET STORAGE EXTERNAL;

-- Segments that nothing is added to any more: what retention removes.
CREATE TABLE penstock.segment (
  stream_id bigint NOT NULL,
  first     bigint NOT NULL,
  last      bigint NOT NULL,
  bytes     bigint NOT NULL,
  time_ms   bigint NOT NULL,                 -- of its newest record
  PRIMARY KEY (stream_id, first)
);

CREATE TABLE penstock.consumer (
  stream_id  bigint NOT NULL REFERENCES penstock.stream ON DELETE CASCADE,
  name       text COLLATE "C" NOT NULL,
  kind       text NOT NULL,
  position   bigint,                         -- the last record processed; NULL before the first
  seen_at    bigint NOT NULL,
  created_at bigint NOT NULL,
  PRIMARY KEY (stream_id, name)
) WITH (fillfactor = 50);

CREATE VIEW penstock.stream_state AS
SELECT s.*, coalesce(greatest(h.last + 1, s.first), s.first) AS next, coalesce(h.time_ms, s.trimmed_to_ms) AS time_ms,
       CASE WHEN h.last < s.first OR x.first IS NOT NULL THEN NULL ELSE h.segment END AS active,
       CASE WHEN h.last < s.first OR x.first IS NOT NULL THEN 0 ELSE coalesce(h.filled, 0) END AS filled
  FROM penstock.stream s
  LEFT JOIN LATERAL (SELECT b.last, b.time_ms, b.segment, b.filled FROM penstock.batch b
                      WHERE b.stream_id = s.id ORDER BY b.last DESC LIMIT 1) h ON true
  LEFT JOIN penstock.segment x ON x.stream_id = s.id AND x.first = h.segment;

-- Appends batches under the stream's lock, which is held until the commit is done: offsets are dense, and in the order
-- of commits. The time in the records was chosen by who sends them; `refused` says why nothing was appended:
-- 1 there is no such stream, 2 that time is not after the last record's (`at` is one that is), 3 a record is too large.
CREATE FUNCTION penstock.append(
  lock_key bigint, to_stream bigint, sent_ms bigint, largest bigint, drawn bigint, counts bigint[], sums bigint[],
  all_ends bytea[], datas bytea[], OUT refused bigint, OUT first bigint, OUT at bigint, OUT now_ms bigint
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  state penstock.stream_state;
  place bigint;
  part bigint;
  size bigint;
BEGIN
  PERFORM pg_advisory_xact_lock(lock_key);
  now_ms := penstock.now_ms();
  SELECT s.* INTO state FROM penstock.stream_state s WHERE s.id = to_stream AND s.name < '~';
  IF NOT FOUND THEN refused := 1; RETURN; END IF;
  IF largest > state.record_bytes THEN refused := 3; first := state.record_bytes; RETURN; END IF;
  at := greatest(now_ms, state.time_ms);
  IF sent_ms < state.time_ms OR sent_ms > at + 5000 THEN refused := 2; RETURN; END IF;
  refused := 0;
  first := state.next;
  at := sent_ms;
  place := state.next;
  FOR part IN 1 .. cardinality(datas) LOOP
    size := length(datas[part]);
    IF state.active IS NOT NULL AND state.filled + size > state.segment_bytes THEN
      INSERT INTO penstock.segment VALUES (to_stream, state.active, place - 1, state.filled, state.time_ms);
      state.active := NULL;
    END IF;
    IF state.active IS NULL THEN
      state.active := place;
      state.filled := 0;
    END IF;
    state.filled := state.filled + size;
    state.time_ms := sent_ms;
    place := place + counts[part];
    INSERT INTO penstock.batch VALUES (to_stream, place - 1, counts[part], sent_ms, state.active, state.filled, drawn,
                                       sums[part], all_ends[part], datas[part]);
  END LOOP;
END
$$;

-- Moves a consumer to an offset, or only notes that it is there; makes it if it is unknown. Refused: 1 no such stream,
-- 2 nothing is there yet, 3 that is back, 4 there are too many already.
CREATE FUNCTION penstock.move_consumer(
  of_stream text, consumer text, wanted bigint, forced boolean, new_kind text, consumers_max bigint,
  OUT refused bigint, OUT first bigint, OUT next bigint, OUT kind text, OUT reached bigint, OUT seen_at bigint,
  OUT created_at bigint
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  state penstock.stream_state;
  now_ms bigint := penstock.now_ms();
BEGIN
  SELECT s.* INTO state FROM penstock.stream_state s WHERE s.name = of_stream;
  IF NOT FOUND THEN refused := 1; RETURN; END IF;
  first := state.first;
  next := state.next;
  IF wanted >= state.next THEN refused := 2; RETURN; END IF;
  SELECT c.kind, c.position, c.created_at INTO kind, reached, created_at FROM penstock.consumer c
   WHERE c.stream_id = state.id AND c.name = consumer FOR UPDATE;
  IF NOT FOUND THEN
    IF (SELECT count(*) FROM penstock.consumer c WHERE c.stream_id = state.id) >= consumers_max THEN
      refused := 4; RETURN;
    END IF;
    INSERT INTO penstock.consumer VALUES (state.id, consumer, new_kind, NULL, now_ms, now_ms) ON CONFLICT DO NOTHING;
    SELECT c.kind, c.position, c.created_at INTO kind, reached, created_at FROM penstock.consumer c
     WHERE c.stream_id = state.id AND c.name = consumer FOR UPDATE;
  END IF;
  IF wanted < coalesce(reached, -1) AND NOT forced THEN refused := 3; RETURN; END IF;
  IF wanted IS NOT NULL THEN reached := nullif(wanted, -1); END IF;
  seen_at := now_ms;
  UPDATE penstock.consumer c SET position = reached, seen_at = now_ms WHERE c.stream_id = state.id AND c.name = consumer;
  refused := 0;
END
$$;

ALTER TABLE penstock.batch SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000,
                                autovacuum_vacuum_cost_delay = 1);
ALTER TABLE penstock.consumer SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
                                   autovacuum_vacuum_cost_delay = 0);
