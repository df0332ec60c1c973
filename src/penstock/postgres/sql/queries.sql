-- :queue
SELECT q.id, q.name, q.options, q.paused, q.created_at,
       (SELECT c.cursor FROM penstock.counter c
         WHERE c.queue_id = q.id AND c.cursor IS NOT NULL ORDER BY c.cursor DESC LIMIT 1), penstock.now_ms(),
       sum(c.ready)::bigint, sum(c.scheduled)::bigint, sum(c.leased)::bigint, sum(c.dead)::bigint,
       sum(c.archived)::bigint, sum(c.n_pushed)::bigint, sum(c.n_leased)::bigint, sum(c.n_acked)::bigint,
       sum(c.n_nacked)::bigint, sum(c.n_lapsed)::bigint, sum(c.n_dead)::bigint, sum(c.n_expired)::bigint,
       sum(c.n_redriven)::bigint, sum(c.n_removed)::bigint
  FROM penstock.queue q JOIN penstock.counter c ON c.queue_id = q.id
 WHERE q.name = ANY($1::text[]) GROUP BY q.id

-- :queues
SELECT q.id, q.name, q.options, q.paused, q.created_at, 0::bigint, penstock.now_ms(),
       sum(c.ready)::bigint, sum(c.scheduled)::bigint, sum(c.leased)::bigint, sum(c.dead)::bigint,
       sum(c.archived)::bigint, sum(c.n_pushed)::bigint, sum(c.n_leased)::bigint, sum(c.n_acked)::bigint,
       sum(c.n_nacked)::bigint, sum(c.n_lapsed)::bigint, sum(c.n_dead)::bigint, sum(c.n_expired)::bigint,
       sum(c.n_redriven)::bigint, sum(c.n_removed)::bigint
  FROM (SELECT * FROM penstock.queue q WHERE q.name > $1::text AND q.name >= $2::text
           AND starts_with(q.name, $2::text) ORDER BY q.name LIMIT $3::bigint) q
  JOIN penstock.counter c ON c.queue_id = q.id
 GROUP BY q.id, q.name, q.options, q.paused, q.created_at ORDER BY q.name

-- :message
SELECT place, created_at, coalesce(available_at, created_at), priority, content, key, headers, payload
  FROM penstock.message WHERE place = ANY($1::bigint[])

-- :global_keys
SELECT k.key, q.name, k.id FROM penstock.key k JOIN penstock.queue q ON q.id = k.place >> QUEUE_SHIFT
 WHERE k.space = 0 AND k.key = ANY($1::text[])

-- :homes
-- An id does not contain its queue. The busy queues of the tree are few and are searched first.
SELECT home.name, wanted.id FROM unnest($1::bigint[]) AS wanted(id)
 CROSS JOIN LATERAL (
   SELECT q.name FROM (SELECT name, queue_id FROM penstock.busy UNION ALL SELECT name, id FROM penstock.queue) q
    WHERE EXISTS (SELECT 1 FROM penstock.message m
                   WHERE m.place IN (q.queue_id << QUEUE_SHIFT | wanted.id, (q.queue_id * 2 + 1) << ID_BITS | wanted.id))
    LIMIT 1) home

-- :held
SELECT place & ID_MAX, created_at FROM penstock.message m WHERE place = ANY($1::bigint[])
   AND NOT EXISTS (SELECT 1 FROM penstock.archive a WHERE a.id = m.place & ID_MAX)

-- :ready
-- A page ends when its payloads reach the byte limit in the last parameter.
SELECT rank, available_at, id, attempts, first_leased_at, expires_at,
       created_at, priority, content, key, headers, payload
  FROM (SELECT r.*, m.created_at, m.priority, m.content, m.key, m.headers, m.payload,
               sum(octet_length(m.payload)) OVER (ORDER BY r.rank, r.available_at, r.id) AS bytes
          FROM (SELECT * FROM penstock.ready r
                 WHERE r.queue_id = $1::bigint AND (r.rank, r.available_at, r.id) > ($2::bigint, $3::bigint, $4::bigint)
                 ORDER BY r.rank, r.available_at, r.id LIMIT $5::bigint) r
          JOIN penstock.message m ON m.place = r.place) p
 WHERE bytes - octet_length(payload) < $6::bigint ORDER BY rank, available_at, id

-- :plain
SELECT 0::bigint, coalesce(available_at, created_at), place & ID_MAX, 0::bigint, NULL::bigint, NULL::bigint,
       created_at, priority, content, key, headers, payload
  FROM (SELECT m.*, sum(octet_length(m.payload)) OVER (ORDER BY m.place) AS bytes
          FROM (SELECT * FROM penstock.message WHERE place > $1::bigint AND place < $2::bigint
                 ORDER BY place LIMIT $3::bigint) m) p
 WHERE bytes - octet_length(payload) < $4::bigint ORDER BY place

