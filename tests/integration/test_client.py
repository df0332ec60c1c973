"""The SDK pushes, leases, settles and manages queues the same way on a file, a database and a server, sync and
async."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import (
    LeaseLost,
    NewMessage,
    PayloadTooLarge,
    QueueExists,
    QueueNotEmpty,
    StoreClosed,
    UnknownQueue,
    WrongType,
)
from tests.integration.client_support import Sdk

pytestmark = pytest.mark.timeout(60)


async def leased(queue: Any) -> Any:
    [message] = await queue.lease(wait=10)
    return message


PAYLOADS = [
    {"to": "ann", "n": [1, 2.5, True, None, {"deep": "é\u2028"}]},
    [],
    {},
    "text",
    "",
    0,
    -7,
    2**63 - 1,
    1.5e300,
    True,
    False,
    None,
    b"",
    b"plain ascii",
    bytes(range(256)),
    b'"json"',
]


def test_payloads_are_returned_unchanged(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            receipts = [await queue.push(payload) for payload in PAYLOADS]
            assert [each.duplicate for each in receipts] == [False] * len(PAYLOADS)
            looked = await queue.peek(100)
            messages = await queue.lease(100)
            assert [message.id for message in messages] == [each.id for each in receipts]
            for found in (looked, messages):
                came = [message.payload for message in found]
                assert came == PAYLOADS
                assert [type(each) for each in came] == [type(each) for each in PAYLOADS]
            assert await queue.ack_many(messages) == []

    asyncio.run(main())


def test_a_message_keeps_its_options(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            first = await queue.push("low", headers={"trace": "1"})
            await queue.push("high", priority=5, key="k")
            again = await queue.push("high again", key="k")
            assert again.duplicate
            await queue.push("later", delay=600)
            await queue.push("gone", ttl=0.001)
            await asyncio.sleep(0.01)
            high, low = await queue.lease(10, lease=5)
            assert (high.payload, high.priority, high.key, high.headers) == ("high", 5, "k", {})
            assert (low.payload, low.key, low.headers) == ("low", None, {"trace": "1"})
            assert low.id == first.id
            assert low.queue == name
            assert low.attempts == 1
            assert low.leased_until - low.created_at >= 4_000
            [later] = await queue.peek(10, state="scheduled")
            assert later.payload == "later"
            assert later.available_at - later.created_at == 600_000

    asyncio.run(main())


def test_push_many_is_all_or_nothing(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            receipts = await queue.push_many(["a", NewMessage(payload=b"b", priority=1), {"c": 3}])
            assert len({each.id for each in receipts}) == 3
            assert [message.payload for message in await queue.lease(5)] == [b"b", "a", {"c": 3}]
            assert await queue.push_many([]) == []
            with pytest.raises(PayloadTooLarge):
                await queue.push_many(["fits", b"x" * (600 << 10)])
            with pytest.raises(WrongType):
                await queue.push_many("abc")
            assert (await queue.stats()).ready == 0

    asyncio.run(main())


def test_messages_are_acked_nacked_extended_and_released(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, max_attempts=2)
            await queue.push("x")
            message = await leased(queue)
            await queue.extend(message, 60)
            await message.release()
            message = await leased(queue)
            assert message.attempts == 1, "a released lease uses no attempt"
            await queue.nack(message, "first trouble", delay=0)
            message = await leased(queue)
            assert message.attempts == 2
            await message.nack(ValueError("boom"))
            [dead] = await queue.dead_letters()
            assert dead.error == "ValueError: boom"
            assert dead.reason == "nacked"
            assert [each.error for each in dead.errors] == ["ValueError: boom", "first trouble"]
            assert (await queue.redrive(error_contains="nothing like it")).matched == 0
            assert (await queue.redrive(dry_run=True)).moved == 0
            done = await queue.redrive(error_contains="boom")
            assert (done.matched, done.moved, done.skipped) == (1, 1, 0)
            message = await leased(queue)
            await queue.ack(message)
            await message.ack()
            for late in (message.nack, message.extend, message.release):
                with pytest.raises(LeaseLost) as caught:
                    await late()
                assert caught.value.message_id == message.id
            assert message.lost

    asyncio.run(main())


def test_leaving_a_with_block_settles_the_message(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, max_attempts=1)
            await queue.push_many(["good", "bad", "mine"])
            good, bad, mine = await queue.lease(3)
            async with good:
                pass
            with pytest.raises(RuntimeError, match="no good"):
                async with bad:
                    raise RuntimeError("no good")
            async with mine:
                await mine.nack("said here")
            stats = await queue.stats()
            assert (stats.leased, stats.dead, stats.totals.acked) == (0, 2, 1)
            assert {each.error for each in await queue.dead_letters()} == {"RuntimeError: no good", "said here"}
            assert await queue.purge_dead_letters() == 2

    asyncio.run(main())


def test_consume_keeps_leases_alive_and_ends_when_idle(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, lease_ms=1_000)
            await queue.push_many(list(range(4)))
            seen = []
            async for message in queue.consume(idle=0, batch=2):
                if message.payload == 0:
                    await asyncio.sleep(2)
                async with message:
                    seen.append(message.payload)
            assert seen == [0, 1, 2, 3]
            stats = await queue.stats()
            assert (stats.totals.acked, stats.totals.lapsed) == (4, 0)

    asyncio.run(main())


def test_the_lease_of_a_settled_message_is_not_renewed(
    sdk: Sdk, url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A settled message must not be reported as unsettled either, once its renewal would be due."""

    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, lease_ms=60_000)
            await queue.push_many(list(range(6)))
            renewer = getattr(client, "target", client).lease_renewer
            async for message in queue.consume(idle=0, batch=2):
                if message.payload == 0:
                    async with message:
                        pass
                elif message.payload == 1:
                    await queue.nack_many([message])
                elif message.payload == 2:
                    async with queue.transact() as group:
                        group.ack(message)
                else:
                    await message.release()
                    break
            del message
            for renewal in renewer._renewals.values():
                renewal.due = 0.0
            renewer._slot.set()
            await asyncio.sleep(0.05)
            assert not renewer._renewals

    asyncio.run(main())
    assert "neither acked nor nacked" not in caplog.text


