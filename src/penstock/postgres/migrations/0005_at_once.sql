-- The common case of the three verbs, each one call and one round trip: the queue is as its caller knows it, there is no
-- journal, and nothing that time moves is in the way. Else nothing is done, nothing is answered, and the caller takes the
-- long way. Each statement in here sees what was committed before it began, so after the locks were waited for; and each
-- costs more than what it does, so they are few.

-- What became of a push whose answer was lost. The mark is the caller's; it begins with the time. Whoever asks leaves one
-- himself: should the push arrive after all, it fails.
CREATE TABLE penstock.mark (
  mark     bigint PRIMARY KEY,
  first_id bigint,                 -- NULL: it was asked for before the push came
  at       bigint
);

-- Answers the first id and the time.
CREATE FUNCTION penstock.push_at_once(
  alive bigint, pushing bigint, mark bigint, queue_id bigint, queue_name text, known text, due_floor bigint,
  lapse_floor bigint, contents bigint[], headers text[], payloads bytea[])
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
  number bigint := cardinality(payloads);
  now    bigint;
  newest bigint;
  before bigint;
  locked boolean;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(alive), pg_advisory_xact_lock(pushing);
  now := penstock.now_ms();
  SELECT (SELECT c.newest_at FROM penstock.counter c WHERE c.queue_id = push_at_once.queue_id
             AND c.newest_at IS NOT NULL ORDER BY c.newest_at DESC LIMIT 1)
    INTO newest FROM penstock.queue q WHERE q.name = queue_name AND q.id = push_at_once.queue_id AND q.options = known
     AND NOT EXISTS (SELECT 1 FROM penstock.setting s WHERE s.name = 'journal' AND s.value > 0)
     AND NOT EXISTS (SELECT 1 FROM penstock.scheduled s WHERE s.queue_id = push_at_once.queue_id
                        AND s.available_at > due_floor AND s.available_at <= now)
     AND NOT EXISTS (SELECT 1 FROM penstock.lease l WHERE l.queue_id = push_at_once.queue_id
                        AND l.leased_until > lapse_floor AND l.leased_until <= now)
     AND NOT EXISTS (SELECT 1 FROM penstock.ready r WHERE r.queue_id = push_at_once.queue_id
                        AND r.expires_at IS NOT NULL AND r.expires_at <= now)
     AND NOT EXISTS (SELECT 1 FROM penstock.scheduled s WHERE s.queue_id = push_at_once.queue_id
                        AND s.expires_at IS NOT NULL AND s.expires_at <= now);
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  -- A clock that steps back must not let a later push overtake an earlier one.
  newest := greatest(newest, now);
  -- As take_ids does, in expressions, which are cheaper than statements.
  locked := pg_advisory_lock(1346720332, 'penstock.message_id'::regclass::integer) IS NULL;
  before := nextval('penstock.message_id') - 1;
  IF number > 1 THEN
    before := setval('penstock.message_id', before + number) - number;
  END IF;
  locked := pg_advisory_unlock(1346720332, 'penstock.message_id'::regclass::integer);
  WITH counted AS (
    INSERT INTO penstock.counter (minute, queue_id, newest_at, ready, n_pushed)
    VALUES (now / 60000, queue_id, newest, number, number)),
  marked AS (
    INSERT INTO penstock.mark VALUES (mark, before + 1, now))
  INSERT INTO penstock.message (place, created_at, available_at, priority, content, headers, payload)
  SELECT (queue_id << 45) + before + r.n, now, nullif(newest, now), 0, coalesce(r.content, 0), r.headers, r.payload
    FROM unnest(payloads, contents, headers) WITH ORDINALITY AS r(payload, content, headers, n);
  IF strpos(queue_name, '/') > 0 THEN
    INSERT INTO penstock.busy (queue_id, name) VALUES (queue_id, queue_name) ON CONFLICT DO NOTHING;
  END IF;
  RETURN ARRAY[before + 1, now];
END
$$;

-- `slots`: for each message that is wanted, whose it is, of those who share the call; of them `lasting`, the lease's
-- length, `high` and `low`, the chance in their token, and `workers`. A last row without a place: there were not enough.
-- Its time is when there may be more; with `patient`, nobody asks.
CREATE FUNCTION penstock.lease_at_once(
  alive bigint, leasing bigint, queue_id bigint, queue_name text, known text, due_floor bigint, lapse_floor bigint,
  patient boolean, slots bigint[], lasting bigint[], high bigint[], low bigint[], workers text[])