-- :scheduled
SELECT available_at, id, attempts, first_leased_at, expires_at,
       created_at, priority, content, key, headers, payload
  FROM (SELECT s.*, m.created_at, m.priority, m.content, m.key, m.headers, m.payload,
               sum(octet_length(m.payload)) OVER (ORDER BY s.available_at, s.id) AS bytes
          FROM (SELECT * FROM penstock.scheduled s WHERE s.queue_id = $1::bigint
                   AND (s.available_at, s.id) > ($2::bigint, $3::bigint)
                 ORDER BY s.available_at, s.id LIMIT $4::bigint) s
          JOIN penstock.message m ON m.place = s.place) p
 WHERE bytes - octet_length(payload) < $5::bigint ORDER BY available_at, id

-- :leased
SELECT leased_until, id, attempts, first_leased_at, expires_at, leased_at, worker,
       created_at, at, priority, content, key, headers, payload
  FROM (SELECT l.*, m.created_at, coalesce(m.available_at, m.created_at) AS at, m.priority, m.content, m.key, m.headers,
               m.payload, sum(octet_length(m.payload)) OVER (ORDER BY l.leased_until, l.id) AS bytes
          FROM (SELECT * FROM (
                  (SELECT leased_until, id, place, attempts, first_leased_at, expires_at, leased_at, worker
                     FROM penstock.single_lease l
                    WHERE l.queue_id = $1::bigint AND (l.leased_until, l.id) > ($2::bigint, $3::bigint)
                    ORDER BY l.leased_until, l.id LIMIT $4::bigint)
                  UNION ALL
                  -- Reads enough ranges to fill the page; it may begin within the first of them.
                  (SELECT r.leased_until, m.place & ID_MAX, m.place, 1, r.leased_at, NULL, r.leased_at, r.worker
                     FROM (SELECT r.*, sum(CASE WHEN (r.leased_until, r.first_id) > ($2::bigint, $3::bigint)
                                                THEN r.count ELSE 0 END) OVER (ORDER BY r.leased_until, r.first_id) AS up_to
                             FROM penstock.lease_range r
                            WHERE r.queue_id = $1::bigint AND (r.leased_until, r.last_id) > ($2::bigint, $3::bigint)) r,
                          LATERAL (SELECT m.place FROM penstock.message m
                            WHERE m.place BETWEEN (r.queue_id << QUEUE_SHIFT) + r.first_id
                                              AND (r.queue_id << QUEUE_SHIFT) + r.last_id
                              AND (r.leased_until, m.place & ID_MAX) > ($2::bigint, $3::bigint)
                            ORDER BY m.place LIMIT $4::bigint) m
                    WHERE r.up_to - r.count < $4::bigint)) l
                 ORDER BY l.leased_until, l.id LIMIT $4::bigint) l
          JOIN penstock.message m ON m.place = l.place) p
 WHERE bytes - octet_length(payload) < $5::bigint ORDER BY leased_until, id

-- :dead
SELECT died_at, id, attempts, first_leased_at, reason,
       created_at, at, priority, content, key, headers, payload
  FROM (SELECT d.*, m.created_at, coalesce(m.available_at, m.created_at) AS at, m.priority, m.content, m.key, m.headers,
               m.payload, sum(octet_length(m.payload)) OVER (ORDER BY d.died_at DESC, d.id DESC) AS bytes
          FROM (SELECT * FROM penstock.dead d WHERE d.queue_id = $1::bigint AND NOT d.leased
                   AND (d.died_at, d.id) < ($2::bigint, $3::bigint)
                 ORDER BY d.died_at DESC, d.id DESC LIMIT $4::bigint) d
          JOIN penstock.message m ON m.place = d.place) p
 WHERE bytes - octet_length(payload) < $5::bigint ORDER BY died_at DESC, id DESC

-- :archived
SELECT archived_at, id, attempts, first_leased_at, leased_at,
       created_at, at, priority, content, key, headers, payload
  FROM (SELECT a.*, m.created_at, coalesce(m.available_at, m.created_at) AS at, m.priority, m.content, m.key, m.headers,
               m.payload, sum(octet_length(m.payload)) OVER (ORDER BY a.archived_at DESC, a.id DESC) AS bytes
          FROM (SELECT * FROM penstock.archive a WHERE a.queue_id = $1::bigint
                   AND (a.archived_at, a.id) < ($2::bigint, $3::bigint)
                 ORDER BY a.archived_at DESC, a.id DESC LIMIT $4::bigint) a
          JOIN penstock.message m ON m.place = a.place) p
 WHERE bytes - octet_length(payload) < $5::bigint ORDER BY archived_at DESC, id DESC

-- :lease_of
SELECT leased_until, id, attempts, first_leased_at, expires_at, leased_at, worker
  FROM penstock.single_lease WHERE queue_id = $1::bigint AND id = $2::bigint
UNION ALL
SELECT leased_until, $2::bigint, 1, leased_at, NULL, leased_at, worker
  FROM penstock.lease_range WHERE queue_id = $1::bigint AND $2::bigint BETWEEN first_id AND last_id

-- :dead_of
SELECT died_at, id, attempts, first_leased_at, reason
  FROM penstock.dead WHERE queue_id = $1::bigint AND id = $2::bigint AND NOT leased

