"""How far ahead a worker prefetches messages, and which of them it releases, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.client._async import prefetcher as module
from penstock.client._async.message import LeasedMessage
from penstock.client._async.prefetcher import Prefetcher
from penstock.client.stop import StopSignal
from penstock.core.model import Content, Delivery

pytestmark = pytest.mark.timeout(20)
LEASE_MS = 30_000


class Queue:
    """A queue that answers leases, endless by default, and records the limits and the released messages."""

    def __init__(self, payload_bytes: int = 1, last_id: int = 1 << 30) -> None:
        self.payload = bytes(payload_bytes)
        self.last_id = last_id
        self.limits: list[int] = []
        self.released: list[int] = []
        self.next_id = 1

    async def lease(self, limit: int, wait: bool) -> list[LeasedMessage]:
        self.limits.append(limit)
        await asyncio.sleep(3600 if wait and self.next_id > self.last_id else 0)
        first, self.next_id = self.next_id, min(self.next_id + limit, self.last_id + 1)
        return [self.message(number) for number in range(first, self.next_id)]

    def message(self, number: int) -> LeasedMessage:
        client: Any = None
        delivery = Delivery(
            id=number,
            uuid_source="",
            queue="q",
            payload=self.payload,
            content=Content.BYTES,
            priority=0,
            attempts=1,
            created_at=0,
            leased_until=0,
            token="t",
        )
        return LeasedMessage(client, delivery)

    async def release(self, messages: list[LeasedMessage]) -> None:
        self.released += [message.id for message in messages]


def prefetching(
    queue: Queue,
    use: Callable[[Prefetcher], Awaitable[None]],
    *,
    lanes: int = 1,
    lease_ms: int = LEASE_MS,
    prefetch: int = 100,
) -> None:
    async def main() -> None:
        stop = StopSignal()
        prefetcher = Prefetcher(queue.lease, queue.release, lanes=lanes, lease_ms=lease_ms, prefetch=prefetch)
        running = asyncio.ensure_future(prefetcher.run(stop))
        await use(prefetcher)
        stop.set()
        if queue.next_id > queue.last_id:
            running.cancel()  # Cancel the run, as a stop ends a long poll.
        await asyncio.wait([running])
        assert await prefetcher.take() is None

    asyncio.run(main())


async def handle(prefetcher: Prefetcher, count: int, seconds: float) -> list[int]:
    handled = []
    for _ in range(count):
        message = await prefetcher.take()
        assert message is not None
        prefetcher.finished(message, seconds)
        handled.append(message.id)
    return handled


def test_a_fast_handler_gets_messages_in_order_and_in_batches() -> None:
    queue = Queue()

    async def use(prefetcher: Prefetcher) -> None:
        assert await handle(prefetcher, 1_000, 0.000_1) == list(range(1, 1_001))

    prefetching(queue, use)
    assert queue.limits[0] == 1
    assert max(queue.limits) <= 101
    assert len(queue.limits) < 30


def test_a_slow_handler_leases_only_what_it_starts() -> None:
    queue = Queue()
    prefetching(queue, lambda prefetcher: _ignore(handle(prefetcher, 20, 1.0)))
    assert set(queue.limits) == {1}
    assert queue.released == []


def test_one_slow_message_ends_prefetching_at_once() -> None:
    queue = Queue()

    async def use(prefetcher: Prefetcher) -> None:
        await handle(prefetcher, 50, 0.000_1)
        await handle(prefetcher, 1, 5.0)
        buffered = queue.next_id - 52
        await handle(prefetcher, buffered, 5.0)
        before = len(queue.limits)
        await handle(prefetcher, 5, 5.0)
        assert set(queue.limits[before:]) == {1}

    prefetching(queue, use)


def test_more_lanes_prefetch_more() -> None:
    queue = Queue()
    prefetching(queue, lambda prefetcher: _ignore(handle(prefetcher, 100, 0.1)), lanes=8)
    assert max(queue.limits) == 8 + 1  # Eight messages are prefetched, and one goes to the waiting lane.


def test_no_prefetch_leases_only_what_starts() -> None:
    queue = Queue()
    prefetching(queue, lambda prefetcher: _ignore(handle(prefetcher, 20, 0.0)), prefetch=0)
    assert set(queue.limits) == {1}


def test_the_buffer_is_bounded_by_bytes() -> None:
    queue = Queue(payload_bytes=1 << 20)
    prefetching(queue, lambda prefetcher: _ignore(handle(prefetcher, 50, 0.0)))
    assert max(queue.limits) <= 5


def test_messages_not_started_in_time_are_released_and_not_leased_again() -> None:
    queue = Queue()

    async def use(prefetcher: Prefetcher) -> None:
        handled = await handle(prefetcher, 10, 0.000_1)
        while not queue.released:
            await asyncio.sleep(0.005)
        assert queue.released == list(range(handled[-1] + 1, queue.next_id))
        lease_count = len(queue.limits)
        await asyncio.sleep(0.15)
        assert len(queue.limits) == lease_count

    prefetching(queue, use, lease_ms=200)


def test_messages_are_released_in_time_although_the_queue_is_empty() -> None:
    queue = Queue(last_id=50)

    async def use(prefetcher: Prefetcher) -> None:
        handled = await handle(prefetcher, 40, 0.000_1)
        while len(queue.released) < 10:
            await asyncio.sleep(0.005)
        assert queue.released == list(range(handled[-1] + 1, 51))

    prefetching(queue, use, lease_ms=200)


def test_an_empty_queue_is_polled_again_only_when_the_buffer_is_empty() -> None:
    queue = Queue(last_id=50)
    prefetching(queue, lambda prefetcher: _ignore(handle(prefetcher, 50, 0.000_1)))
    assert len(queue.limits) <= 4


def test_a_stop_releases_messages_that_were_not_started() -> None:
    queue = Queue()

    async def use(prefetcher: Prefetcher) -> None:
        await handle(prefetcher, 10, 0.000_1)
        while queue.next_id < 60:
            await asyncio.sleep(0.001)

    prefetching(queue, use)
    assert queue.released == list(range(11, queue.next_id))


def test_a_message_with_an_expired_lease_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()

    async def use(prefetcher: Prefetcher) -> None:
        await handle(prefetcher, 10, 0.000_1)
        while queue.next_id < 60:
            await asyncio.sleep(0.001)
        later = module.time.monotonic() + LEASE_MS / 1000 + 1
        monkeypatch.setattr(module.time, "monotonic", lambda: later)
        old = queue.next_id
        message = await prefetcher.take()
        assert message is not None
        assert message.id >= old

    try:
        prefetching(queue, use)
    finally:
        monkeypatch.undo()


async def _ignore(result: Awaitable[object]) -> None:
    await result
