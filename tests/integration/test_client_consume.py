"""`queue.consume` leases messages ahead of a fast loop, and releases them if the loop becomes slow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import handler_pace
from tests.integration.client_support import Proxy, Sdk, proxy
from tests.integration.serving import Running, running

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def between(server: Running) -> Iterator[Proxy]:
    with proxy(server.port) as between:
        yield between


@pytest.fixture(params=["async", "sync"])
def sdk(request: pytest.FixtureRequest) -> Sdk:
    return Sdk(request.param)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


@pytest.fixture(autouse=True)
def _every_loop_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every loop as fast, so that the plan does not depend on how busy the machine is."""
    monkeypatch.setattr(handler_pace, "PLAN_SECONDS", 60.0)


def test_a_fast_loop_needs_few_polls_and_keeps_the_order(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url) as client:
            queue = await client.create_queue(name, lease_ms=3_600_000)
            await queue.push_many(list(range(300)))
            seen = []
            async for message in queue.consume(idle=0):
                async with message:
                    seen.append(message.payload)
            assert seen == list(range(300))
            assert between.count("/poll") <= 6
            assert (await queue.stats()).totals.acked == 300

    asyncio.run(main())


def test_a_slow_loop_releases_messages_that_it_does_not_reach(
    sdk: Sdk, between: Proxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_pace, "HOLD_SECONDS", 0.2)

    async def main() -> None:
        async with sdk.connect(between.url) as client:
            queue = await client.create_queue(name, lease_ms=3_600_000)
            await queue.push_many(list(range(20)))
            consuming = aiter(queue.consume(idle=0))
            await (await anext(consuming)).ack()
            slow = await anext(consuming)
            others: list[Any] = []
            async with asyncio.timeout(30):
                while len(others) < 18:
                    others += await queue.lease(20, wait=1)
            assert [message.payload for message in others] == list(range(2, 20))
            assert {message.attempts for message in others} == {1}
            await slow.ack()
            with pytest.raises(StopAsyncIteration):
                await anext(consuming)

    asyncio.run(main())


def test_an_explicit_batch_is_kept_however_slow_the_loop_is(
    sdk: Sdk, between: Proxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_pace, "HOLD_SECONDS", 0.01)

    async def main() -> None:
        async with sdk.connect(between.url) as client:
            queue = await client.create_queue(name, lease_ms=3_600_000)
            await queue.push_many(list(range(4)))
            async for message in queue.consume(idle=0, batch=4):
                await asyncio.sleep(0.1)
                await message.ack()
            assert between.count("/poll") == 2
            assert (await queue.stats()).totals.leased == 4

    asyncio.run(main())
