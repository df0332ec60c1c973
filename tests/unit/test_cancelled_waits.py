"""A cancelled wait ends, even if the cancellation arrives together with the event.

A server that stops cancels its background tasks. If one of them lost its cancellation, the server would never exit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.events import Subscription
from penstock.server.journal_drainer import JournalDrainer
from penstock.server.log_waiters import LogWaiters
from penstock.server.telemetry import LogLines, Metrics
from penstock.store.factory import open_streams
from penstock.store.sqlite import SqliteStore

# Turns of the event loop until a wake-up has reached the waiting task.
TURNS = 6

Waiting = tuple[asyncio.Task[Any], Callable[[], Any]]


@asynccontextmanager
async def a_listener(path: Path) -> AsyncIterator[Waiting]:
    subscription = Subscription()

    async def listen() -> None:
        while True:
            await subscription.next(3_600)

    yield asyncio.create_task(listen()), lambda: subscription.put(("pushed", {}))


@asynccontextmanager
async def the_journal(path: Path) -> AsyncIterator[Waiting]:
    broker = Broker(SqliteStore(path / "queue.db"))
    keeper = JournalDrainer(broker, lambda: None, Metrics(broker), LogLines())
    yield asyncio.create_task(keeper.run()), keeper.drain_now
    await keeper.finish()
    await broker.close()


@asynccontextmanager
async def a_stream(path: Path) -> AsyncIterator[Waiting]:
    streams = open_streams(str(path / "queue.db"), durability="full", busy_ms=1_000)
    streams.create("s")
    # Appends by the writer's own process are notified instead of polled.
    streams.append("s", [b"x"])
    waiters = LogWaiters(streams, asyncio.to_thread)

    async def read() -> None:
        offset = 1
        while True:
            await waiters.wait("s", offset, 3_600)
            offset += 1

    yield asyncio.create_task(read()), lambda: streams.append("s", [b"x"])
    waiters.close()
    streams.close()


@pytest.mark.parametrize("turns", range(TURNS))
@pytest.mark.parametrize("waits", [a_listener, the_journal, a_stream])
def test_a_cancellation_is_never_lost(waits: Any, turns: int, tmp_path: Path) -> None:
    async def wake_and_cancel() -> bool:
        async with waits(tmp_path) as (task, wake):
            await asyncio.sleep(0.2)
            wake()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,), timeout=10)
            left = bool(task.done())
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return left

    assert asyncio.run(wake_and_cancel())
