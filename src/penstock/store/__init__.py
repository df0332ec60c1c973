"""Stores of messages: the interface, SQLite and PostgreSQL."""
