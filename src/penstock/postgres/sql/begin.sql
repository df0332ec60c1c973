-- :begin
BEGIN

-- :begin_reading
BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY

-- :commit
COMMIT

-- :rollback
ROLLBACK

-- :without_waiting
SET LOCAL synchronous_commit = off

-- :move_clock
SELECT set_config('penstock_clock.now_ms', ($1::bigint)::text, true)

-- :savepoint
SAVEPOINT penstock

-- :undo
ROLLBACK TO SAVEPOINT penstock

-- :release
RELEASE SAVEPOINT penstock

-- :wait_at_most
SELECT set_config('lock_timeout', $1::text, true)

-- :enter
SELECT penstock.enter($1::bigint[])

-- :verify
SELECT penstock.verify($1::bigint[], $2::bigint, $3::bigint, $4::bigint, $5::boolean, $6::boolean, $7::text[],
                       $8::bigint[], $9::text[])

-- :was_committed
SELECT pg_xact_status(($1::text)::xid8)

-- :load
-- Finds due rows between the floor, below which no rows are left, and now. While a long-lived snapshot is open, the index
-- keeps the entries of all deleted rows, and scanning over them would take longer and longer.
SELECT t.now, CASE WHEN $5::boolean THEN pg_current_xact_id()::text END, f.name, q.id, q.options, q.paused, q.created_at,
       CASE WHEN f.whole THEN (SELECT c.cursor FROM penstock.counter c
         WHERE c.queue_id = q.id AND c.cursor IS NOT NULL ORDER BY c.cursor DESC LIMIT 1) END,
       CASE WHEN f.whole THEN (SELECT c.newest_at FROM penstock.counter c
         WHERE c.queue_id = q.id AND c.newest_at IS NOT NULL ORDER BY c.newest_at DESC LIMIT 1) END,
       CASE WHEN f.whole THEN (SELECT s.available_at FROM penstock.scheduled s
         WHERE s.queue_id = q.id AND s.available_at > f.due_floor AND s.available_at <= t.now
         ORDER BY s.available_at LIMIT 1) END,
       CASE WHEN f.whole THEN least(
         (SELECT l.leased_until FROM penstock.single_lease l
           WHERE l.queue_id = q.id AND l.leased_until > f.lapse_floor AND l.leased_until <= t.now
           ORDER BY l.leased_until LIMIT 1),
         (SELECT l.leased_until FROM penstock.lease_range l
           WHERE l.queue_id = q.id AND l.leased_until > f.lapse_floor AND l.leased_until <= t.now
           ORDER BY l.leased_until LIMIT 1)) END,
       CASE WHEN f.whole THEN least(
         (SELECT r.expires_at FROM penstock.ready r
           WHERE r.queue_id = q.id AND r.expires_at IS NOT NULL AND r.expires_at <= t.now
           ORDER BY r.expires_at LIMIT 1),
         (SELECT s.expires_at FROM penstock.scheduled s
           WHERE s.queue_id = q.id AND s.expires_at IS NOT NULL AND s.expires_at <= t.now
           ORDER BY s.expires_at LIMIT 1)) END,
       CASE WHEN f.whole AND q.limited THEN (SELECT sum(c.ready + c.scheduled)::bigint FROM penstock.counter c
         WHERE c.queue_id = q.id) END,
       CASE WHEN f.whole AND q.limited THEN (SELECT sum(c.leased)::bigint FROM penstock.counter c
         WHERE c.queue_id = q.id) END,
       t.journals
  FROM (SELECT penstock.now_ms() AS now,
               coalesce((SELECT value FROM penstock.setting WHERE name = 'journal'), 0) > 0 AS journals OFFSET 0) t
       CROSS JOIN
       (SELECT unnest($1::text[]) AS name, unnest($2::bigint[]) > 0 AS whole,
               unnest($3::bigint[]) AS due_floor, unnest($4::bigint[]) AS lapse_floor) f
  LEFT JOIN penstock.queue q ON q.name = f.name

-- :now
SELECT penstock.now_ms()

-- :notify
SELECT pg_notify($1::text, $2::text)

-- :claim_mark
-- Waits for a push in progress with the same mark, and makes later ones fail.
INSERT INTO penstock.mark (mark) VALUES ($1::bigint) ON CONFLICT DO NOTHING RETURNING 1

-- :find_mark
SELECT first_id FROM penstock.mark WHERE mark = $1::bigint

-- :forget_marks
DELETE FROM penstock.mark WHERE mark > $1::bigint AND mark < $2::bigint
