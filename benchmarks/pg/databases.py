"""Runs one PostgreSQL with default settings for all systems, and creates a database per round."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests.postgres import Cluster

# The first is PostgreSQL's default; the second allows a connection per client.
SETTINGS = {"shared_buffers": "128MB", "max_connections": "200"}


class Databases:
    def __init__(self) -> None:
        self.cluster = Cluster(synced=True, **SETTINGS)

    @property
    def version(self) -> str:
        with psycopg.connect(self.cluster.url) as connection:
            row = connection.execute("SHOW server_version").fetchone()
        return str(row[0]).split()[0] if row else "unknown"

    def url(self, name: str) -> str:
        return urlunsplit(urlsplit(self.cluster.url)._replace(path=f"/{name}"))

    def create(self, name: str) -> str:
        self._do(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)', f'CREATE DATABASE "{name}"', "CHECKPOINT")
        return self.url(name)

    def drop(self, name: str) -> None:
        self._do(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def settle(self, name: str) -> None:
        """Run VACUUM, ANALYZE and a checkpoint, so that the database is like one in long use."""
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")

    def _do(self, *statements: str) -> None:
        with psycopg.connect(self.cluster.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def remove(self) -> None:
        self.cluster.remove()
