-- Which tokens settled which messages in the last minutes, and how, so that a repeated request gets the first one's answer.
-- One row for each run of ids that one token settled in one transaction.
CREATE TABLE penstock_settled (
  minute   INTEGER NOT NULL,
  token    BLOB NOT NULL,
  first_id INTEGER NOT NULL,
  last_id  INTEGER NOT NULL,
  queue_id INTEGER NOT NULL,
  how      INTEGER NOT NULL,       -- 0 acked, 1 released, 2 and more nacked: where to
  PRIMARY KEY (minute, token, first_id)
) STRICT, WITHOUT ROWID;

-- A lease that was extended in the future, before the clock was set back, is over.
ALTER TABLE penstock_extension ADD COLUMN extended_at INTEGER;
