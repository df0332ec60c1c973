-- Pushes in a transaction of an application's own, from any driver and from SQL. Such a transaction may stay open for long,
-- so it keeps nobody waiting: it takes no lock that pushes of servers take, and leaves to its commit what they would wait for.

-- What is left to the commit, by queue. No row outlives its transaction.
CREATE TABLE penstock.at_commit (
  queue_id bigint NOT NULL,
  name     text NOT NULL,
  messages bigint NOT NULL,
  at       bigint NOT NULL
);

-- Tokens a second, and how many there are at most.
CREATE FUNCTION penstock.rate_of(options jsonb, OUT rate double precision, OUT burst double precision)
LANGUAGE sql IMMUTABLE AS $$
  SELECT (options ->> 'push_rate')::double precision,
         coalesce((options ->> 'push_burst')::double precision,
                  greatest(1, floor((options ->> 'push_rate')::double precision)))
$$;

CREATE FUNCTION penstock.commit_push() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  pushed  bigint;
  options jsonb;
BEGIN
  -- The first row of a queue stands for all of its rows.
  WITH done AS (DELETE FROM penstock.at_commit a WHERE a.queue_id = NEW.queue_id RETURNING a.messages)
  SELECT sum(d.messages) INTO pushed FROM done d;
  IF pushed IS NULL THEN
    RETURN NULL;
  END IF;
  IF strpos(NEW.name, '/') > 0 THEN
    INSERT INTO penstock.busy (queue_id, name) VALUES (NEW.queue_id, NEW.name) ON CONFLICT DO NOTHING;
  END IF;
  SELECT q.options::jsonb INTO options FROM penstock.queue q WHERE q.id = NEW.queue_id;
  IF options ->> 'push_rate' IS NOT NULL THEN
    INSERT INTO penstock.bucket AS b (queue_id, tokens, tokens_at)
    SELECT NEW.queue_id, t.burst - pushed, NEW.at FROM penstock.rate_of(options) t
    ON CONFLICT (queue_id) DO UPDATE SET tokens_at = greatest(b.tokens_at, NEW.at), tokens = (
      SELECT least(t.burst, b.tokens + greatest(0, NEW.at - b.tokens_at) * t.rate / 1000) FROM penstock.rate_of(options) t
    ) - pushed;
  END IF;
  RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER commit_push AFTER INSERT ON penstock.at_commit DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION penstock.commit_push();

CREATE FUNCTION penstock.little_endian(number bigint, bytes integer) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT string_agg(substr(int8send(number), 9 - n, 1), ''::bytea ORDER BY n) FROM generate_series(1, bytes) n
$$;

-- The journal's record of one push, as penstock.journal.events encodes it: kind 2, marked as one whose id (here relative to
-- the first of the push) and checksum are written when it gets its offset.
CREATE FUNCTION penstock.pushed_record(
  number bigint, pushed_at bigint, due_at bigint, queue_id bigint, queue_name text, salt bigint, priority bigint,
  content bigint, details text, body bytea)
RETURNS bytea LANGUAGE plpgsql STABLE AS $$
DECLARE
  name   bytea := convert_to(queue_name, 'UTF8');
  detail bytea := convert_to(details, 'UTF8');
  rest   bytea := name || detail || coalesce(body, '');
  ends   bytea := CASE WHEN body IS NULL THEN '' ELSE penstock.little_endian(length(body), 4) || '\x00000000' END;
BEGIN
  rest := ends || rest || decode(repeat('00', (8 - length(rest) % 8) % 8), 'hex');
  RETURN penstock.little_endian(88 + length(rest), 4) || '\x00000000' || penstock.little_endian(pushed_at, 8)
      || '\x0200' || penstock.little_endian(88, 2) || '\x00000000'
      || penstock.little_endian(1, 4) || penstock.little_endian(queue_id, 4) || penstock.little_endian(salt, 4)
      || penstock.little_endian(1 << 15, 2) || penstock.little_endian(CASE WHEN body IS NULL THEN 0 ELSE 512 END, 2)
      || penstock.little_endian(length(name), 2) || '\x0000' || penstock.little_endian(length(detail), 4)
      || penstock.little_endian(number, 8) || penstock.little_endian(pushed_at, 8) || penstock.little_endian(0, 8)
      || penstock.little_endian(0, 8) || penstock.little_endian(due_at, 8) || penstock.little_endian(0, 8)
      || penstock.little_endian(priority, 8) || penstock.little_endian(content, 8) || rest;
