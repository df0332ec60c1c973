-- How long messages waited (kind 0) and were worked on (kind 1), as counts per bucket in JSON.
CREATE TABLE penstock_latency (
  queue_id INTEGER NOT NULL REFERENCES penstock_queue (id),
  minute   INTEGER NOT NULL,
  kind     INTEGER NOT NULL,
  counts   TEXT NOT NULL,
  PRIMARY KEY (queue_id, minute, kind)
) STRICT, WITHOUT ROWID;
