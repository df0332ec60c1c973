"""Opens the store that a URL or path names, importing its modules only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from penstock.errors import CannotOpen

if TYPE_CHECKING:
    from penstock.log.interface import Streams
    from penstock.store.postgres import PostgresStore
    from penstock.store.sqlite import SqliteStore

Durability = Literal["full", "relaxed"]
POSTGRES = ("postgresql://", "postgres://")
BUSY_MS = 30_000


def open_store(
    where: str, *, durability: Durability = "full", busy_ms: int = BUSY_MS, journal: bool | None = None
) -> SqliteStore | PostgresStore:
    """Open a PostgreSQL database by its URL, or a SQLite file by its path."""
    if where.startswith(POSTGRES):
        return open_postgres(where, durability=durability, busy_ms=busy_ms, journal=journal)
    from penstock.store.sqlite import SqliteStore

    return SqliteStore(where, durability=durability, busy_ms=busy_ms, journal=journal)


def open_streams(where: str, *, durability: Durability = "full", busy_ms: int = BUSY_MS) -> Streams:
    """Open the streams in a database, or beside a SQLite file. Only a database uses `durability`."""
    if not where.startswith(POSTGRES):
        from penstock.log.streams import FileStreams, streams_beside

        return FileStreams(streams_beside(where))
    try:
        from penstock.log.postgres.streams import PostgresStreams
    except ImportError as error:
        raise CannotOpen("psycopg is not installed", hint="pip install 'penstock-mq[postgres]'") from error
    return PostgresStreams(where, durability=durability, busy_ms=busy_ms)


def open_postgres(
    url: str,
    *,
    durability: Durability = "full",
    busy_ms: int = BUSY_MS,
    connections: int | None = None,
    journal: bool | None = None,
) -> PostgresStore:
    try:
        from penstock.store.postgres import PostgresStore
        from penstock.store.postgres.store import CONNECTIONS
    except ImportError as error:
        raise CannotOpen("psycopg is not installed", hint="pip install 'penstock-mq[postgres]'") from error
    return PostgresStore(
        url, durability=durability, busy_ms=busy_ms, connections=connections or CONNECTIONS, journal=journal
    )
