-- :plain
SELECT place, created_at, available_at, priority, content, key, headers, payload
  FROM penstock_message WHERE place > ? AND place < ? ORDER BY place LIMIT ?

-- :newest
SELECT created_at FROM (
  SELECT * FROM (SELECT place & ID_MAX AS id, created_at FROM penstock_message
                  WHERE place > (?1 * 2) << ID_BITS AND place < (?1 * 2 + 1) << ID_BITS ORDER BY place DESC LIMIT 1)
  UNION ALL
  SELECT * FROM (SELECT place & ID_MAX, created_at FROM penstock_message
                  WHERE place > (?1 * 2 + 1) << ID_BITS AND place < (?1 * 2 + 2) << ID_BITS ORDER BY place DESC LIMIT 1))
 ORDER BY id DESC LIMIT 1

-- :indexed
SELECT r.rank, r.available_at, r.id, r.place, r.attempts, r.first_leased_at,
       m.created_at, m.priority, m.content, m.key, m.headers, m.payload
  FROM penstock_ready r CROSS JOIN penstock_message m ON m.place = r.place
 WHERE r.queue_id = ? ORDER BY r.rank, r.available_at, r.id LIMIT ?

-- :dead
SELECT d.died_at, d.id, d.place, d.attempts, d.first_leased_at,
       m.created_at, m.priority, m.content, m.key, m.headers, m.payload
  FROM penstock_dead d CROSS JOIN penstock_message m ON m.place = d.place
 WHERE d.queue_id = ? AND NOT d.leased ORDER BY d.died_at, d.id LIMIT ?

-- :lease_one_plain
INSERT INTO penstock_single_lease (id, place, queue_id, token, leased_at, leased_until, attempts, first_leased_at, worker)
VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?)

-- :lease_filed
INSERT INTO penstock_single_lease (queue_id, token, leased_at, leased_until, first_leased_at, worker,
                            id, place, attempts, expires_at)
SELECT ?, ?, ?, ?, ifnull(first_leased_at, ?), ?, id, place, attempts + 1, expires_at
  FROM penstock_ready WHERE queue_id = ? AND (rank, available_at, id) <= (?, ?, ?)

-- :unfile
DELETE FROM penstock_ready WHERE queue_id = ? AND (rank, available_at, id) <= (?, ?, ?)

-- :lease_dead
INSERT INTO penstock_single_lease (queue_id, token, leased_at, leased_until, first_leased_at, worker,
                            id, place, attempts, from_dead)
SELECT ?, ?, ?, ?, ifnull(first_leased_at, ?), ?, id, place, attempts, 1
  FROM penstock_dead WHERE queue_id = ? AND NOT leased AND (died_at, id) <= (?, ?)

-- :mark_dead_leased
UPDATE penstock_dead SET leased = 1 WHERE queue_id = ? AND NOT leased AND (died_at, id) <= (?, ?)

-- :archive_filed
INSERT INTO penstock_archive (queue_id, archived_at, leased_at, first_leased_at, id, place, attempts)
SELECT ?, ?, ?, ifnull(first_leased_at, ?), id, place, attempts + 1
  FROM penstock_ready WHERE queue_id = ? AND (rank, available_at, id) <= (?, ?, ?)

-- :heads
SELECT rank, available_at, id FROM penstock_ready WHERE queue_id = ? ORDER BY rank, available_at, id LIMIT ?

-- :plain_heads
SELECT ifnull(available_at, created_at), place & ID_MAX
  FROM penstock_message WHERE place > ? AND place < ? ORDER BY place LIMIT ?

-- :busy_in_scope
SELECT name FROM penstock_busy WHERE name >= ? AND name < ?
