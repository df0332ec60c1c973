-- Leases of plain messages in their first delivery are ranges: one row for all that one request leased. Every message of
-- the queue's plain lane with an id from first_id to last_id is leased by that row, and count is their number. Ids of
-- other queues may lie between. All other leases have rows of their own.
--
-- The table of these is renamed: a process of an older version, which would not see the ranges, then gets an error that
-- tells it to open the store again, and there learns that it is too old.
ALTER TABLE penstock.lease RENAME TO single_lease;
DROP FUNCTION penstock.push_at_once(bigint, bigint, bigint, bigint, text, text, bigint, bigint, bigint[], text[], bytea[]);
DROP FUNCTION penstock.lease_at_once(bigint, bigint, bigint, text, text, bigint, bigint, boolean, bigint[], bigint[],
                                     bigint[], bigint[], text[]);
DROP FUNCTION penstock.ack_at_once(bigint, bigint, text, text, bigint[], bigint[], bytea[]);

CREATE TABLE penstock.lease_range (
  queue_id     bigint NOT NULL,
  leased_until bigint NOT NULL,
  first_id     bigint NOT NULL,
  last_id      bigint NOT NULL,
  count        bigint NOT NULL,
  token        bytea NOT NULL,
  leased_at    bigint NOT NULL,
  worker       text,
  PRIMARY KEY (queue_id, leased_until, first_id)
);
ALTER TABLE penstock.lease_range SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                                      autovacuum_vacuum_cost_delay = 0, fillfactor = 80);

-- Every leased message.
CREATE VIEW penstock.leased AS
  SELECT queue_id, leased_until, id, place, token, leased_at, attempts, first_leased_at, expires_at, from_dead, extended,
         worker
    FROM penstock.single_lease
  UNION ALL
  SELECT r.queue_id, r.leased_until, m.place & 17592186044415, m.place, r.token, r.leased_at, 1, r.leased_at, NULL, false,
         false, r.worker
    FROM penstock.lease_range r
    JOIN penstock.message m ON m.place BETWEEN (r.queue_id << 45) + r.first_id AND (r.queue_id << 45) + r.last_id;

-- In settled.ids a second number below zero is the end of a range that begins with the first.

-- Locks ranges in one order, so that two settles of several ranges cannot wait for each other.
CREATE FUNCTION penstock.lock_ranges(queue_ids bigint[], untils bigint[], firsts bigint[])
RETURNS void LANGUAGE sql VOLATILE AS $$
  SELECT 1 FROM (SELECT * FROM unnest(queue_ids, untils, firsts) AS i(queue_id, leased_until, first_id)
                  ORDER BY 1, 2, 3) i,
    LATERAL (SELECT 1 FROM penstock.lease_range r WHERE r.queue_id = i.queue_id AND r.leased_until = i.leased_until
                AND r.first_id = i.first_id FOR UPDATE) r
$$;

