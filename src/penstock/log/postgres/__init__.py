"""Streams in tables of PostgreSQL, behind the same protocol as those in files."""