RETURNS TABLE (now bigint, place bigint, created_at bigint, priority integer, content smallint, key text, headers text,
               payload bytea)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  moment bigint;
  wanted bigint := cardinality(slots);
  given  bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true), pg_advisory_xact_lock_shared(alive),
          pg_advisory_xact_lock(leasing);
  moment := penstock.now_ms();
  PERFORM 1 FROM penstock.queue q
    WHERE q.name = queue_name AND q.id = lease_at_once.queue_id AND q.options = known AND NOT q.paused
      AND NOT EXISTS (SELECT 1 FROM penstock.setting s WHERE s.name = 'journal' AND s.value > 0)
      AND NOT EXISTS (SELECT 1 FROM penstock.ready r WHERE r.queue_id = lease_at_once.queue_id)
      AND NOT EXISTS (SELECT 1 FROM penstock.scheduled s WHERE s.queue_id = lease_at_once.queue_id
                         AND s.available_at > due_floor AND s.available_at <= moment)
      AND NOT EXISTS (SELECT 1 FROM penstock.lease l WHERE l.queue_id = lease_at_once.queue_id
                         AND l.leased_until > lapse_floor AND l.leased_until <= moment)
      AND NOT EXISTS (SELECT 1 FROM penstock.scheduled s WHERE s.queue_id = lease_at_once.queue_id
                         AND s.expires_at IS NOT NULL AND s.expires_at <= moment);
  IF NOT FOUND THEN
    RETURN;
  END IF;
  RETURN QUERY
  WITH head AS MATERIALIZED (
    SELECT m.*, slots[row_number() OVER ()] AS slot FROM (
      SELECT * FROM penstock.message m
       WHERE m.place > (SELECT c.cursor FROM penstock.counter c WHERE c.queue_id = lease_at_once.queue_id
                           AND c.cursor IS NOT NULL ORDER BY c.cursor DESC LIMIT 1)
         AND m.place < (lease_at_once.queue_id * 2 + 1) << 44 ORDER BY m.place LIMIT wanted) m),
  leased AS (
    INSERT INTO penstock.lease (queue_id, leased_until, id, place, token, leased_at, attempts, first_leased_at, worker)
    SELECT lease_at_once.queue_id, moment + lasting[h.slot], h.place & 17592186044415, h.place,
           int8send((moment + lasting[h.slot]) << 16 | high[h.slot]) || int8send(low[h.slot]), moment, 1, moment,
           workers[h.slot]
      FROM head h),
  counted AS (
    INSERT INTO penstock.counter (minute, queue_id, cursor, ready, leased, n_leased)
    SELECT moment / 60000, lease_at_once.queue_id, max(h.place), -count(*), count(*), count(*) FROM head h
    HAVING count(*) > 0)
  SELECT moment, h.place, h.created_at, h.priority, h.content, h.key, h.headers, h.payload FROM head h;
  GET DIAGNOSTICS given = ROW_COUNT;
  IF given < wanted THEN
    now := moment;
    place := NULL;
    created_at := CASE WHEN patient THEN NULL ELSE least(
      (SELECT s.available_at FROM penstock.scheduled s WHERE s.queue_id = lease_at_once.queue_id
          AND s.available_at > due_floor ORDER BY s.available_at LIMIT 1),
      (SELECT l.leased_until FROM penstock.lease l WHERE l.queue_id = lease_at_once.queue_id
          AND l.leased_until > lapse_floor ORDER BY l.leased_until LIMIT 1)) END;
    RETURN NEXT;
  END IF;
END
$$;

-- Answers the time, how many leases were ended, which, since when each was held, and when their messages were pushed.
-- The rows are found one by one, each by its token: the planner, asked to join, may rather read all leases there are.
CREATE FUNCTION penstock.ack_at_once(
  alive bigint, queue_id bigint, queue_name text, known text, untils bigint[], ids bigint[], tokens bytea[])
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  now      bigint;
  ended    bigint[];
  since    bigint[];
  pushed   bigint[];
  failed   bigint[];
  moved    bigint[];
  dead     bigint[];
BEGIN
  PERFORM pg_advisory_xact_lock_shared(alive);
  PERFORM 1 FROM penstock.queue q WHERE q.name = queue_name AND q.id = ack_at_once.queue_id AND q.options = known
     AND NOT EXISTS (SELECT 1 FROM penstock.setting s WHERE s.name = 'journal' AND s.value > 0);
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  now := penstock.now_ms();
  WITH gone AS (
    DELETE FROM penstock.lease l WHERE l.ctid = ANY (ARRAY(
      SELECT o.ctid FROM unnest(untils, ids, tokens) AS i(leased_until, id, token), LATERAL (
        SELECT o.ctid FROM penstock.lease o
         WHERE o.queue_id = ack_at_once.queue_id AND o.id = i.id AND o.token = i.token AND o.leased_until > now
           AND o.leased_until = coalesce((SELECT e.leased_until FROM penstock.extension e WHERE e.id = i.id),
                                         i.leased_until) OFFSET 0) o))
    RETURNING l.id, l.place, l.leased_at, l.attempts, l.from_dead, l.extended),
  finished AS (
    DELETE FROM penstock.message m WHERE m.place = ANY (ARRAY(SELECT g.place FROM gone g)) RETURNING m.created_at),
  counted AS (
    INSERT INTO penstock.counter (minute, queue_id, leased, n_acked)
    SELECT now / 60000, ack_at_once.queue_id, -count(*), count(*) FROM gone HAVING count(*) > 0)
  SELECT array_agg(g.id), array_agg(g.leased_at), (SELECT array_agg(f.created_at) FROM finished f),
         array_agg(g.id) FILTER (WHERE g.attempts > 1 OR g.from_dead), array_agg(g.id) FILTER (WHERE g.extended),
         array_agg(g.id) FILTER (WHERE g.from_dead)
    INTO ended, since, pushed, failed, moved, dead FROM gone g;
  IF failed IS NOT NULL THEN
    DELETE FROM penstock.failure f WHERE f.id = ANY (failed);
  END IF;
  IF moved IS NOT NULL THEN
    DELETE FROM penstock.extension e WHERE e.id = ANY (moved);
  END IF;
  IF dead IS NOT NULL THEN
    DELETE FROM penstock.dead d WHERE d.id = ANY (dead);
  END IF;
  RETURN ARRAY[now, coalesce(cardinality(ended), 0)] || ended || since || pushed;
END
$$;
