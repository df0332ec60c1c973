"""Stores queues in one SQLite file."""

from penstock.store.sqlite.store import Durability, SqliteStore

__all__ = ["Durability", "SqliteStore"]
