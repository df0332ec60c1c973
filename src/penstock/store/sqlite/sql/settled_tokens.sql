-- :remember
INSERT INTO penstock_settled (minute, token, first_id, last_id, queue_id, how) VALUES (?, ?, ?, ?, ?, ?)

-- :recall
WITH RECURSIVE recent(minute) AS (VALUES (?1) UNION ALL SELECT minute + 1 FROM recent WHERE minute < ?2)
SELECT max((SELECT CASE WHEN s.last_id >= ?4 AND s.queue_id = ?5 THEN s.how END FROM penstock_settled s
             WHERE s.minute = r.minute AND s.token = ?3 AND s.first_id <= ?4 ORDER BY s.first_id DESC LIMIT 1))
  FROM recent r

-- :oldest
SELECT minute, token, first_id FROM penstock_settled WHERE minute < ?
 ORDER BY minute, token, first_id LIMIT 1 OFFSET ?

-- :forget
DELETE FROM penstock_settled WHERE minute < ?

-- :forget_up_to
DELETE FROM penstock_settled WHERE (minute, token, first_id) <= (?, ?, ?)
