-- A lease on the short way answers no more than 16 MiB of payloads, or its first message: what is beyond that stays.

-- `slots`: for each message that is wanted, whose it is, of those who share the call; of them `lasting`, the lease's
-- length, `high` and `low`, the chance in their token, and `workers`. A last row without a place: there were not enough.
-- Its time is when there may be more; with `patient`, nobody asks.
CREATE OR REPLACE FUNCTION penstock.lease_at_once(
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
    SELECT m.*, slots[m.number] AS slot FROM (
      SELECT m.*, row_number() OVER turn AS number, sum(octet_length(m.payload)) OVER turn AS bytes FROM (
        SELECT * FROM penstock.message m
         WHERE m.place > (SELECT c.cursor FROM penstock.counter c WHERE c.queue_id = lease_at_once.queue_id
                             AND c.cursor IS NOT NULL ORDER BY c.cursor DESC LIMIT 1)
           AND m.place < (lease_at_once.queue_id * 2 + 1) << 44 ORDER BY m.place LIMIT wanted) m
      WINDOW turn AS (ROWS UNBOUNDED PRECEDING)) m
     WHERE m.bytes - octet_length(m.payload) < 16777216),
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
