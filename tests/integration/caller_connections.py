"""The drivers and libraries whose connections a push accepts, each used as its documentation shows."""

from __future__ import annotations

import inspect
import itertools
import sqlite3
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import django
import psycopg
import sqlalchemy as sa
from django.conf import settings
from django.db import connections, transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import penstock
from tests.postgres import cluster, drop_schema, new_schema

TABLE = "CREATE TABLE IF NOT EXISTS {}own (id int)"
_aliases = itertools.count()


async def resolve(value: Any) -> Any:
    """Return the result of a call, awaiting it if necessary."""
    return await value if inspect.isawaitable(value) else value


class AppDatabase:
    """A file or database with a queue and a table of the application."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.path = folder / "own.db"
        self.url, self.prefix = f"sqlite:///{self.path}", ""
        if kind == "postgres":
            self._schema = new_schema()
            self.url, self.prefix = f"{cluster().url}&schema={self._schema}", f"{self._schema}."
        with penstock.connect(self.url) as client:
            client.create_queue("q")
        self.query(TABLE.format(self.prefix))

    def query(self, sql: str) -> list[Any]:
        connection: Any = psycopg.connect(cluster().url) if self.prefix else sqlite3.connect(self.path)
        with connection:
            cursor = connection.execute(sql)
            rows = cursor.fetchall() if cursor.description else []
        connection.close()
        return rows

    def rows(self) -> list[int]:
        return sorted(number for (number,) in self.query(f"SELECT id FROM {self.prefix}own"))

    def close(self) -> None:
        if self.prefix:
            drop_schema(self._schema)

    @property
    def insert(self) -> str:
        return f"INSERT INTO {self.prefix}own VALUES (1)"


class AppConnection:
    """A connection of the application, and its transactions."""

    is_async = False
    conn: Any

    def __init__(self, database: AppDatabase) -> None:
        self.database = database
        self.stack = AsyncExitStack()

    async def open(self) -> None: ...

    async def begin(self) -> None: ...

    async def execute(self, sql: str) -> None:
        await resolve(self.conn.execute(sql))

    async def save(self) -> None:
        await self.execute("SAVEPOINT mine")

    async def undo(self) -> None:
        await self.execute("ROLLBACK TO SAVEPOINT mine")

    async def commit(self) -> None:
        await resolve(self.conn.commit())

    async def rollback(self) -> None:
        await resolve(self.conn.rollback())

    async def close(self) -> None:
        await resolve(self.conn.close())
        await self.stack.aclose()


class Sqlite3(AppConnection):
    async def open(self) -> None:
        self.conn = sqlite3.connect(self.database.path)


class AioSqlite(AppConnection):
    is_async = True

    async def open(self) -> None:
        self.conn = await aiosqlite.connect(self.database.path)


class Psycopg(AppConnection):
    async def open(self) -> None:
        self.conn = psycopg.connect(cluster().url)


class PsycopgAsync(AppConnection):
    is_async = True

    async def open(self) -> None:
        self.conn = await psycopg.AsyncConnection.connect(cluster().url)


class Asyncpg(AppConnection):
    is_async = True

    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(user="postgres", database="postgres", host=str(cluster().folder))
        self.conn = await self.pool.acquire()

    async def begin(self) -> None:
        self.transaction = self.conn.transaction()
        await self.transaction.start()

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()

    async def close(self) -> None:
        await self.pool.release(self.conn)
        await self.pool.close()


class SqlAlchemy(AppConnection):
    """SQLAlchemy with its default dialect; the first use of a connection begins a transaction."""

    sqlite, postgres = "sqlite", "postgresql+psycopg"

    @property
    def engine_url(self) -> str:
        if self.database.kind == "sqlite":
            return f"{self.sqlite}:///{self.database.path}"
        return f"{self.postgres}://postgres@/postgres?host={cluster().folder}"

    async def open(self) -> None:
        self.engine = sa.create_engine(self.engine_url)
        self.conn = self.engine.connect()

    async def execute(self, sql: str) -> None:
        await resolve(self.conn.execute(sa.text(sql)))

    async def save(self) -> None:
        self.nested = await resolve(self.conn.begin_nested())

    async def undo(self) -> None:
        await resolve(self.nested.rollback())

    async def close(self) -> None:
        await resolve(self.conn.close())
        await resolve(self.engine.dispose())


class SqlAlchemySession(SqlAlchemy):
    async def open(self) -> None:
        self.engine = sa.create_engine(self.engine_url)
        self.conn = Session(self.engine)


class SqlAlchemyAsync(SqlAlchemy):
    is_async = True
    sqlite, postgres = "sqlite+aiosqlite", "postgresql+asyncpg"

    async def open(self) -> None:
        self.engine = create_async_engine(self.engine_url)
        self.conn = await self.engine.connect()


class SqlAlchemyPsycopgAsync(SqlAlchemyAsync):
    postgres = "postgresql+psycopg"


class SqlAlchemyAsyncSession(SqlAlchemyAsync):
    async def open(self) -> None:
        self.engine = create_async_engine(self.engine_url)
        self.conn = AsyncSession(self.engine)


class Django(AppConnection):
    async def open(self) -> None:
        if not settings.configured:
            settings.configure(DATABASES={})
            django.setup()
        self.alias = f"own{next(_aliases)}"
        engine = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(self.database.path)}
        if self.database.kind == "postgres":
            engine = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres"}
            engine["HOST"] = str(cluster().folder)
        connections.settings |= connections.configure_settings({"default": {}, self.alias: engine})
        self.conn = connections[self.alias]

    async def begin(self) -> None:
        self.atomic = transaction.atomic(using=self.alias)
        self.atomic.__enter__()

    async def execute(self, sql: str) -> None:
        with self.conn.cursor() as cursor:
            cursor.execute(sql)

    async def save(self) -> None:
        self.nested = transaction.atomic(using=self.alias)
        self.nested.__enter__()

    async def undo(self) -> None:
        self.nested.__exit__(KeyError, KeyError(), None)

    async def commit(self) -> None:
        self.atomic.__exit__(None, None, None)

    async def rollback(self) -> None:
        self.atomic.__exit__(KeyError, KeyError(), None)


SQLITE = [Sqlite3, AioSqlite, SqlAlchemy, SqlAlchemySession, SqlAlchemyAsync, SqlAlchemyAsyncSession, Django]
POSTGRES = [
    Psycopg,
    PsycopgAsync,
    Asyncpg,
    SqlAlchemy,
    SqlAlchemySession,
    SqlAlchemyAsync,
    SqlAlchemyPsycopgAsync,
    SqlAlchemyAsyncSession,
    Django,
]
DRIVERS = [("sqlite", kind) for kind in SQLITE] + [("postgres", kind) for kind in POSTGRES]
