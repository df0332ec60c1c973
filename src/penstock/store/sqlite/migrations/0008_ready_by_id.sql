-- Finds the oldest message that waits, whatever its priority and however often it was retried.
CREATE INDEX penstock_ready_by_id ON penstock_ready (queue_id, id);
