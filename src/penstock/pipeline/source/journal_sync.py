"""Drains committed events into the journal before a pipeline reads, in case no server does it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Protocol

from penstock.errors import CannotOpen
from penstock.journal.drainer import drain_once, journal_folder
from penstock.store.factory import POSTGRES


class Drainer(Protocol):
    def drain(self) -> None: ...

    def close(self) -> None: ...


def drainer_of(remote: str | None, database: Path) -> Drainer:
    """Return the drainer of a database or server if one is given, else of a SQLite file."""
    if remote is None:
        return _File(database)
    return _Database(remote) if remote.startswith(POSTGRES) else _Nothing()


class _File:
    def __init__(self, database: Path) -> None:
        self._database = database

    def drain(self) -> None:
        from penstock.store.sqlite import SqliteStore
        from penstock.store.sqlite.probe import check_penstock_database

        if self._database.exists():
            check_penstock_database(self._database)
            with closing(SqliteStore(self._database)) as store:
                drain_once(store, str(self._database))
        elif not journal_folder(self._database).exists():
            raise CannotOpen(
                f"file {self._database} does not exist", hint="pass a data folder with --data or a file with --db"
            )

    def close(self) -> None:
        """Do nothing: no connection stays open, because other processes may want to write."""


class _Database:
    def __init__(self, url: str) -> None:
        try:
            from penstock.journal.postgres import PostgresDrain
            from penstock.log.postgres.streams import PostgresStreams
        except ImportError as error:
            raise CannotOpen("psycopg is not installed", hint="pip install 'penstock-mq[postgres]'") from error
        self._streams = PostgresStreams(url)
        self._drain = PostgresDrain(self._streams.database)

    def drain(self) -> None:
        self._drain.drain()

    def close(self) -> None:
        self._streams.close()


class _Nothing:
    """Drains nothing: a server drains its own journal."""

    def drain(self) -> None:
        pass

    def close(self) -> None:
        pass
