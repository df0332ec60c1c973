CREATE TABLE penstock.stream_key (
  id         text PRIMARY KEY,
  stream     text NOT NULL,
  name       text NOT NULL,
  hash       bytea NOT NULL,
  rights     text NOT NULL,
  created_at bigint NOT NULL
);
CREATE INDEX stream_key_stream ON penstock.stream_key (stream);
