-- :first_due
SELECT available_at FROM penstock_scheduled WHERE queue_id = ? ORDER BY available_at LIMIT 1

-- :due
SELECT available_at, id FROM penstock_scheduled
 WHERE queue_id = ? AND available_at <= ? ORDER BY available_at, id LIMIT ?

-- :file_due
INSERT INTO penstock_ready (queue_id, rank, available_at, id, place, attempts, first_leased_at, expires_at)
SELECT queue_id, rank, available_at, id, place, attempts, first_leased_at, expires_at
  FROM penstock_scheduled WHERE queue_id = ? AND (available_at, id) <= (?, ?)

-- :unschedule_due
DELETE FROM penstock_scheduled WHERE queue_id = ? AND (available_at, id) <= (?, ?)

-- :first_lapse
SELECT min(leased_until) FROM (
  SELECT * FROM (SELECT leased_until FROM penstock_single_lease WHERE queue_id = ?1 ORDER BY leased_until LIMIT 1)
  UNION ALL
  SELECT * FROM (SELECT leased_until FROM penstock_lease_range WHERE queue_id = ?1 ORDER BY leased_until LIMIT 1))

-- :lapsed
SELECT leased_until, id, place, attempts, first_leased_at, leased_at, expires_at, from_dead, extended
  FROM penstock_single_lease WHERE queue_id = ? AND leased_until <= ? ORDER BY leased_until, id LIMIT ?

-- :end_lapsed
DELETE FROM penstock_single_lease WHERE queue_id = ? AND (leased_until, id) <= (?, ?)

-- :first_expiry
SELECT min(expires_at) FROM (
  SELECT * FROM (SELECT expires_at FROM penstock_ready
                  WHERE queue_id = ?1 AND expires_at IS NOT NULL ORDER BY expires_at LIMIT 1)
  UNION ALL
  SELECT * FROM (SELECT expires_at FROM penstock_scheduled
                  WHERE queue_id = ?1 AND expires_at IS NOT NULL ORDER BY expires_at LIMIT 1))

-- :expired_ready
SELECT rank, available_at, id, place, attempts, first_leased_at FROM penstock_ready
 WHERE queue_id = ? AND expires_at IS NOT NULL AND expires_at <= ? ORDER BY expires_at LIMIT ?

-- :expired_scheduled
SELECT available_at, id, place, attempts, first_leased_at FROM penstock_scheduled
 WHERE queue_id = ? AND expires_at IS NOT NULL AND expires_at <= ? ORDER BY expires_at LIMIT ?

-- :drop_ready
DELETE FROM penstock_ready WHERE queue_id = ? AND rank = ? AND available_at = ? AND id = ?

-- :drop_scheduled
DELETE FROM penstock_scheduled WHERE queue_id = ? AND available_at = ? AND id = ?

-- :far
-- A range counts as one lease, that of its first message.
SELECT * FROM (SELECT l.leased_until, l.id, ifnull(e.extended_at, l.leased_at)
                 FROM penstock_single_lease l LEFT JOIN penstock_extension e ON l.extended AND e.id = l.id
                WHERE l.queue_id = ?1 AND (l.leased_until, l.id) > (?2, ?3) ORDER BY l.leased_until, l.id LIMIT ?4)
UNION ALL
SELECT * FROM (SELECT leased_until, first_id, leased_at FROM penstock_lease_range
                WHERE queue_id = ?1 AND (leased_until, first_id) > (?2, ?3) ORDER BY leased_until, first_id LIMIT ?4)
 ORDER BY 1, 2 LIMIT ?4

-- :lease
SELECT leased_until, id, place, attempts, first_leased_at, leased_at, expires_at, from_dead, extended
  FROM penstock_single_lease WHERE queue_id = ? AND leased_until = ? AND id = ?
