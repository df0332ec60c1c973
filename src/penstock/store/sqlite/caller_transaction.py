"""Takes part in a transaction of the application, over the application's own connection to the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import InvalidInput, WrongType
from penstock.store.sqlite.connection import mapping_errors

SQLITE_DRIVERS = "use one of sqlite3 or aiosqlite, or of SQLAlchemy or Django over them"
TAKE_WRITE_LOCK = "UPDATE penstock_counter SET last_id = last_id WHERE queue_id = 0"


@contextmanager
def joined(connection: sqlite3.Connection, path: str) -> Iterator[None]:
    """Run statements in the caller's transaction, or in one of their own if there is none; undo them on an error."""
    if not isinstance(connection, sqlite3.Connection):
        raise WrongType(
            f"conn: expected a SQLite connection, got {type(connection).__name__}", field="conn", hint=SQLITE_DRIVERS
        )
    with mapping_errors(path), _plain_rows(connection):
        _check_same_file(connection, path)
        alone = not connection.in_transaction
        # Take the write lock first, so that what is read here is still true when it is written.
        connection.execute("BEGIN IMMEDIATE" if alone else TAKE_WRITE_LOCK)
        connection.execute("SAVEPOINT penstock")
        try:
            yield
            connection.execute("RELEASE penstock")
            if alone and _autocommits(connection):
                with mapping_errors(path, committing=True):
                    connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                for undo in ("ROLLBACK",) if alone else ("ROLLBACK TO penstock", "RELEASE penstock"):
                    connection.execute(undo)
            raise


@contextmanager
def _plain_rows(connection: sqlite3.Connection) -> Iterator[None]:
    """Read rows as plain tuples and text as str, whatever factories the caller has set on its connection."""
    chosen = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = chosen


def _autocommits(connection: sqlite3.Connection) -> bool:
    """Return True if the caller's connection is in autocommit mode, which Python 3.12 can set in two ways."""
    return connection.isolation_level is None or getattr(connection, "autocommit", None) is True


def _check_same_file(connection: sqlite3.Connection, path: str) -> None:
    (file,) = [row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main"]
    if not file or not Path(file).samefile(path):
        raise InvalidInput(
            f"conn is open on {file or 'a database in memory'}, not on {path}",
            field="conn",
            hint="open it with sqlite3.connect on the queue's own file",
        )
