-- :changes
-- Groups by queue and step. Changes after the last step are included, because depths are computed back from the current
-- ones.
SELECT wanted.id, CASE WHEN h.minute < $4::bigint THEN (h.minute - $2::bigint) / $3::bigint ELSE $5::bigint END,
       sum(h.ready)::bigint, sum(h.scheduled)::bigint, sum(h.leased)::bigint, sum(h.dead)::bigint,
       sum(h.archived)::bigint, sum(h.n_pushed)::bigint, sum(h.n_leased)::bigint, sum(h.n_acked)::bigint,
       sum(h.n_nacked)::bigint, sum(h.n_lapsed)::bigint, sum(h.n_dead)::bigint, sum(h.n_expired)::bigint,
       sum(h.n_redriven)::bigint, sum(h.n_removed)::bigint
  FROM unnest($1::bigint[]) AS wanted(id)
 CROSS JOIN LATERAL (
   SELECT minute, ready, scheduled, leased, dead, archived, n_pushed, n_leased, n_acked, n_nacked, n_lapsed,
                     n_dead, n_expired, n_redriven, n_removed
     FROM penstock.minute WHERE queue_id = wanted.id AND minute >= $2::bigint
   UNION ALL
   SELECT minute, ready, scheduled, leased, dead, archived, n_pushed, n_leased, n_acked, n_nacked, n_lapsed,
                     n_dead, n_expired, n_redriven, n_removed
     FROM penstock.counter WHERE queue_id = wanted.id AND minute >= $2::bigint) h
 GROUP BY 1, 2
