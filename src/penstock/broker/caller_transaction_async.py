"""Pushes on the caller's own connection, of a synchronous or an asynchronous driver."""

from __future__ import annotations

from typing import Any

from penstock.broker.caller_transaction_threads import BEGIN, driver_connection, is_async, library_of
from penstock.core.commands import Push
from penstock.core.model import PushReceipt
from penstock.store.interface import PushesByStatement, Store


async def push_on(store: Store, connection: Any, command: Push) -> list[PushReceipt]:
    """Push as part of the connection's transaction, which its owner commits or rolls back.

    On a connection of a synchronous driver this waits as the driver does, and blocks the event loop meanwhile.
    """
    if library_of(connection) == "sqlalchemy" and hasattr(connection, "__aenter__"):
        connection = await _sqlalchemy(connection)
    if not is_async(connection):
        connection = driver_connection(connection)
    elif library_of(connection) == "aiosqlite":
        # Run in the connection's own thread, in order with its other statements.
        receipts: list[PushReceipt] = await connection._execute(store.push_on, connection._conn, command)
        return receipts
    if not is_async(connection) or not isinstance(store, PushesByStatement):
        return store.push_on(connection, command)
    statement = store.push_statement(command)
    try:
        if library_of(connection) == "asyncpg":
            answer = await connection.fetchval(statement.sql, *statement.params)
        else:
            answer = await _psycopg(connection, statement.sql, statement.params)
    except Exception as error:
        raise store.driver_error(error) from error
    return store.pushed(command, answer)


async def _sqlalchemy(connection: Any) -> Any:
    if hasattr(connection, "get_bind"):
        connection = await connection.connection()  # A session's.
    await connection.exec_driver_sql(BEGIN)
    return (await connection.get_raw_connection()).driver_connection


async def _psycopg(connection: Any, sql: str, params: tuple[Any, ...]) -> Any:
    from psycopg import AsyncRawCursor  # It is installed, or there would be no such connection.
    from psycopg.rows import scalar_row

    async with AsyncRawCursor(connection, row_factory=scalar_row) as cursor:
        await cursor.execute(sql.encode(), params)
        return await cursor.fetchone()
