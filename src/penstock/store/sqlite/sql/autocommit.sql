-- :push
INSERT INTO penstock_message (place, created_at, available_at, priority, content, key, headers, payload)
SELECT ?, ?, NULL, 0, ?, NULL, NULL, ? WHERE (SELECT value FROM penstock_setting WHERE name = 'writer') = ?

-- :push_once
INSERT INTO temp.penstock_push SELECT ?, ?, ?, ?, ?, ?, ?, ?
 WHERE (SELECT value FROM penstock_setting WHERE name = 'writer') = ?

-- :lease
INSERT INTO penstock_single_lease (id, place, queue_id, token, leased_at, leased_until, attempts, first_leased_at, worker)
SELECT ?, ?, ?, ?, ?, ?, 1, ?, ? WHERE (SELECT value FROM penstock_setting WHERE name = 'writer') = ?

-- :ack
INSERT INTO temp.penstock_ack SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
 WHERE (SELECT value FROM penstock_setting WHERE name = 'writer') = ?

-- :triggers
-- Parameters: the row of the message, and the request key. A repeated request violates the key and fails.
CREATE TEMP VIEW penstock_push (place, created_at, content, payload, space, key, id, expires_at)
    AS SELECT 0, 0, 0, 0, 0, 0, 0, 0;
CREATE TEMP TRIGGER penstock_push_once INSTEAD OF INSERT ON penstock_push BEGIN
  INSERT INTO penstock_key (space, key, id, place, created_at, expires_at, check_at)
  VALUES (NEW.space, NEW.key, NEW.id, -1, NEW.created_at, NEW.expires_at, NEW.expires_at);
  INSERT INTO penstock_message (place, created_at, available_at, priority, content, key, headers, payload)
  VALUES (NEW.place, NEW.created_at, NULL, 0, NEW.content, NULL, NULL, NEW.payload);
END;
-- Parameters: the new counters, the lease and the message to delete, the journal row if there is one, and the minute.
CREATE TEMP VIEW penstock_ack (archived, cursor, last_id, leased, n_acked, n_leased, n_pushed, newest_at, ready, queue_id,
                               leased_until, id, token, place, first_offset, records, bytes, minute)
    AS SELECT 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0;
CREATE TEMP TRIGGER penstock_ack_alone INSTEAD OF INSERT ON penstock_ack BEGIN
  DELETE FROM penstock_single_lease
   WHERE queue_id = NEW.queue_id AND leased_until = NEW.leased_until AND id = NEW.id AND token = NEW.token AND NOT extended;
  SELECT RAISE(ABORT, 'not as remembered') WHERE changes() = 0;
  DELETE FROM penstock_message WHERE place = NEW.place;
  INSERT INTO penstock_settled (minute, token, first_id, last_id, queue_id, how)
  VALUES (NEW.minute, NEW.token, NEW.id, NEW.id, NEW.queue_id, 0);
  UPDATE penstock_counter
     SET archived = NEW.archived, cursor = NEW.cursor, last_id = NEW.last_id, leased = NEW.leased, n_acked = NEW.n_acked,
         n_leased = NEW.n_leased, n_pushed = NEW.n_pushed, newest_at = NEW.newest_at, ready = NEW.ready
   WHERE queue_id = NEW.queue_id;
  INSERT OR REPLACE INTO penstock_journal (first_offset, records, bytes)
  SELECT NEW.first_offset, NEW.records, NEW.bytes WHERE NEW.records > 0;
END;
