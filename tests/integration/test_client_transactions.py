"""Transactions of the SDK are all or nothing, on a file, a database and a server, sync and async."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from penstock import (
    InvalidInput,
    LeaseLost,
    UnknownQueue,
    WrongType,
)
from tests.integration.client_support import Sdk

pytestmark = pytest.mark.timeout(60)


async def refused(call: Any, kind: type[InvalidInput], field: str) -> None:
    with pytest.raises(kind) as caught:
        await call
    assert type(caught.value) is kind
    assert caught.value.field == field


async def leased(queue: Any) -> Any:
    [message] = await queue.lease(wait=10)
    return message


def test_transact_is_all_or_nothing(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            other = await client.create_queue(f"{name}-2")
            await queue.push_many(["a", "b", "c"])
            first, second, third = await queue.lease(3)
            async with queue.transact() as tx:
                tx.ack(first)
                tx.nack(second, "not now", delay=600)
                tx.push("d", queue=other.name)
                tx.push(b"e")
                tx.push("f", queue=other.name, priority=1)
            assert [message.payload for message in await other.lease(5)] == ["f", "d"]
            [fifth] = await queue.lease(5)
            assert fifth.payload == b"e"
            assert fifth.id == tx.receipts[1].id
            tx = queue.transact()
            tx.ack(third)
            tx.ack(first)
            tx.push("never")
            with pytest.raises((LeaseLost, penstock.UnknownMessage)):
                await tx.commit()
            with pytest.raises(RuntimeError):
                await _transact_and_fail(queue, third)
            stats = await queue.stats()
            assert (stats.ready, stats.scheduled, stats.leased) == (0, 1, 2)
            await third.ack()

    asyncio.run(main())


def test_a_transaction_on_a_missing_queue_does_nothing(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url, retry_for=0) as client:
            queue = await client.create_queue(name)
            for missing, others in (
                (client.queue("missing"), name),
                (queue, "missing"),
                (client.queue("missing"), None),
            ):
                with pytest.raises(UnknownQueue) as caught:
                    async with missing.transact() as tx:
                        tx.push("x", queue=others)
                assert caught.value.queue == "missing"
            assert await queue.peek() == []
            other = await client.create_queue(f"{name}-other")
            async with queue.transact() as tx:
                tx.push("x", queue=other.name)
            assert [each.payload for each in await other.peek()] == ["x"]

    asyncio.run(main())


def test_a_transaction_continues_without_a_refused_push(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            async with queue.transact() as tx:
                with pytest.raises(WrongType):
                    tx.push("refused", key=5)
                tx.push("kept")
            [receipt] = tx.receipts
            assert [each.id for each in await queue.peek(10)] == [receipt.id]

    asyncio.run(main())


async def _transact_and_fail(queue: Any, message: Any) -> None:
    async with queue.transact() as tx:
        tx.ack(message)
        raise RuntimeError


def test_a_committed_transaction_is_not_repeated_at_the_end_of_the_block(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            await queue.push("first")
            message = await leased(queue)
            async with queue.transact() as tx:
                tx.ack(message)
                tx.push("second")
                await tx.commit()
                tx.push("third")
            assert [each.payload for each in await queue.peek(10)] == ["second", "third"]
            assert [each.id for each in await queue.peek(10)] == [each.id for each in tx.receipts]

    asyncio.run(main())


def test_a_transaction_reports_duplicate_pushes(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            first = await queue.push("a", key="a")
            async with queue.transact() as tx:
                tx.push("b")
                tx.push("a", key="a")
            assert [each.duplicate for each in tx.receipts] == [False, True]
            assert tx.receipts[1].id == first.id

    asyncio.run(main())
