-- :lease_at
SELECT id, place, attempts, first_leased_at, leased_at, expires_at, from_dead, extended
  FROM penstock_single_lease WHERE queue_id = ? AND leased_until = ? AND id = ? AND token = ?

-- :end_lease
DELETE FROM penstock_single_lease WHERE queue_id = ? AND leased_until = ? AND id = ?

-- :end_fresh
DELETE FROM penstock_single_lease WHERE queue_id = ? AND leased_until = ? AND id = ? AND token = ? AND NOT extended

-- :end_fresh_range
DELETE FROM penstock_single_lease
 WHERE queue_id = ? AND leased_until = ? AND id BETWEEN ? AND ? AND token = ? AND NOT extended

-- :end_many
DELETE FROM penstock_single_lease
 WHERE queue_id = ? AND leased_until = ? AND id IN (SELECT value FROM json_each(?)) AND token = ?
RETURNING id, place, attempts, first_leased_at, leased_at, expires_at, from_dead, extended

-- :end_range
DELETE FROM penstock_single_lease WHERE queue_id = ? AND leased_until = ? AND id BETWEEN ? AND ? AND token = ?
RETURNING id, place, attempts, first_leased_at, leased_at, expires_at, from_dead, extended

-- :current
SELECT leased_until, token FROM penstock_single_lease WHERE queue_id = ? AND id = ?

-- :extension
SELECT leased_until FROM penstock_extension WHERE id = ?

-- :extend
UPDATE penstock_single_lease SET leased_until = ?, extended = 1
 WHERE queue_id = ? AND leased_until = ? AND id = ? AND token = ?

-- :place_of
SELECT place FROM penstock_single_lease WHERE queue_id = ? AND leased_until = ? AND id = ?

-- :note_extension
INSERT OR REPLACE INTO penstock_extension (id, leased_until, extended_at) VALUES (?, ?, ?)

-- :forget_extension
DELETE FROM penstock_extension WHERE id = ?

-- :is_known
SELECT 1 FROM penstock_message m WHERE m.place IN (?, ?)
   AND NOT EXISTS (SELECT 1 FROM penstock_archive a WHERE a.id = ?)

-- :delete
DELETE FROM penstock_message WHERE place = ?

-- :delete_range
DELETE FROM penstock_message WHERE place BETWEEN ? AND ?

-- :delete_places
DELETE FROM penstock_message WHERE place IN (SELECT value FROM json_each(?))

-- :archive
INSERT INTO penstock_archive (id, place, queue_id, archived_at, attempts, first_leased_at, leased_at)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- :archive_plain
INSERT INTO penstock_archive (queue_id, archived_at, leased_at, first_leased_at, id, place, attempts)
SELECT ?, ?, ?, ?, place & ID_MAX, place, 1 FROM penstock_message WHERE place BETWEEN ? AND ?

-- :forget_dead
DELETE FROM penstock_dead WHERE id = ?

-- :return_dead
UPDATE penstock_dead SET leased = 0 WHERE id = ?

-- :forget_failures
DELETE FROM penstock_failure WHERE id = ?

-- :remember_failure
INSERT OR REPLACE INTO penstock_failure (id, attempt, at, error, traceback) VALUES (?, ?, ?, ?, ?)

-- :trim_failures
DELETE FROM penstock_failure WHERE id = ?1 AND (at, attempt) NOT IN
  (SELECT at, attempt FROM penstock_failure WHERE id = ?1 ORDER BY at DESC, attempt DESC LIMIT ?2)

-- :die
INSERT INTO penstock_dead (id, place, queue_id, died_at, attempts, first_leased_at, ttl_left_ms, reason, error)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- :move
UPDATE penstock_message SET available_at = ? WHERE place = ?

-- :schedule
INSERT INTO penstock_scheduled (available_at, attempts, first_leased_at, expires_at, queue_id, id, place, rank)
SELECT ?, ?, ?, ?, ?, ?, place, -priority FROM penstock_message WHERE place = ?

-- :file
INSERT INTO penstock_ready (attempts, first_leased_at, expires_at, queue_id, id, place, rank, available_at)
SELECT ?, ?, ?, ?, ?, place, -priority, ifnull(available_at, created_at) FROM penstock_message WHERE place = ?
