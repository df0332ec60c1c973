"""Queues on one PostgreSQL, side by side."""
