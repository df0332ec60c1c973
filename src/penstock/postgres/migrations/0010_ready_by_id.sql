-- Finds the oldest message that waits, whatever its priority and however often it was retried.
CREATE INDEX ready_by_id ON penstock.ready (queue_id, id);
