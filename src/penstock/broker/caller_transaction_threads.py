"""Pushes on the caller's own connection, for programs without an event loop.

SQLAlchemy's and Django's connections are unwrapped to those of the driver below; neither library is imported for it.
"""

from __future__ import annotations

from typing import Any

from penstock.core.commands import Push
from penstock.core.model import PushReceipt
from penstock.errors import WrongType
from penstock.store.interface import Store

ASYNC_DRIVERS = ("aiosqlite", "asyncpg")
# Starts the transaction of SQLAlchemy and its driver adapter, without which their commit would do nothing.
BEGIN = "SELECT 1"


def push_on(store: Store, connection: Any, command: Push) -> list[PushReceipt]:
    """Push as part of the connection's transaction, which its owner commits or rolls back."""
    connection = driver_connection(connection)
    if is_async(connection):
        raise WrongType(
            f"conn is an asynchronous {type(connection).__name__}", field="conn", hint="use penstock.aio.connect"
        )
    return store.push_on(connection, command)


def driver_connection(connection: Any) -> Any:
    """Return the sqlite3 or psycopg connection below one of SQLAlchemy or Django; any other unchanged."""
    library = library_of(connection)
    if library == "django":
        connection.ensure_connection()
        return connection.connection
    if library != "sqlalchemy":
        return connection
    if hasattr(connection, "get_bind"):
        connection = connection.connection()  # A session's.
    if not hasattr(connection, "exec_driver_sql"):
        raise WrongType(
            f"conn is SQLAlchemy's {type(connection).__name__}, not a connection or a session",
            field="conn",
            hint="use engine.connect() or engine.begin()",
        )
    connection.exec_driver_sql(BEGIN)
    return connection.connection.driver_connection


def is_async(connection: Any) -> bool:
    return library_of(connection) in ASYNC_DRIVERS or hasattr(connection, "__aenter__")


def library_of(connection: Any) -> str:
    """Return the package of the connection's class, also for a subclass in an application."""
    packages = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
    known = (package for package in packages if package in ("sqlalchemy", "django", "psycopg", *ASYNC_DRIVERS))
    return next(known, packages[0])