-- Ends leases of messages that are acknowledged, and deletes these. Each part is the number of messages to end in a range,
-- of which the highest id is given; spans are the places to delete, each from lo to hi. Raises PS001 if a range or a
-- message is not there any more: then the batch runs again and reads the leases.
CREATE FUNCTION penstock.finish_ranges(
  minute bigint, queue_ids bigint[], untils bigint[], firsts bigint[], highest bigint[], counts bigint[],
  tokens bytea[], ids text[], los bigint[], his bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  ended bigint;
  more  bigint;
  now   bigint := penstock.now_ms();
BEGIN
  IF cardinality(counts) > 1 THEN
    PERFORM penstock.lock_ranges(queue_ids, untils, firsts);
  END IF;
  WITH remembered AS (
    INSERT INTO penstock.settled (minute, queue_id, how, token, ids)
    SELECT finish_ranges.minute, i.queue_id, 0, i.token, i.ids::bigint[]
      FROM unnest(queue_ids, tokens, finish_ranges.ids) AS i(queue_id, token, ids))
  DELETE FROM penstock.lease_range r WHERE r.ctid = ANY (ARRAY(
    SELECT o.ctid FROM unnest(queue_ids, untils, firsts, highest, counts, tokens)
                    AS i(queue_id, leased_until, first_id, highest, count, token),
      LATERAL (SELECT o.ctid FROM penstock.lease_range o
        WHERE o.queue_id = i.queue_id AND o.leased_until = i.leased_until AND o.first_id = i.first_id
          AND o.last_id >= i.highest AND o.count = i.count AND o.token = i.token AND o.leased_until > now OFFSET 0) o));
  GET DIAGNOSTICS ended = ROW_COUNT;
  IF ended < cardinality(counts) THEN
    UPDATE penstock.lease_range r SET count = r.count - o.ended
      FROM unnest(queue_ids, untils, firsts, highest, counts, tokens)
             AS i(queue_id, leased_until, first_id, highest, count, token),
        LATERAL (SELECT o.ctid AS row, i.count AS ended FROM penstock.lease_range o
          WHERE o.queue_id = i.queue_id AND o.leased_until = i.leased_until AND o.first_id = i.first_id
            AND o.last_id >= i.highest AND o.count > i.count AND o.token = i.token AND o.leased_until > now OFFSET 0) o
     WHERE r.ctid = o.row;
    GET DIAGNOSTICS more = ROW_COUNT;
    IF ended + more <> cardinality(counts) THEN
      RAISE EXCEPTION 'a lease is not as assumed' USING ERRCODE = 'PS001';
    END IF;
  END IF;
  DELETE FROM penstock.message m WHERE m.ctid = ANY (ARRAY(
    SELECT o.ctid FROM unnest(los, his) AS i(lo, hi),
      LATERAL (SELECT o.ctid FROM penstock.message o WHERE o.place BETWEEN i.lo AND i.hi OFFSET 0) o));
  GET DIAGNOSTICS ended = ROW_COUNT;
  IF ended <> (SELECT sum(n) FROM unnest(counts) AS n) THEN
    RAISE EXCEPTION 'a leased message is not as assumed' USING ERRCODE = 'PS001';
  END IF;
END
$$;

-- Replaces ranges by the parts of them that remain leased, given by their ids; the messages between stay, in another
-- state. Raises PS001 if a range has changed meanwhile.
CREATE FUNCTION penstock.split_ranges(
  queue_ids bigint[], untils bigint[], firsts bigint[], lasts bigint[], counts bigint[], tokens bytea[],
  part_of bigint[], part_first bigint[], part_last bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE ended bigint;
BEGIN
  IF cardinality(counts) > 1 THEN
    PERFORM penstock.lock_ranges(queue_ids, untils, firsts);
  END IF;
  WITH gone AS (
    DELETE FROM penstock.lease_range r
     USING unnest(queue_ids, untils, firsts, lasts, counts, tokens) WITH ORDINALITY
             AS i(queue_id, leased_until, first_id, last_id, count, token, number),
       LATERAL (SELECT o.ctid AS row, i.number FROM penstock.lease_range o
         WHERE o.queue_id = i.queue_id AND o.leased_until = i.leased_until AND o.first_id = i.first_id
           AND o.last_id = i.last_id AND o.count = i.count AND o.token = i.token OFFSET 0) o
     WHERE r.ctid = o.row
    RETURNING o.number, r.queue_id, r.leased_until, r.token, r.leased_at, r.worker),
  kept AS (
    INSERT INTO penstock.lease_range (queue_id, leased_until, first_id, last_id, count, token, leased_at, worker)
    SELECT g.queue_id, g.leased_until, p.first_id, p.last_id, m.count, g.token, g.leased_at, g.worker
      FROM gone g JOIN unnest(part_of, part_first, part_last) AS p(number, first_id, last_id) ON p.number = g.number,
        LATERAL (SELECT count(*) AS count FROM penstock.message m
          WHERE m.place BETWEEN (g.queue_id << 45) + p.first_id AND (g.queue_id << 45) + p.last_id) m
     WHERE m.count > 0)
  SELECT count(*) INTO ended FROM gone;
  IF ended <> cardinality(counts) THEN
    RAISE EXCEPTION 'a lease is not as assumed' USING ERRCODE = 'PS001';
  END IF;
END
$$;

-- Takes messages out of ranges, from the first on, up to a number and an id: whole ranges, and the first part of the last
-- one. Answers them. The ranges are locked before the messages are read, so that those which an ack deletes meanwhile
-- are not among them; ranges that others have locked are left out.
CREATE FUNCTION penstock.take_from_ranges(queue bigint, untils bigint[], firsts bigint[], up_to bigint, most bigint)
RETURNS TABLE (place bigint, leased_at bigint, created_at bigint, leased_until bigint, token bytea)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  locked tid[];
BEGIN
  SELECT array_agg(o.row) INTO locked
    FROM unnest(untils, firsts) AS k(leased_until, first_id),
      LATERAL (SELECT r.ctid AS row FROM penstock.lease_range r WHERE r.queue_id = queue
                  AND r.leased_until = k.leased_until AND r.first_id = k.first_id FOR UPDATE SKIP LOCKED) o;
  RETURN QUERY
  WITH ranges AS MATERIALIZED (
    SELECT r.*, (sum(r.held) OVER (ORDER BY r.leased_until, r.first_id) - r.held)::bigint AS before
      FROM (SELECT r.ctid AS row, r.*,
                   CASE WHEN r.last_id <= up_to THEN r.count
                        ELSE (SELECT count(*) FROM penstock.message m
                               WHERE m.place BETWEEN (queue << 45) + r.first_id AND (queue << 45) + up_to) END AS held
              FROM penstock.lease_range r WHERE r.ctid = ANY (locked)) r),
  taken AS MATERIALIZED (
    SELECT l.row, l.count, l.leased_until, l.token, l.leased_at, m.place, m.created_at
      FROM ranges l, LATERAL (SELECT m.place, m.created_at FROM penstock.message m
        WHERE m.place BETWEEN (queue << 45) + l.first_id AND (queue << 45) + least(l.last_id, up_to)
        ORDER BY m.place LIMIT greatest(most - l.before, 0)) m),
  parts AS MATERIALIZED (
    SELECT t.row, t.count - count(*) AS left, max(t.place) & 17592186044415 AS last_taken
      FROM taken t GROUP BY t.row, t.count),
  gone AS (
    DELETE FROM penstock.lease_range r USING parts p WHERE r.ctid = p.row AND p.left <= 0),
  cut AS (
    UPDATE penstock.lease_range r SET first_id = p.last_taken + 1, count = p.left FROM parts p
     WHERE r.ctid = p.row AND p.left > 0)
  SELECT t.place, t.leased_at, t.created_at, t.leased_until, t.token FROM taken t;
END
$$;

-- Takes single messages out of ranges, which are deleted then. Answers their ids.
CREATE FUNCTION penstock.remove_from_ranges(queue bigint, wanted bigint[])
RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  found bigint[];
BEGIN
  PERFORM 1 FROM penstock.lease_range r
    WHERE r.queue_id = queue AND EXISTS (SELECT 1 FROM unnest(wanted) AS i WHERE i BETWEEN r.first_id AND r.last_id)
    ORDER BY r.leased_until, r.first_id FOR UPDATE;
  WITH ended AS MATERIALIZED (
    SELECT r.leased_until, r.first_id, i.id
      FROM penstock.lease_range r, unnest(wanted) AS i(id)
     WHERE r.queue_id = queue AND i.id BETWEEN r.first_id AND r.last_id
       AND EXISTS (SELECT 1 FROM penstock.message m WHERE m.place = (queue << 45) + i.id)),
  counted AS (
    UPDATE penstock.lease_range r SET count = r.count - e.number
      FROM (SELECT leased_until, first_id, count(*) AS number FROM ended GROUP BY leased_until, first_id) e
     WHERE r.queue_id = queue AND r.leased_until = e.leased_until AND r.first_id = e.first_id)
  SELECT array_agg(e.id) INTO found FROM ended e;
  IF found IS NOT NULL THEN
    DELETE FROM penstock.lease_range r WHERE r.queue_id = queue AND r.count <= 0;
  END IF;
  RETURN QUERY SELECT unnest(found);
END
$$;
