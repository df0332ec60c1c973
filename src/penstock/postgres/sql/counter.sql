-- :sums
SELECT coalesce(sum(ready), 0)::bigint, coalesce(sum(scheduled), 0)::bigint, coalesce(sum(leased), 0)::bigint,
       coalesce(sum(dead), 0)::bigint, coalesce(sum(archived), 0)::bigint, coalesce(sum(n_pushed), 0)::bigint,
       coalesce(sum(n_leased), 0)::bigint, coalesce(sum(n_acked), 0)::bigint, coalesce(sum(n_nacked), 0)::bigint,
       coalesce(sum(n_lapsed), 0)::bigint, coalesce(sum(n_dead), 0)::bigint, coalesce(sum(n_expired), 0)::bigint,
       coalesce(sum(n_redriven), 0)::bigint, coalesce(sum(n_removed), 0)::bigint
  FROM penstock.counter WHERE queue_id = $1::bigint

-- :fold
-- Replaces the rows of a queue with one row. Rows added concurrently do not conflict, because the sum does not change.
WITH taken AS (
  DELETE FROM penstock.counter WHERE queue_id = ANY($1::bigint[]) RETURNING *),
rolled AS (
  INSERT INTO penstock.minute
  SELECT queue_id, minute, sum(ready), sum(scheduled), sum(leased), sum(dead), sum(archived), sum(n_pushed),
         sum(n_leased), sum(n_acked), sum(n_nacked), sum(n_lapsed), sum(n_dead), sum(n_expired), sum(n_redriven),
         sum(n_removed)
    FROM taken WHERE minute IS NOT NULL GROUP BY queue_id, minute
  ON CONFLICT (queue_id, minute) DO UPDATE SET
    ready = minute.ready + excluded.ready, scheduled = minute.scheduled + excluded.scheduled,
    leased = minute.leased + excluded.leased, dead = minute.dead + excluded.dead,
    archived = minute.archived + excluded.archived, n_pushed = minute.n_pushed + excluded.n_pushed,
    n_leased = minute.n_leased + excluded.n_leased, n_acked = minute.n_acked + excluded.n_acked,
    n_nacked = minute.n_nacked + excluded.n_nacked, n_lapsed = minute.n_lapsed + excluded.n_lapsed,
    n_dead = minute.n_dead + excluded.n_dead, n_expired = minute.n_expired + excluded.n_expired,
    n_redriven = minute.n_redriven + excluded.n_redriven, n_removed = minute.n_removed + excluded.n_removed)
INSERT INTO penstock.counter
SELECT queue_id, NULL, max(cursor), max(newest_at), sum(ready), sum(scheduled), sum(leased), sum(dead), sum(archived),
       sum(n_pushed), sum(n_leased), sum(n_acked), sum(n_nacked), sum(n_lapsed), sum(n_dead), sum(n_expired),
       sum(n_redriven), sum(n_removed)
  FROM taken GROUP BY queue_id
