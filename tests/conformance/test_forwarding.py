"""Dead letters are forwarded to the queue named in their own queue's options, and sweeps handle them there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.broker.broker import Broker
from penstock.core.commands import SettleItem
from penstock.core.model import PushItem, QueueOptions
from tests.conformance.support import PATIENCE_SECONDS, StoreUnderTest

HOUR_MS = 3_600_000


def run(store: StoreUnderTest, use: Callable[[Broker], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = Broker(store.store, clock=store.clock)
        try:
            await use(broker)
        finally:
            await broker.close()

    asyncio.run(main())


async def make(broker: Broker, queue: str, **options: Any) -> None:
    await broker.configure(queue, options, create=QueueOptions())


async def dead_letter(broker: Broker, queue: str, *payloads: bytes) -> None:
    await broker.push(queue, [PushItem(payload=payload) for payload in payloads])
    leased = await broker.lease(queue, limit=len(payloads))
    await broker.nack(queue, [SettleItem(message.id, message.token) for message in leased])


class PeekCounter:
    """Counts the messages that a broker reads by peeking."""

    def __init__(self, broker: Broker) -> None:
        self.count = 0
        self._peek = broker.store.peek
        broker.store.peek = self._counted  # type: ignore[method-assign]

    def _counted(self, *args: Any, **how: Any) -> Any:
        found, after = self._peek(*args, **how)
        self.count += len(found)
        return found, after


def test_a_redrive_by_ids_reads_no_other_messages_of_a_shared_dead_letter_queue(store: StoreUnderTest) -> None:
    async def use(broker: Broker) -> None:
        await make(broker, "failed", max_attempts=1)
        await make(broker, "q", max_attempts=1, dlq="failed")
        await dead_letter(broker, "q", b"a", b"b", b"c", b"d")
        letters, _ = await broker.peek("failed", limit=9)
        # One message dies again in the dead-letter queue, and another is leased from it.
        again, leased = await broker.lease("failed", limit=2)
        await broker.nack("failed", [SettleItem(again.id, again.token)])
        waiting = next(each.id for each in letters if each.id not in (again.id, leased.id))
        reads = PeekCounter(broker)
        redriven = await broker.redrive("q", ids=[again.id, leased.id, waiting, waiting, 10**6])
        assert (redriven.matched, redriven.moved, reads.count) == (2, 2, 0)
        assert len(await broker.lease("q", limit=9)) == 2

    run(store, use)


def test_a_sweep_rereads_dead_letters_only_when_more_have_died(store: StoreUnderTest) -> None:
    async def use(broker: Broker) -> None:
        await make(broker, "middle", max_attempts=1)
        await make(broker, "q", max_attempts=1, dlq="middle")
        await make(broker, "last")
        await dead_letter(broker, "q", b"a", b"b", b"c")
        letters = await broker.lease("middle", limit=3)
        await broker.nack("middle", [SettleItem(each.id, each.token) for each in letters])
        await broker.configure("q", {"dlq": True})
        await broker.configure("middle", {"dlq": "last"})
        reads = PeekCounter(broker)
        for _ in range(3):
            await broker.sweep()
        assert reads.count == 0
        await dead_letter(broker, "middle", b"its own")
        await broker.sweep()
        assert [each.payload for each in await broker.lease("last", limit=9)] == [b"its own"]
        info = await broker.find_queue("middle")
        assert info is not None
        assert info.dead == 3

    run(store, use)


def test_a_sweep_wakes_polls_when_the_clock_was_set_back(store: StoreUnderTest) -> None:
    async def use(broker: Broker) -> None:
        await make(broker, "q", lease_ms=HOUR_MS)
        await broker.push("q", [PushItem(payload=b"a")])
        await broker.lease("q")
        waits = asyncio.Event()
        poll = asyncio.create_task(broker.lease("q", wait_ms=HOUR_MS, on_wait=waits.set))
        await waits.wait()
        await asyncio.sleep(0)
        store.clock.set(store.clock.now - 24 * HOUR_MS)
        assert (await broker.sweep()).lapsed == 1
        async with asyncio.timeout(PATIENCE_SECONDS):
            (message,) = await poll
        assert message.attempts == 2

    run(store, use)
