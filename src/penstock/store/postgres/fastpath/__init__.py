"""Push, lease and ack as one call of a function inside the database."""
