"""A push joins the application's own transaction, with every driver, sync and async."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest
import sqlalchemy as sa

import penstock
from penstock import InvalidInput, LiteQueue, Unsupported, WrongType, aio
from tests.conformance.support import eventually
from tests.integration.caller_connections import DRIVERS, AppConnection, AppDatabase, resolve
from tests.integration.serving import Running
from tests.postgres import cluster

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AppDatabase]:
    database = AppDatabase(request.param, tmp_path)
    yield database
    database.close()


EACH_DRIVER = pytest.mark.parametrize(
    ("database", "kind"), DRIVERS, ids=[f"{store}-{kind.__name__}" for store, kind in DRIVERS], indirect=["database"]
)


@asynccontextmanager
async def opened(kind: type[AppConnection], database: AppDatabase) -> AsyncIterator[tuple[AppConnection, Any]]:
    """Open a connection of the application, and yield it with the queue."""
    app = kind(database)
    await app.open()
    client: Any = aio.connect(database.url) if app.is_async else penstock.connect(database.url)
    try:
        yield app, client.queue("q")
    finally:
        await app.close()
        await resolve(client.close())


@pytest.fixture(autouse=True)
def unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow Django connections while an event loop runs."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


def ready(database: AppDatabase) -> int:
    """Return the number of messages that others can see, without a lock that an open transaction may hold."""
    with penstock.connect(database.url) as client:
        return client.queue("q").info().ready


def payloads(database: AppDatabase) -> list[Any]:
    with penstock.connect(database.url) as client:
        return [message.payload for message in client.queue("q").peek(100)]


@EACH_DRIVER
def test_a_push_commits_and_rolls_back_with_the_callers_transaction(
    database: AppDatabase, kind: type[AppConnection]
) -> None:

    async def use() -> None:
        async with opened(kind, database) as (app, queue):
            # The push comes first, so it begins the transaction with drivers that begin one implicitly.
            await app.begin()
            receipt = await resolve(queue.push("rolled back", key="k", conn=app.conn))
            assert not receipt.duplicate
            await app.execute(database.insert)
            await app.rollback()
            assert payloads(database) == database.rows() == []
            await app.begin()
            first, second = await resolve(queue.push_many(["first", "second"], conn=app.conn))
            assert second.id == first.id + 1
            await app.save()
            await resolve(queue.push("undone", conn=app.conn))
            await app.undo()
            await app.execute(database.insert)
            again = await resolve(queue.push("third", key="k", headers={"a": "b"}, conn=app.conn))
            assert not again.duplicate
            assert (ready(database), database.rows()) == (0, [])
            await app.commit()
            assert (payloads(database), database.rows()) == (["first", "second", "third"], [1])

    asyncio.run(use())


@EACH_DRIVER
def test_the_commit_wakes_a_waiting_poll(database: AppDatabase, kind: type[AppConnection]) -> None:

    async def use() -> None:
        with penstock.connect(database.url) as other, ThreadPoolExecutor(1) as pool:
            async with opened(kind, database) as (app, queue):
                here = asyncio.ensure_future(_wait_for(queue)) if app.is_async else None
                there = pool.submit(other.queue("q").lease, 1, wait=60)
                await app.begin()
                await resolve(queue.push_many(["a", "b"] if here else ["a"], conn=app.conn))
                await asyncio.sleep(0.1)
                assert not there.done()
                assert here is None or not here.done()
                await app.commit()
                found = [await asyncio.wrap_future(there), *([await here] if here else [])]
                assert sorted(message.payload for (message,) in found) == (["a", "b"] if here else ["a"])

    asyncio.run(use())


async def _wait_for(queue: Any) -> Any:
    return await queue.lease(1, wait=60)


def test_a_server_cannot_join_a_transaction(server: Running) -> None:
    with penstock.connect(f"http://127.0.0.1:{server.port}") as client:
        queue = client.create_queue("outbox")
        with pytest.raises(Unsupported, match="postgresql://"):
            queue.push(1, conn=sqlite3.connect(":memory:"))


def test_an_unsupported_connection_is_named_in_the_error(database: AppDatabase) -> None:
    async def use() -> None:
        sqlite: Any = await aiosqlite.connect(":memory:")
        psycopg_async: Any = await psycopg.AsyncConnection.connect(cluster().url)
        engine = sa.create_engine("sqlite://")
        async with aio.connect(database.url) as client:
            with penstock.connect(database.url) as in_threads:
                for conn in (sqlite, psycopg_async):
                    with pytest.raises(WrongType, match="asynchronous"):
                        in_threads.queue("q").push(1, conn=conn)
                for queue in (client.queue("q"), in_threads.queue("q")):
                    for conn, text in (
                        (object(), "connection, got object"),
                        (engine, "conn is SQLAlchemy's Engine, not a connection"),
                        ("postgresql://", "connection, got str"),
                    ):
                        with pytest.raises(WrongType, match=text):
                            await resolve(queue.push(1, conn=conn))
            with pytest.raises(InvalidInput):
                await client.queue("q").push(1, conn=sqlite)
            if database.kind == "sqlite":
                with pytest.raises(WrongType, match="a SQLite connection"):
                    await client.queue("q").push(1, conn=psycopg_async)
        await sqlite.close()
        await psycopg_async.close()

    asyncio.run(use())


def test_a_lite_queue_joins_a_transaction_of_sqlalchemy(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'lite.db'}")
    with LiteQueue(tmp_path / "lite.db") as lite:
        with engine.connect() as conn:
            lite.put(b"rolled back", conn=conn)
        with engine.begin() as conn:
            lite.put(b"kept", conn=conn)
        message = lite.pop()
        assert message is not None
        assert (message.data, lite.qsize()) == (b"kept", 0)
    engine.dispose()


WRITER = """
import random, sqlite3, sys
import penstock, psycopg
url, table, seed = sys.argv[1:]
chance = random.Random(int(seed))
if url.startswith("sqlite"):
    conn = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)
