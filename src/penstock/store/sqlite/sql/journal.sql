-- :next_offset
SELECT first_offset + records FROM penstock_journal ORDER BY first_offset DESC LIMIT 1

-- :write
-- What may be replaced is a row without records, which only tells the next offset.
INSERT OR REPLACE INTO penstock_journal (first_offset, records, bytes) VALUES (?, ?, ?)

-- :forget
-- The newest row stays: it tells the next offset.
DELETE FROM penstock_journal
 WHERE first_offset + records <= ? AND first_offset < (SELECT max(first_offset) FROM penstock_journal)

-- :bounds
SELECT (SELECT min(first_offset) FROM penstock_journal),
       (SELECT first_offset + records FROM penstock_journal ORDER BY first_offset DESC LIMIT 1)

-- :from
SELECT first_offset, records, bytes FROM penstock_journal
 WHERE first_offset >= ifnull((SELECT max(first_offset) FROM penstock_journal WHERE first_offset <= ?1), 0)
   AND first_offset + records > ?1 ORDER BY first_offset

-- :pushed_between
SELECT place, created_at FROM penstock_message WHERE place BETWEEN ? AND ?

-- :pushed_at_places
SELECT place, created_at FROM penstock_message WHERE place IN (SELECT value FROM json_each(?))

-- :failures
SELECT attempt, at, error FROM penstock_failure WHERE id = ? ORDER BY at, attempt
