-- What each transaction did, as records of the journal that have no offset yet: written last, so that whoever saw what a
-- transaction did has a later number. Moved to the stream of the journal, in this order, as soon as they can be seen.
CREATE TABLE penstock.spool (
  seq  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  base bigint,                               -- the first id of messages that were pushed, where the records lack it
  data bytea NOT NULL
);
ALTER TABLE penstock.spool ALTER data SET STORAGE EXTERNAL;
ALTER TABLE penstock.spool SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                                autovacuum_vacuum_cost_delay = 0);
