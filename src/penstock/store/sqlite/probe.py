"""Whose file is this? Looked at without a change to it: opened as Penstock's, a file of another's would become one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from penstock.errors import CannotOpen
from penstock.store.sqlite.schema import has_journal, schema_version


def is_penstock_database(path: Path) -> bool:
    """Whether it holds Penstock's tables."""
    with _looking(path) as connection:
        return schema_version(connection) > 0


def keeps_journal(path: Path) -> bool:
    with _looking(path) as connection:
        return has_journal(connection)


def check_penstock_database(path: Path) -> None:
    with suppress(sqlite3.Error):  # Whoever opens it in earnest says better what is wrong.
        if not is_penstock_database(path):
            raise CannotOpen(f"{path} holds no queues of Penstock's", hint="is this the right file?")


@contextmanager
def _looking(path: Path) -> Iterator[sqlite3.Connection]:
    # Where SQLite has no log there is no writer, and without that it need make no files to read.
    used = any(path.with_name(path.name + suffix).exists() for suffix in ("-wal", "-journal"))
    how = "mode=ro" if used else "immutable=1"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as connection:
        yield connection
