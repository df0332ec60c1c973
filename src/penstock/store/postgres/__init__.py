"""The PostgreSQL store."""

from penstock.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
