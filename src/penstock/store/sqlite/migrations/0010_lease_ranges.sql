-- A lease of several plain messages in their first delivery. It covers every plain message of its queue from first_id to
-- last_id; the ids between that belong to other queues or lanes are not part of it. A range has at least one message.
-- Whatever ends the lease of one of its messages alone splits the range there.
--
-- The table of all other leases is renamed: a process of an older version that has the file open would not see the
-- ranges and lease their messages again. Now it gets an error.
ALTER TABLE penstock_lease RENAME TO penstock_single_lease;

CREATE TABLE penstock_lease_range (
  queue_id     INTEGER NOT NULL REFERENCES penstock_queue (id),
  leased_until INTEGER NOT NULL,
  first_id     INTEGER NOT NULL,
  last_id      INTEGER NOT NULL,
  token        BLOB NOT NULL,
  leased_at    INTEGER NOT NULL,
  worker       TEXT,
  PRIMARY KEY (queue_id, leased_until, first_id)
) STRICT, WITHOUT ROWID;

-- Every leased message, however its lease is stored. A place is queue_id << 45 | id for a plain message.
CREATE VIEW penstock_leased AS
SELECT queue_id, leased_until, id, place, token, leased_at, attempts, first_leased_at, expires_at, from_dead, extended, worker
  FROM penstock_single_lease
UNION ALL
SELECT r.queue_id, r.leased_until, m.place & 17592186044415, m.place, r.token, r.leased_at, 1, r.leased_at, NULL, 0, 0, r.worker
  FROM penstock_lease_range r
 CROSS JOIN penstock_message m ON m.place BETWEEN r.queue_id << 45 | r.first_id AND r.queue_id << 45 | r.last_id;
