"""Streams in tables of PostgreSQL, behind the same protocol as those in files."""

from penstock.log.postgres.streams import PostgresStreams

__all__ = ["PostgresStreams"]