def test_leaving_consume_releases_prefetched_messages(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            await queue.push_many([1, 2, 3])
            consuming = aiter(queue.consume(batch=3))
            message = await anext(consuming)
            await message.ack()
            await consuming.aclose()
            stats = await queue.stats()
            assert (stats.ready, stats.leased) == (2, 0)
            assert [each.attempts for each in await queue.lease(2)] == [1, 1]

    asyncio.run(main())


def test_the_lease_of_a_dropped_message_is_no_longer_renewed(sdk: Sdk, url: str, name: str, caplog: Any) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, lease_ms=1_500)
            await queue.push("x")
            async for message in queue.consume(idle=10):
                if message.attempts == 2:
                    await message.ack()
                    return
                del message

    asyncio.run(main())
    assert "neither acked nor nacked" in caplog.text


def test_a_push_wakes_a_waiting_lease(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            assert await queue.lease(wait=0.05) == []
            waiting = [asyncio.ensure_future(queue_lease(queue)) for _ in range(6)]
            await asyncio.sleep(0.05)
            await queue.push_many(list(range(6)))
            got = [message for each in await asyncio.gather(*waiting) for message in each]
            assert sorted(message.payload for message in got) == list(range(6))

    asyncio.run(main())


async def queue_lease(queue: Any) -> Any:
    return await queue.lease(wait=20)


def test_queues_are_created_listed_changed_and_dropped(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, lease_ms=5_000, max_attempts=3)
            await client.create_queue(name, lease_ms=5_000, max_attempts=3)
            with pytest.raises(QueueExists) as exists:
                await client.create_queue(name)
            assert set(exists.value.differing) == {"lease_ms", "max_attempts"}
            await client.create_queue(name, exist_ok=True)
            assert (await queue.info()).options.max_attempts == 3
            await client.create_queue(name, exist_ok=True, max_attempts=9)
            options = (await queue.info()).options
            assert (options.max_attempts, options.lease_ms) == (9, 5_000), "only the given options change"
            assert (await queue.configure(max_attempts=4)).options.max_attempts == 4
            await client.create_queue(f"{name}-2")
            page = await client.queues(prefix=name, limit=1)
            assert [each.name for each in page] == [name]
            assert page.next
            assert [each.name for each in await client.queues(prefix=name, after=page.next)] == [f"{name}-2"]
            await queue.pause()
            receipt = await queue.push("held")
            assert await queue.lease() == []
            assert (await queue.stats()).paused
            await queue.resume()
            found = await queue.get(receipt.id)
            assert found is not None
            assert found.payload == "held"
            with pytest.raises(QueueNotEmpty) as full:
                await queue.drop()
            assert (full.value.messages, full.value.queue) == (1, name)
            assert await queue.remove(receipt.id)
            assert not await queue.remove(receipt.id)
            assert await queue.get(receipt.id) is None
            await queue.push_many([1, 2])
            assert await queue.purge() == 2
            await queue.push(3)
            assert await queue.drop(force=True) == 1
            with pytest.raises(UnknownQueue):
                await queue.info()

    asyncio.run(main())


def test_a_closed_client_raises_store_closed(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        client = sdk.connect(url)
        queue = await client.create_queue(name)
        await client.close()
        await client.close()
        for call in (lambda: queue.push("x"), queue.stats, queue.lease, lambda: queue.lease(wait=5), client.queues):
            with pytest.raises(StoreClosed):
                await call()

    asyncio.run(main())


def test_a_push_to_a_full_queue_waits(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url, retry_for=20) as client:
            queue = await client.create_queue(name, max_size=1)
            await queue.push("x")
            pushing = asyncio.ensure_future(_push(queue, "y"))
            await asyncio.sleep(0.05)
            await queue.ack(await leased(queue))
            await pushing
            assert (await leased(queue)).payload == "y"

    asyncio.run(main())


async def _push(queue: Any, payload: Any) -> Any:
    return await queue.push(payload)


def test_dead_letters_are_leased_like_a_queue(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, max_attempts=1)
            await queue.push("x")
            await (await leased(queue)).nack("e")
            dead = client.queue(f"{name}.dlq")
            async for message in dead.consume(idle=0):
                assert (message.queue, message.payload) == (f"{name}.dlq", "x")
                assert await dead.ack_many([message]) == []
            assert (await queue.stats()).dead == 0

    asyncio.run(main())


def test_a_relative_path_is_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with penstock.connect("sqlite:///tasks.db") as client:
        client.create_queue("q").push("x")
    with penstock.connect(f"sqlite:///{tmp_path}/tasks.db") as client:
        assert client.queue("q").lease()[0].payload == "x"
    with penstock.LiteQueue(tmp_path / "tasks.db") as lite:
        assert lite.put(b"raw", "q")
    with penstock.connect("sqlite:///tasks.db") as client:
        assert client.queue("q").lease()[0].payload == b"raw"


def test_a_slow_redrive_may_take_longer_than_a_request(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url, timeout=0.3, retry_for=0) as client:
            queue = await client.create_queue(name, max_attempts=1)
            await queue.push_many(["a", "b", "c"])
            assert not await queue.nack_many(await queue.lease(3), "no")
            assert (await queue.redrive(rate_per_s=2)).moved == 3

    asyncio.run(main())