END
$$;

-- Does what a server's push does, but for the order: messages of open transactions may be committed in any, so that none is
-- stored as a plain one. Answers the first id, the time, and by position the id and time of each duplicate's first message;
-- or what refused it, and then it has changed nothing. `moment` is for tests, `database` the salt of the one that is meant;
-- `durable`: the commit waits for the disk, whatever the role's settings are.
CREATE FUNCTION penstock.push_messages(
  moment bigint, database bigint, durable boolean, queue_name text, payloads bytea[], contents bigint[], priorities bigint[],
  delays bigint[], ttls bigint[], keys text[], headers text[])
RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
  many       bigint := cardinality(payloads);
  salt       bigint := (SELECT s.value FROM penstock.setting s WHERE s.name = 'salt');
  journals   boolean := EXISTS (SELECT 1 FROM penstock.setting s WHERE s.name = 'journal' AND s.value > 0);
  queue      bigint;
  options    jsonb;
  now        bigint;
  newest     bigint;
  first      bigint;
  duplicates jsonb := '{}';
  refused    json;
  wanted     record;
  earlier    record;
  later      bigint;
  fresh      bigint;
  undone     bigint;
  lacking    double precision;
  records    bytea;
BEGIN
  IF database <> salt THEN
    RETURN json_build_object('refused', 'database');
  END IF;
  LOOP
    SELECT q.id INTO queue FROM penstock.queue q WHERE q.name = queue_name;
    IF NOT FOUND THEN
      RETURN json_build_object('refused', 'queue');
    END IF;
    -- Shared: only who changes or drops the queue waits for this transaction.
    PERFORM pg_advisory_xact_lock_shared((salt << 16) | (queue % 1024));
    SELECT q.options::jsonb INTO options FROM penstock.queue q WHERE q.name = queue_name AND q.id = queue;
    EXIT WHEN FOUND;
  END LOOP;
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    -- The snapshot may be older than the end of the queue.
    PERFORM 1 FROM penstock.queue q WHERE q.id = queue FOR KEY SHARE;
  END IF;
  now := coalesce(moment, penstock.now_ms());
  SELECT c.newest_at INTO newest FROM penstock.counter c
   WHERE c.queue_id = queue AND c.newest_at IS NOT NULL ORDER BY c.newest_at DESC LIMIT 1;
  -- A clock that steps back must not let a later push overtake an earlier one.
  newest := greatest(newest, now);
  first := penstock.take_ids(many);
  -- In the order of the keys, so that two that push the same ones do not wait for each other in a circle.
  FOR wanted IN SELECT k.key, k.n FROM unnest(keys) WITH ORDINALITY AS k(key, n) WHERE k.key IS NOT NULL
                 ORDER BY k.key COLLATE "C", k.n LOOP
    LOOP
      INSERT INTO penstock.key (space, key, id, place, created_at, expires_at, check_at)
      SELECT queue, wanted.key, first + wanted.n - 1, ((queue * 2 + 1) << 44) + first + wanted.n - 1, now, t.until, t.until
        FROM (SELECT now + coalesce((options ->> 'dedupe_ms')::bigint, 86400000)) AS t(until)
      ON CONFLICT DO NOTHING;
      EXIT WHEN FOUND;
      SELECT k.id, k.created_at, k.id >= first OR k.expires_at > now
             OR EXISTS (SELECT 1 FROM penstock.message m WHERE m.place = k.place)
                AND NOT EXISTS (SELECT 1 FROM penstock.archive a WHERE a.id = k.id) AS holds
        INTO earlier FROM penstock.key k WHERE k.space = queue AND k.key = wanted.key;
      IF earlier.holds THEN
        duplicates := duplicates || jsonb_build_object(wanted.n - 1, jsonb_build_array(earlier.id, earlier.created_at));
        EXIT;
      END IF;
      DELETE FROM penstock.key k WHERE k.space = queue AND k.key = wanted.key AND k.id = earlier.id;
    END LOOP;
  END LOOP;
  fresh := many - (SELECT count(*) FROM jsonb_object_keys(duplicates));
  IF fresh > 0 AND (options ->> 'max_size') IS NOT NULL THEN
    -- What has expired must not fill the queue until it is swept.
    undone := (SELECT coalesce(sum(c.ready + c.scheduled + c.leased), 0) FROM penstock.counter c WHERE c.queue_id = queue)
      - (SELECT count(*) FROM penstock.ready r WHERE r.queue_id = queue AND r.expires_at <= now)
      - (SELECT count(*) FROM penstock.scheduled s WHERE s.queue_id = queue AND s.expires_at <= now);
    IF undone + fresh > (options ->> 'max_size')::bigint THEN
      refused := json_build_object('refused', 'size', 'undone', undone, 'max_size', options -> 'max_size');
    END IF;
  END IF;
  IF refused IS NULL AND fresh > 0 AND (options ->> 'push_rate') IS NOT NULL THEN
    SELECT least(fresh, t.burst) - coalesce(least(t.burst, b.tokens + abs(now - b.tokens_at) * t.rate / 1000), t.burst)
             + coalesce((SELECT sum(a.messages) FROM penstock.at_commit a WHERE a.queue_id = queue), 0)
      INTO lacking FROM penstock.rate_of(options) t LEFT JOIN penstock.bucket b ON b.queue_id = queue;
    IF lacking > 0 THEN
      refused := json_build_object('refused', 'rate', 'push_rate', options -> 'push_rate', 'lacking', lacking);
    END IF;
  END IF;
  IF refused IS NOT NULL THEN
    DELETE FROM penstock.key k WHERE k.space = queue AND k.key = ANY (keys) AND k.id >= first;
    RETURN refused;
  END IF;
  IF fresh = 0 THEN
    RETURN json_build_object('first', first, 'now', now, 'duplicates', duplicates);
  END IF;
  WITH new AS MATERIALIZED (
    SELECT r.n - 1 AS number, first + r.n - 1 AS id, ((queue * 2 + 1) << 44) + first + r.n - 1 AS place,
           coalesce(r.delay, (options ->> 'delay_ms')::bigint, 0) AS delay,
           now + coalesce(r.ttl, (options ->> 'ttl_ms')::bigint) AS expires_at,
           coalesce(r.priority, 0) AS priority, coalesce(r.content, 0) AS content, r.key, r.headers, r.payload
      FROM unnest(payloads, contents, priorities, delays, ttls, keys, headers) WITH ORDINALITY
        AS r(payload, content, priority, delay, ttl, key, headers, n)
     WHERE NOT duplicates ? (r.n - 1)::text),
  stored AS (
    INSERT INTO penstock.message (place, created_at, available_at, priority, content, key, headers, payload)
    SELECT m.place, now, CASE WHEN m.delay > 0 THEN now + m.delay ELSE nullif(newest, now) END, m.priority, m.content,
           m.key, m.headers, m.payload FROM new m),
  prompt AS (
    INSERT INTO penstock.ready (queue_id, rank, available_at, id, place, attempts, expires_at)
    SELECT queue, -m.priority, newest, m.id, m.place, 0, m.expires_at FROM new m WHERE m.delay = 0),
  delayed AS (
    INSERT INTO penstock.scheduled (queue_id, rank, available_at, id, place, attempts, expires_at)
    SELECT queue, -m.priority, now + m.delay, m.id, m.place, 0, m.expires_at FROM new m WHERE m.delay > 0),
  counted AS (
    INSERT INTO penstock.counter (minute, queue_id, newest_at, ready, scheduled, n_pushed)
    SELECT now / 60000, queue, newest, fresh - count(*) FILTER (WHERE m.delay > 0), count(*) FILTER (WHERE m.delay > 0),
           fresh FROM new m)
  SELECT count(*) FILTER (WHERE m.delay > 0),
         string_agg(penstock.pushed_record(
           m.number, now, CASE WHEN m.delay > 0 THEN now + m.delay ELSE newest END, queue, queue_name, salt, m.priority,
           m.content, coalesce('{' || nullif(concat_ws(',', '"key":' || to_json(m.key), '"headers":' || m.headers,
                                                       '"expires_at":' || m.expires_at), '') || '}', ''),
           CASE WHEN coalesce(options ->> 'journal', 'full') = 'full' THEN m.payload END), ''::bytea ORDER BY m.number)
           FILTER (WHERE journals AND coalesce(options ->> 'journal', 'full') <> 'off')
    INTO later, records FROM new m;
  -- After the first change: whoever takes a number of the spool has a transaction's number already.
  IF records IS NOT NULL THEN
    INSERT INTO penstock.spool (base, data) VALUES (first, records);
  END IF;
  IF strpos(queue_name, '/') > 0 OR (options ->> 'push_rate') IS NOT NULL THEN
    INSERT INTO penstock.at_commit VALUES (queue, queue_name, fresh, now);
  END IF;
  IF durable AND current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  -- Heard when this is committed. What is scheduled may be due before.
  PERFORM pg_notify('penstock' || '.' || n.nspname, 'sql =' || queue_name || CASE WHEN later > 0 THEN ' late' ELSE '' END)
     FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = 'penstock.queue'::regclass;
  RETURN json_build_object('first', first, 'now', now, 'duplicates', duplicates);
