-- :add
INSERT INTO penstock_lease_range (queue_id, leased_until, first_id, last_id, token, leased_at, worker)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- :end
DELETE FROM penstock_lease_range WHERE queue_id = ? AND leased_until = ? AND first_id = ? AND last_id = ? AND token = ?

-- :end_first
UPDATE penstock_lease_range SET first_id = ?
 WHERE queue_id = ? AND leased_until = ? AND first_id = ? AND last_id = ? AND token = ?

-- :remove
DELETE FROM penstock_lease_range WHERE queue_id = ? AND leased_until = ? AND first_id = ?

-- :with_token
-- Ranges do not overlap, so only the last one that begins at or before an id can contain it.
SELECT leased_until, first_id, last_id, token, leased_at, worker FROM penstock_lease_range
 WHERE queue_id = ?1 AND leased_until = ?2 AND token = ?3 AND first_id <= ?5
   AND first_id >= ifnull((SELECT max(first_id) FROM penstock_lease_range
                            WHERE queue_id = ?1 AND leased_until = ?2 AND first_id <= ?4), ?4)

-- :with_id
SELECT leased_until, first_id, last_id, token, leased_at, worker FROM penstock_lease_range
 WHERE queue_id = ?1 AND first_id <= ?2 AND last_id >= ?2

-- :at
SELECT leased_until, first_id, last_id, token, leased_at, worker FROM penstock_lease_range
 WHERE queue_id = ? AND leased_until = ? AND first_id = ?

-- :first
SELECT leased_until, first_id, last_id, token, leased_at, worker FROM penstock_lease_range
 WHERE queue_id = ? AND leased_until <= ? AND first_id <= ? ORDER BY leased_until, first_id LIMIT ?

-- :any
SELECT EXISTS (SELECT 1 FROM penstock_lease_range WHERE queue_id = ?)

-- :add_pieces
-- Drops a piece that contains no message.
INSERT INTO penstock_lease_range (queue_id, leased_until, first_id, last_id, token, leased_at, worker)
SELECT ?1, ?2, p.first_id, p.last_id, ?3, ?4, ?5
  FROM (SELECT json_extract(value, '$[0]') AS first_id, json_extract(value, '$[1]') AS last_id FROM json_each(?6)) p
 WHERE EXISTS (SELECT 1 FROM penstock_message WHERE place BETWEEN ?1 << QUEUE_SHIFT | p.first_id AND ?1 << QUEUE_SHIFT | p.last_id)

-- :pushed_between
SELECT place & ID_MAX, created_at FROM penstock_message WHERE place BETWEEN ? AND ? ORDER BY place

-- :pushed_at_places
SELECT place & ID_MAX, created_at FROM penstock_message WHERE place IN (SELECT value FROM json_each(?)) ORDER BY place

-- :nth
SELECT place & ID_MAX FROM penstock_message WHERE place BETWEEN ? AND ? ORDER BY place LIMIT 1 OFFSET ?

-- :rows_between
INSERT INTO penstock_single_lease (queue_id, leased_until, token, leased_at, first_leased_at, worker, id, place, attempts)
SELECT ?, ?, ?, ?, ?, ?, place & ID_MAX, place, 1 FROM penstock_message WHERE place BETWEEN ? AND ?

-- :rows_at_places
INSERT INTO penstock_single_lease (queue_id, leased_until, token, leased_at, first_leased_at, worker, id, place, attempts)
SELECT ?, ?, ?, ?, ?, ?, value & ID_MAX, value, 1 FROM json_each(?)

-- :move_out_all
INSERT INTO penstock_single_lease (queue_id, leased_until, token, leased_at, first_leased_at, worker, id, place, attempts)
SELECT r.queue_id, r.leased_until, r.token, r.leased_at, r.leased_at, r.worker, m.place & ID_MAX, m.place, 1
  FROM penstock_lease_range r CROSS JOIN penstock_message m
    ON m.place BETWEEN r.queue_id << QUEUE_SHIFT | r.first_id AND r.queue_id << QUEUE_SHIFT | r.last_id

-- :remove_all
DELETE FROM penstock_lease_range
