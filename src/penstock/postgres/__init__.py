"""Access to PostgreSQL: connections, pipelining, notifications, schema."""
