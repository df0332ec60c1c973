-- What happened, in order, until the log has it: each row holds the events of one commit, encoded as log records.
-- The newest row stays: it tells the next offset.
CREATE TABLE penstock_journal (
  first_offset INTEGER PRIMARY KEY,
  records      INTEGER NOT NULL,
  bytes        BLOB NOT NULL
) STRICT;