else:
    conn = psycopg.connect(url.partition("&schema")[0], application_name="writer")
queue = penstock.connect(url).queue("q")
for number in range(1_000_000):
    value = int(seed) * 1_000_000 + number
    conn.execute(f"INSERT INTO {table} VALUES ({value})")
    for _ in range(chance.randrange(3)):
        conn.execute("SAVEPOINT mine")
        queue.push(-1, conn=conn)
        conn.execute("ROLLBACK TO SAVEPOINT mine")
    queue.push(value, conn=conn, key=str(value), priority=chance.randrange(2), ttl=chance.choice([None, 600]))
    print(number, flush=True)
    if chance.random() < 0.3:
        conn.rollback()
    else:
        conn.commit()
"""


def test_under_load_and_kills_messages_match_committed_rows(database: AppDatabase) -> None:
    """Each message is pushed with a row in the application's table. At the end, messages and rows must match."""
    taken: list[int] = []
    stop = threading.Event()

    def consume() -> None:
        with penstock.connect(database.url) as client:
            queue = client.queue("q")
            while messages := queue.lease(20, wait=0.05) or not stop.is_set():
                if messages is not True:
                    taken.extend(message.payload for message in messages)
                    queue.ack_many(messages)

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    for each in consumers:
        each.start()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, database.url, f"{database.prefix}own", str(number)], stdout=subprocess.PIPE
        )
        for number in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None
        for _ in range(25):
            assert writer.stdout.readline()
        # The writer has pushed, and may or may not have committed.
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    if database.prefix:
        open_still = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'writer'"
        eventually(lambda: not database.query(open_still))
    eventually(lambda: len(taken) >= len(database.rows()))
    stop.set()
    for each in consumers:
        each.join()
    assert sorted(taken) == database.rows()
    assert len(taken) > 25


def test_recreating_an_equal_queue_does_not_wait_for_an_open_transaction(store: str) -> None:
    with penstock.connect(store) as client, psycopg.connect(store.partition("&schema=")[0]) as app:
        queue = client.create_queue("q", max_attempts=3)
        queue.push("in an open transaction", conn=app)
        with penstock.connect(store, retry_for=0) as other:
            assert other.create_queue("q", max_attempts=3).push("beside it").id
            other.create_queue("q", exist_ok=True)
