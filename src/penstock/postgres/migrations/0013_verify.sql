-- A batch may begin with what its store knows of the queues instead of loading them. This function takes its locks and
-- raises PS001 if one of the assumptions is wrong: then nothing is done, and the batch runs again with loaded queues.
-- The assumed time may be a little ahead of the clock, and behind it by what a large batch or a lock takes.
-- `newest`: no message may be newer than the assumed time, or a later push could overtake an earlier one.
CREATE FUNCTION penstock.verify(keys bigint[], assumed bigint, ahead_ms bigint, behind_ms bigint, journals boolean,
                                newest boolean, names text[], ids bigint[], known text[])
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  each  bigint;
  found bigint;
  now   bigint;
BEGIN
  FOREACH each IN ARRAY keys LOOP
    IF each < 0 THEN
      PERFORM pg_advisory_xact_lock_shared(-each);
    ELSE
      PERFORM pg_advisory_xact_lock(each);
    END IF;
  END LOOP;
  now := penstock.now_ms();
  -- A statement of its own, so that it sees what was committed while the locks were awaited.
  SELECT count(*) INTO found
    FROM unnest(names, ids, known) AS f(name, id, options)
    JOIN penstock.queue q ON q.id = f.id AND q.name = f.name AND q.options = f.options
   WHERE (NOT newest OR (SELECT c.newest_at FROM penstock.counter c WHERE c.queue_id = f.id AND c.newest_at IS NOT NULL
                          ORDER BY c.newest_at DESC LIMIT 1) <= assumed)
     AND journals = (coalesce((SELECT s.value FROM penstock.setting s WHERE s.name = 'journal'), 0) > 0);
  IF found <> cardinality(names) OR assumed NOT BETWEEN now - behind_ms AND now + ahead_ms THEN
    RAISE EXCEPTION 'a queue, the journal or the clock is not as assumed' USING ERRCODE = 'PS001';
  END IF;
  RETURN now;
END
$$;
