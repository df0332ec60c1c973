"""Concurrent calls of the SDK share requests, and each call gets its own result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import penstock
from penstock import aio
from penstock.errors import (
    InvalidInput,
    PayloadTooLarge,
    QueueFull,
)
from tests.integration.client_support import Proxy, Sdk
from tests.integration.serving import Running

pytestmark = pytest.mark.timeout(60)


async def lease_one(queue: Any, wait: float = 20) -> Any:
    return await queue.lease(wait=wait)


async def _push(queue: Any, payload: Any, **how: Any) -> Any:
    return await queue.push(payload, **how)


def test_concurrent_calls_share_requests(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url, linger=0.05) as client:
            queue = await client.create_queue(name)
            receipts = await asyncio.gather(*(_push(queue, number) for number in range(50)))
            assert len({each.id for each in receipts}) == 50
            assert between.count("/messages") <= 5
            got = await asyncio.gather(*(lease_one(queue) for _ in range(50)))
            messages = [message for each in got for message in each]
            assert sorted(message.payload for message in messages) == list(range(50))
            assert between.count("/poll") <= 25
            await asyncio.gather(*(_ack(message) for message in messages))
            assert between.count("/ack") <= 6
            assert (await queue.stats()).totals.acked == 50

    asyncio.run(main())


async def _ack(message: Any) -> None:
    await message.ack()


def test_one_bad_push_does_not_fail_the_others(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url, linger=0.05) as client:
            queue = await client.create_queue(name)
            payloads = ["a", "b", b"x" * (600 << 10), "c", "d"]
            outcomes = await asyncio.gather(*(_push(queue, each) for each in payloads), return_exceptions=True)
            assert [isinstance(each, PayloadTooLarge) for each in outcomes] == [False, False, True, False, False]
            assert sorted(message.payload for message in await queue.lease(9)) == ["a", "b", "c", "d"]
            for headers in ({"x": "\ud800"}, {"x": object()}):
                headers_by_push = [None, headers, None]
                outcomes = await asyncio.gather(
                    *(_push(queue, "e", headers=each) for each in headers_by_push), return_exceptions=True
                )
                assert [isinstance(each, InvalidInput) for each in outcomes] == [False, True, False]
            assert (await queue.stats()).ready == 4
        async with sdk.connect(between.url, linger=0.05, retry_for=0) as client:
            small = await client.create_queue(f"{name}-small", max_size=3)
            outcomes = await asyncio.gather(*(_push(small, each) for each in range(5)), return_exceptions=True)
            assert sum(isinstance(each, QueueFull) for each in outcomes) == 2
            assert (await small.stats()).ready == 3

    asyncio.run(main())


def test_pushes_of_one_caller_keep_their_order(between: Proxy, name: str) -> None:
    async def main() -> None:
        async with aio.connect(between.url) as client:
            queue = await client.create_queue(name)
            await asyncio.gather(*(queue.push(number) for number in range(200)))
            assert [message.payload for message in await queue.lease(200)] == list(range(200))

    asyncio.run(main())


def test_a_cancelled_lease_keeps_no_message(server: Running, name: str) -> None:
    async def main() -> None:
        async with aio.connect(f"http://127.0.0.1:{server.port}") as client:
            queue = await client.create_queue(name, max_attempts=1)
            for turn in range(30):
                waiting = [asyncio.ensure_future(queue.lease(wait=20)) for _ in range(4)]
                await asyncio.sleep(0.001 * (turn % 5))
                pushing = asyncio.ensure_future(queue.push_many([turn, turn]))
                await asyncio.sleep(0.0005 * (turn % 7))
                waiting[0].cancel()
                waiting[turn % 4].cancel()
                await pushing
                got = 0
                while got < 2:
                    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    waiting = list(pending)
                    for each in done:
                        if not each.cancelled():
                            for message in each.result():
                                got += 1
                                await message.ack()
                    assert waiting or got == 2
                for each in waiting:
                    each.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
            stats = await queue.stats()
            assert (stats.totals.acked, stats.dead, stats.ready, stats.leased) == (60, 0, 0, 0)

    asyncio.run(main())


def test_an_interrupted_leader_neither_fails_nor_repeats_other_calls(server: Running, name: str) -> None:
    """The leading thread is interrupted after the server has executed its call and the call of another thread."""
    with penstock.connect(f"http://127.0.0.1:{server.port}", linger=0.1) as client:
        queue = client.create_queue(name)
        session: Any = client.transport.session  # type: ignore[union-attr]
        real = session.request
        interruptions, receipts = [], []

        def interrupted(*args: Any, **how: Any) -> Any:
            answer = real(*args, **how)
            if args[1].endswith(verb) and not interruptions:
                interruptions.append(args)
                raise KeyboardInterrupt
            return answer

        def call(work: Callable[[], Any]) -> None:
            with suppress(KeyboardInterrupt):
                receipts.append(work())

        session.request = interrupted
        for verb in ("messages", "ack"):
            interruptions.clear()
            receipts.clear()
            leased = [] if verb == "messages" else queue.lease(5)
            works = [message.ack for message in leased] or [lambda: queue.push("a"), lambda: queue.push("b")]
            threads = [threading.Thread(target=call, args=(work,)) for work in works]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive()
            assert (len(interruptions), len(receipts)) == (1, 1), "the other call succeeds"
            stats = queue.stats()
            assert (stats.totals.pushed, stats.totals.acked) == (2, 0 if verb == "messages" else 2)
