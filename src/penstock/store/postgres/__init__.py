"""Stores queues in a PostgreSQL database."""

from penstock.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
