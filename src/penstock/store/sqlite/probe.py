"""Checks whether a file is a Penstock database without changing it; opening it as a store would create the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from penstock.errors import CannotOpen
from penstock.store.sqlite.schema import has_journal, schema_version


def is_penstock_database(path: Path) -> bool:
    """Return True if the file contains the tables of Penstock."""
    with _open_read_only(path) as connection:
        return schema_version(connection) > 0


def keeps_journal(path: Path) -> bool:
    with _open_read_only(path) as connection:
        return has_journal(connection)


def check_penstock_database(path: Path) -> None:
    with suppress(sqlite3.Error):  # The real open reports a better error.
        if not is_penstock_database(path):
            raise CannotOpen(f"{path} is not a Penstock database", hint="check the path")


@contextmanager
def _open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    # Without a log there is no writer, and with immutable=1 SQLite creates no files beside the database.
    used = any(path.with_name(path.name + suffix).exists() for suffix in ("-wal", "-journal"))
    how = "mode=ro" if used else "immutable=1"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as connection:
        yield connection