END
$$;

-- For triggers and for programs in any language: adds a message, in the transaction it is called in, and answers its id;
-- for a repeated key, that of the first message.
CREATE FUNCTION penstock.push(
  queue text, payload jsonb, priority integer DEFAULT 0, delay_ms bigint DEFAULT NULL, ttl_ms bigint DEFAULT NULL,
  key text DEFAULT NULL, headers jsonb DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  body   bytea := convert_to(payload::text, 'UTF8');
  answer json;
BEGIN
  IF queue IS NULL OR payload IS NULL OR priority IS NULL THEN
    RAISE EXCEPTION 'queue, payload and priority must not be null' USING ERRCODE = 'null_value_not_allowed';
  ELSIF length(body) > 524288 THEN
    RAISE EXCEPTION 'a payload of % bytes', length(body) USING ERRCODE = 'invalid_parameter_value',
      HINT = 'at most 524288; store large data elsewhere and push where it is';
  ELSIF priority < -2147483647 THEN
    RAISE EXCEPTION 'priority is %, and must be at least -2147483647', priority USING ERRCODE = 'invalid_parameter_value';
  ELSIF delay_ms NOT BETWEEN 0 AND 315360000000 THEN
    RAISE EXCEPTION 'delay_ms is %, and must be 0 to 315360000000', delay_ms USING ERRCODE = 'invalid_parameter_value';
  ELSIF ttl_ms NOT BETWEEN 1 AND 315360000000 THEN
    RAISE EXCEPTION 'ttl_ms is %, and must be 1 to 315360000000', ttl_ms USING ERRCODE = 'invalid_parameter_value';
  ELSIF length(key) NOT BETWEEN 1 AND 512 OR key ~ '[[:cntrl:]]' THEN
    RAISE EXCEPTION 'an idempotency key has 1 to 512 printable characters' USING ERRCODE = 'invalid_parameter_value';
  ELSIF headers IS NOT NULL AND jsonb_typeof(headers) <> 'object' THEN
    RAISE EXCEPTION 'headers are a JSON object of strings, not %', jsonb_typeof(headers)
      USING ERRCODE = 'invalid_parameter_value';
  ELSIF headers IS NOT NULL AND EXISTS (SELECT 1 FROM jsonb_each(headers) h WHERE jsonb_typeof(h.value) <> 'string') THEN
    RAISE EXCEPTION 'headers are a JSON object of strings' USING ERRCODE = 'invalid_parameter_value';
  ELSIF headers IS NOT NULL AND (SELECT sum(length(h.key) + length(h.value)) FROM jsonb_each_text(headers) h) > 16384 THEN
    RAISE EXCEPTION 'headers of more than 16384 characters' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  answer := penstock.push_messages(NULL, NULL, true, queue, ARRAY[body], ARRAY[2], ARRAY[priority], ARRAY[delay_ms],
                                   ARRAY[ttl_ms], ARRAY[key], ARRAY[headers::text]);
  CASE answer ->> 'refused'
    WHEN 'queue' THEN
      RAISE EXCEPTION 'queue "%" does not exist', queue USING ERRCODE = 'undefined_object',
        HINT = 'create it first, for example with `penstock queue add`';
    WHEN 'size' THEN
      RAISE EXCEPTION 'queue "%" holds % of at most % messages', queue, answer ->> 'undone', answer ->> 'max_size'
        USING ERRCODE = 'configuration_limit_exceeded';
    WHEN 'rate' THEN
      RAISE EXCEPTION 'queue "%" takes % messages a second', queue, answer ->> 'push_rate'
        USING ERRCODE = 'configuration_limit_exceeded';
    ELSE
      RETURN coalesce((answer -> 'duplicates' -> '0' ->> 0)::bigint, (answer ->> 'first')::bigint);
  END CASE;
END
$$;
