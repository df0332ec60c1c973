-- Which tokens settled which messages in the last minutes, and how, so that a repeated request gets the first one's answer.
-- One row for each token in each transaction.
CREATE TABLE penstock.settled (
  minute   bigint NOT NULL,
  queue_id bigint NOT NULL,
  how      bigint NOT NULL,        -- 0 acked, 1 released, 2 and more nacked: where to
  token    bytea NOT NULL,
  ids      bigint[] NOT NULL
);
CREATE INDEX settled_token ON penstock.settled (minute, token);

-- A lease that was extended in the future, before the clock was set back, is over.
ALTER TABLE penstock.extension ADD COLUMN extended_at bigint;

-- Answers the time, how many leases were ended, which, since when each was held, and when their messages were pushed.
-- The rows are found one by one, each by its token: the planner, asked to join, may rather read all leases there are.
CREATE OR REPLACE FUNCTION penstock.ack_at_once(
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
    RETURNING l.id, l.place, l.token, l.leased_at, l.attempts, l.from_dead, l.extended),
  finished AS (
    DELETE FROM penstock.message m WHERE m.place = ANY (ARRAY(SELECT g.place FROM gone g)) RETURNING m.created_at),
  remembered AS (
    INSERT INTO penstock.settled (minute, queue_id, how, token, ids)
    SELECT now / 60000, ack_at_once.queue_id, 0, g.token, array_agg(g.id) FROM gone g GROUP BY g.token),
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
