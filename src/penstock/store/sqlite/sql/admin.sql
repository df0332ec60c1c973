-- :add_queue
INSERT INTO penstock_queue (id, name, options, created_at) VALUES (?, ?, ?, ?)

-- :free_queue_id
-- Ids are not reused, so that rows that outlive a dropped queue never belong to another one. Once all ids were used, the
-- first free one is taken.
SELECT CASE WHEN used.id < QUEUE_ID_MAX THEN used.id + 1
            ELSE (SELECT min(q.id) + 1 FROM (SELECT 0 AS id UNION ALL SELECT id FROM penstock_queue) q
                   WHERE NOT EXISTS (SELECT 1 FROM penstock_queue r WHERE r.id = q.id + 1)) END
  FROM (SELECT max(coalesce((SELECT max(id) FROM penstock_queue), 0),
                   coalesce((SELECT value FROM penstock_setting WHERE name = 'last_queue_id'), 0)) AS id) used

-- :keep_last_queue_id
INSERT INTO penstock_setting (name, value) VALUES ('last_queue_id', ?)
ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)

-- :add_counter
INSERT INTO penstock_counter (queue_id, cursor) VALUES (?, ?)

-- :set_options
UPDATE penstock_queue SET options = ? WHERE id = ?

-- :set_paused
UPDATE penstock_queue SET paused = ? WHERE id = ?

-- :oldest_alive
-- Excludes dead and archived messages.
SELECT min(created_at) FROM penstock_message m WHERE place BETWEEN ? AND ?
   AND NOT EXISTS (SELECT 1 FROM penstock_dead d WHERE d.id = m.place & ID_MAX)
   AND NOT EXISTS (SELECT 1 FROM penstock_archive a WHERE a.id = m.place & ID_MAX)

-- :forget_failures_between
DELETE FROM penstock_failure WHERE id IN (SELECT place & ID_MAX FROM penstock_message
                                           WHERE place BETWEEN ? AND ?)

-- :forget_queue
DELETE FROM penstock_ready WHERE queue_id = ?1;
DELETE FROM penstock_scheduled WHERE queue_id = ?1;
DELETE FROM penstock_extension WHERE id IN (SELECT id FROM penstock_single_lease WHERE queue_id = ?1 AND extended);
DELETE FROM penstock_single_lease WHERE queue_id = ?1;
DELETE FROM penstock_lease_range WHERE queue_id = ?1;
DELETE FROM penstock_dead WHERE queue_id = ?1;
DELETE FROM penstock_archive WHERE queue_id = ?1;
DELETE FROM penstock_key WHERE space = ?1;
DELETE FROM penstock_minute WHERE queue_id = ?1;
DELETE FROM penstock_latency WHERE queue_id = ?1;
DELETE FROM penstock_busy WHERE queue_id = ?1;
DELETE FROM penstock_api_key WHERE queue_id = ?1;
DELETE FROM penstock_counter WHERE queue_id = ?1;
DELETE FROM penstock_queue WHERE id = ?1

-- :keep_last_id
UPDATE penstock_counter SET last_id = max(last_id, ?) WHERE queue_id = 0

-- :dead_of
SELECT place FROM penstock_dead WHERE id = ? AND queue_id = ? AND NOT leased

-- :archived_of
SELECT place FROM penstock_archive WHERE id = ? AND queue_id = ?

-- :message_of
SELECT place, -priority, ifnull(available_at, created_at) FROM penstock_message WHERE place IN (?, ?)

-- :end_lease
DELETE FROM penstock_single_lease WHERE queue_id = ? AND id = ?

-- :end_archive
DELETE FROM penstock_archive WHERE id = ?

-- :purge_plain
SELECT place FROM penstock_message WHERE place > ? AND place <= ? ORDER BY place LIMIT ?

-- :purge_ready
SELECT id, place, rank, available_at FROM penstock_ready WHERE queue_id = ? AND id <= ? LIMIT ?

-- :purge_scheduled
SELECT id, place, available_at FROM penstock_scheduled WHERE queue_id = ? AND id <= ? LIMIT ?

-- :purge_leased
SELECT leased_until, id, place, from_dead FROM penstock_single_lease WHERE queue_id = ? AND id <= ? LIMIT ?

-- :purge_dead
SELECT id, place FROM penstock_dead WHERE queue_id = ? AND NOT leased AND id <= ? LIMIT ?

-- :purge_archived
SELECT id, place FROM penstock_archive WHERE queue_id = ? AND id <= ? LIMIT ?

-- :dead_letters
SELECT id, place, died_at, ttl_left_ms, ifnull(error, '') FROM penstock_dead
 WHERE queue_id = ? AND NOT leased AND (died_at, id) > (?, ?) AND died_at <= ? ORDER BY died_at, id LIMIT ?

-- :dead_letters_of
SELECT d.id, d.place, d.died_at, d.ttl_left_ms, ifnull(d.error, '')
  FROM json_each(?) i CROSS JOIN penstock_dead d ON d.id = i.value
 WHERE d.queue_id = ? AND NOT d.leased AND (d.died_at, d.id) > (?, ?) AND d.died_at <= ? ORDER BY d.died_at, d.id LIMIT ?

-- :revive
INSERT INTO penstock_ready (available_at, expires_at, queue_id, id, place, rank, attempts)
SELECT ?, ?, ?, ?, place, -priority, 0 FROM penstock_message WHERE place = ?

-- :busy_queues
SELECT q.name FROM penstock_counter c JOIN penstock_queue q ON q.id = c.queue_id
 WHERE c.queue_id > 0 AND c.ready + c.scheduled + c.leased + c.archived > 0
    OR q.id = (SELECT value FROM penstock_setting WHERE name = 'uncounted') ORDER BY q.name

-- :old_archive
SELECT id, place FROM penstock_archive WHERE queue_id = ? AND archived_at <= ? ORDER BY archived_at LIMIT ?

-- :old_keys
SELECT space, key, id, place FROM penstock_key WHERE check_at <= ? ORDER BY check_at LIMIT ?

-- :forget_key
DELETE FROM penstock_key WHERE space = ? AND key = ?

-- :keep_key
UPDATE penstock_key SET check_at = ? WHERE space = ? AND key = ?

-- :forget_minutes
-- Keeps the newest old row, because later changes are computed from it.
DELETE FROM penstock_minute WHERE (queue_id, minute) IN (
  SELECT m.queue_id, m.minute FROM penstock_queue q CROSS JOIN penstock_minute m ON m.queue_id = q.id
   WHERE m.minute < (SELECT max(n.minute) FROM penstock_minute n WHERE n.queue_id = q.id AND n.minute < ?) LIMIT ?)
