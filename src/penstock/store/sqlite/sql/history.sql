-- :totals_before
SELECT minute, ready, scheduled, leased, dead, archived,
       n_pushed, n_leased, n_acked, n_nacked, n_lapsed, n_dead, n_expired, n_redriven, n_removed
  FROM penstock_minute WHERE queue_id = ? AND minute < ? ORDER BY minute DESC LIMIT 1
