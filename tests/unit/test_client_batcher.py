"""Batched calls and shared polls, without a network."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from penstock.client._async.batcher import Attempt, RequestBatcher
from penstock.client._async.poller import Poller
from penstock.client._sync.batcher import Attempt as ThreadAttempt
from penstock.client._sync.batcher import RequestBatcher as ThreadBatcher
from penstock.client.stop import StopSignal
from penstock.client.transport_errors import Interrupt
from penstock.core.model import Content, Delivery


def message(number: int) -> Delivery:
    return Delivery(
        id=number,
        uuid_source=1,
        queue="q",
        payload=b"",
        content=Content.BYTES,
        priority=0,
        attempts=1,
        created_at=0,
        leased_until=0,
        token="t",
    )


class Server:
    """A server that answers polls from a list. A waiting poll is answered when a message arrives."""

    def __init__(self) -> None:
        self.ready: list[int] = []
        self.polls: list[tuple[int, float]] = []
        self.back: list[int] = []
        self.changed = asyncio.Event()

    def push(self, *numbers: int) -> None:
        self.ready += numbers
        self.changed.set()

    async def poll(self, limit: int, wait: float, interrupt: Interrupt | None) -> list[Delivery]:
        self.polls.append((limit, wait))
        if interrupt is not None:
            interrupt.arm(self.changed.set)
        await asyncio.sleep(0.001)
        if not self.ready and wait:
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), wait)
            except TimeoutError:
                return []
            if interrupt is not None and interrupt.triggered:
                raise ConnectionError("interrupted")
        taken, self.ready = self.ready[:limit], self.ready[limit:]
        return [message(number) for number in taken]

    async def release(self, messages: list[Delivery]) -> None:
        self.back += [each.id for each in messages]
        self.push(*[each.id for each in messages])


async def run_pending_tasks() -> None:
    for _ in range(5):
        await asyncio.sleep(0.002)


def test_waiting_callers_share_polls_and_never_lease_more_than_requested() -> None:
    async def main() -> None:
        server = Server()
        poller = Poller(server.poll, server.release)
        calls = [asyncio.ensure_future(poller.lease(1, 5, None)) for _ in range(10)]
        await run_pending_tasks()
        assert server.polls[0][0] == 10
        server.push(*range(1, 8))
        await run_pending_tasks()
        assert sum(call.done() for call in calls) == 7
        assert server.polls[-1][0] == 3
        server.push(8, 9, 10)
        got = [each.id for call in calls for each in await call]
        assert got == list(range(1, 11)), "first come, first served"
        assert server.back == []

    asyncio.run(main())


def test_a_later_poll_checks_once_and_waits_behind_earlier_ones() -> None:
    async def main() -> None:
        server = Server()
        poller = Poller(server.poll, server.release)
        first = asyncio.ensure_future(poller.lease(1, 5, None))
        await run_pending_tasks()
        second = asyncio.ensure_future(poller.lease(1, 0.05, None))
        third = asyncio.ensure_future(poller.lease(1, 5, None))
        assert await second == []
        assert [wait for _, wait in server.polls].count(0.0) == 1
        server.push(1)
        assert [each.id for each in await first] == [1]
        server.push(2)
        assert [each.id for each in await third] == [2]

    asyncio.run(main())


def test_a_message_for_a_disconnected_poll_goes_to_the_next() -> None:
    async def main() -> None:
        server = Server()
        poller = Poller(server.poll, server.release)
        calls = [asyncio.ensure_future(poller.lease(1, 5, None)) for _ in range(3)]
        await run_pending_tasks()
        calls[0].cancel()
        await run_pending_tasks()
        server.push(1, 2, 3)
        got = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(got[0], asyncio.CancelledError)
        assert [each.id for call in got[1:] for each in call] == [1, 2]
        await run_pending_tasks()
        assert server.back == [3]

    asyncio.run(main())


def test_a_poll_without_waiting_callers_is_ended() -> None:
    async def main() -> None:
        server = Server()
        poller = Poller(server.poll, server.release)
        stop = StopSignal()
        cancelled = asyncio.ensure_future(poller.lease(1, 500, None))
        stopped = asyncio.ensure_future(poller.lease(1, 500, stop))
        await run_pending_tasks()
        cancelled.cancel()
        stop.set()
        assert await stopped == []
        await run_pending_tasks()
        assert poller.idle
        assert await poller.lease(1, 500, stop) == []

    asyncio.run(main())


def test_an_error_of_a_poll_is_raised_in_every_caller_it_covers() -> None:
    async def main() -> None:
        async def poll(limit: int, wait: float, interrupt: Interrupt | None) -> list[Delivery]:
            await asyncio.sleep(0.001)
            raise ConnectionError("down")

        poller = Poller(poll, Server().release)
        got = await asyncio.gather(*(poller.lease(1, 5, None) for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in got] == [ConnectionError] * 3
        assert len({id(each) for each in got}) == 3, "each caller has its own traceback"
        assert poller.idle

    asyncio.run(main())


def test_each_joined_call_gets_its_own_result_or_error() -> None:
    async def main() -> None:
        batches = []

        on_its_way, go_on = asyncio.Event(), asyncio.Event()

        async def send(entries: list[int], attempt: Attempt) -> list[Any]:
            batches.append(entries)
            on_its_way.set()
            await go_on.wait()
            return [ValueError(str(each)) if each == 3 else each * 10 for each in entries]

        batcher: RequestBatcher[int, int] = RequestBatcher(send, weigh=lambda _: 1, weight_max=4)
        calls = [asyncio.ensure_future(batcher.join(0))]
        await on_its_way.wait()
        calls += [asyncio.ensure_future(batcher.join(number)) for number in range(1, 8)]
        await asyncio.sleep(0)
        go_on.set()
        got = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(each) for each in got] == ["0", "10", "20", "3", "40", "50", "60", "70"]
        assert batches == [[0], [1, 2, 3, 4], [5, 6, 7]], "calls gather while a request is in flight, up to the limit"
        assert batcher.idle

    asyncio.run(main())


def test_a_call_cancelled_before_the_request_is_not_sent() -> None:
    async def main() -> None:
        batches = []
        orphans = []

        on_its_way, go_on = asyncio.Event(), asyncio.Event()

        async def send(entries: list[int], attempt: Attempt) -> list[Any]:
            batches.append(entries)
            on_its_way.set()
            await go_on.wait()
            return entries

        async def orphaned(result: int) -> None:
            orphans.append(result)

        batcher: RequestBatcher[int, int] = RequestBatcher(send, weigh=lambda _: 1, weight_max=100, orphaned=orphaned)
        calls = [asyncio.ensure_future(batcher.join(0))]
        await on_its_way.wait()
        calls += [asyncio.ensure_future(batcher.join(number)) for number in (1, 2)]
        await asyncio.sleep(0)
        calls[0].cancel()
        calls[1].cancel()
        await asyncio.sleep(0)
        go_on.set()
        assert await calls[2] == 2
        assert batches == [[0], [2]]
        assert orphans == [0]
        assert batcher.idle

    asyncio.run(main())


def test_threads_share_requests_as_coroutines_do() -> None:
    batches = []
    first_is_on_its_way, go_on = threading.Event(), threading.Event()

    def send(entries: list[int], attempt: ThreadAttempt) -> list[Any]:
        batches.append(entries)
        if len(batches) == 1:
            first_is_on_its_way.set()
            assert go_on.wait(20)
        return [ValueError() if each == 3 else each * 10 for each in entries]

    batcher: ThreadBatcher[int, int] = ThreadBatcher(send, weigh=lambda _: 1, weight_max=100)
    results: dict[int, Any] = {}

    def join(number: int) -> None:
        try:
            results[number] = batcher.join(number)
        except ValueError:
            results[number] = "error"

    threads = [threading.Thread(target=join, args=(number,)) for number in range(20)]
    threads[0].start()
    assert first_is_on_its_way.wait(20)
    for thread in threads[1:]:
        thread.start()
    while len(batcher._waiting) < 19:
        threading.Event().wait(0.001)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert results == {number: "error" if number == 3 else number * 10 for number in range(20)}
    assert [len(batch) for batch in batches] == [1, 19]
    assert batcher.idle


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_threads_and_lanes_leave_nothing_behind(lanes: int) -> None:
    batcher: ThreadBatcher[int, int] = ThreadBatcher(
        lambda batch, _: batch, weigh=lambda _: 1, weight_max=3, lanes=lanes
    )

    def many() -> None:
        for number in range(300):
            assert batcher.join(number) == number

    threads = [threading.Thread(target=many) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert batcher.idle