-- :archived_of
SELECT archived_at, id, attempts, first_leased_at, leased_at
  FROM penstock.archive WHERE queue_id = $1::bigint AND id = $2::bigint

-- :scheduled_of
SELECT attempts, first_leased_at, expires_at FROM penstock.scheduled
 WHERE queue_id = $1::bigint AND available_at = $2::bigint AND id = $3::bigint

-- :ready_of
SELECT attempts, first_leased_at, expires_at FROM penstock.ready
 WHERE queue_id = $1::bigint AND rank = $2::bigint AND available_at = $3::bigint AND id = $4::bigint

-- :failures
SELECT id, attempt, at, error FROM penstock.failure WHERE id = ANY($1::bigint[]) ORDER BY id, attempt DESC

-- :tracebacks
SELECT attempt, at, traceback FROM penstock.failure WHERE id = $1::bigint AND traceback IS NOT NULL

-- :totals_since
SELECT coalesce(sum(n_pushed), 0)::bigint, coalesce(sum(n_leased), 0)::bigint, coalesce(sum(n_acked), 0)::bigint,
       coalesce(sum(n_nacked), 0)::bigint, coalesce(sum(n_lapsed), 0)::bigint, coalesce(sum(n_dead), 0)::bigint,
       coalesce(sum(n_expired), 0)::bigint, coalesce(sum(n_redriven), 0)::bigint,
       coalesce(sum(n_removed), 0)::bigint
  FROM (SELECT n_pushed, n_leased, n_acked, n_nacked, n_lapsed, n_dead, n_expired, n_redriven, n_removed
          FROM penstock.minute WHERE queue_id = $1::bigint AND minute >= $2::bigint
        UNION ALL
        SELECT n_pushed, n_leased, n_acked, n_nacked, n_lapsed, n_dead, n_expired, n_redriven, n_removed
          FROM penstock.counter WHERE queue_id = $1::bigint AND minute >= $2::bigint) happened

-- :waiting
-- The first in order, the first by id and the first plain message include both the next one to lease and the oldest.
SELECT q.name, penstock.now_ms(), w.*
  FROM (SELECT q.id, q.name, (SELECT c.cursor FROM penstock.counter c WHERE c.queue_id = q.id AND c.cursor IS NOT NULL
                               ORDER BY c.cursor DESC LIMIT 1) AS cursor
          FROM penstock.queue q WHERE q.name = ANY($1::text[])) q
  LEFT JOIN LATERAL (
    SELECT r.rank, r.available_at, r.id, m.created_at
      FROM (SELECT * FROM penstock.ready r WHERE r.queue_id = q.id ORDER BY r.rank, r.available_at, r.id LIMIT 1) r
      JOIN penstock.message m ON m.place = r.place
    UNION ALL
    SELECT r.rank, r.available_at, r.id, m.created_at
      FROM (SELECT * FROM penstock.ready r WHERE r.queue_id = q.id ORDER BY r.id LIMIT 1) r
      JOIN penstock.message m ON m.place = r.place
    UNION ALL
    SELECT * FROM (SELECT 0::bigint, coalesce(available_at, created_at), place & ID_MAX, created_at
                     FROM penstock.message WHERE place > q.cursor AND place < (q.id * 2 + 1) << ID_BITS
                    ORDER BY place LIMIT 1) plain
  ) w ON true

-- :is_read_only
SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean

-- :dead_errors
SELECT died_at, id, left(coalesce(error, ''), $5::bigint::integer), strpos(coalesce(error, ''), $6::text) > 0
  FROM penstock.dead WHERE queue_id = $1::bigint AND NOT leased AND (died_at, id) < ($2::bigint, $3::bigint)
 ORDER BY died_at DESC, id DESC LIMIT $4::bigint

-- :forwarding
-- Options are stored as compact JSON, in which `dlq` is a string only if it names another queue.
SELECT q.name FROM penstock.queue q
 WHERE strpos(q.options, '"dlq":"') > 0
   AND EXISTS (SELECT 1 FROM penstock.dead d WHERE d.queue_id = q.id AND NOT d.leased)

-- :naming
SELECT name FROM penstock.queue WHERE strpos(options, $1::text) > 0

-- :find_key
SELECT k.id, q.name, k.name, k.hash, k.rights, k.created_at, NULL
  FROM penstock.api_key k JOIN penstock.queue q ON q.id = k.queue_id WHERE k.id = $1::text
UNION ALL
SELECT id, NULL, name, hash, rights, created_at, stream FROM penstock.stream_key WHERE id = $1::text

-- :list_queue_keys
SELECT k.id, q.name, k.name, k.hash, k.rights, k.created_at, NULL
  FROM penstock.api_key k JOIN penstock.queue q ON q.id = k.queue_id WHERE q.name = $1::text
 ORDER BY k.created_at, k.id

-- :list_stream_keys
SELECT id, NULL, name, hash, rights, created_at, stream FROM penstock.stream_key WHERE stream = $1::text
 ORDER BY created_at, id

-- :secret
SELECT secret FROM penstock.queue WHERE name = $1::text
