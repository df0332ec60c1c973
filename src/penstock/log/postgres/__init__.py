"""Streams in PostgreSQL tables, with the same interface as those in files."""
