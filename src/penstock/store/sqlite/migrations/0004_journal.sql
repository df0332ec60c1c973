-- What happened, in order, until the log has it: each row holds the events of one commit, encoded as log records.
-- The newest row stays: it tells the next offset.
CREATE TABLE penstock_journal (
  first_offset INTEGER PRIMARY KEY,
  events       INTEGER NOT NULL,
  records      BLOB NOT NULL
) STRICT;
