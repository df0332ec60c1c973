"""The SDK behaves the same over a file, a database and a server, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import (
    BatchTooLarge,
    Conflict,
    InvalidInput,
    InvalidName,
    LeaseLost,
    NewMessage,
    PayloadTooLarge,
    QueueExists,
    QueueFull,
    QueueNotEmpty,
    RateLimited,
    StoreClosed,
    UnknownQueue,
    WrongType,
)
from tests.integration.client_support import Sdk
from tests.integration.serving import Running, running
from tests.postgres import cluster, drop_schema, new_schema

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/tasks.db"
    elif request.param == "postgres":
        schema = new_schema()
        yield f"{cluster().url}&schema={schema}"
        drop_schema(schema)
    else:
        yield f"http://127.0.0.1:{request.getfixturevalue('server').port}"


@pytest.fixture(params=["async", "sync"])
def sdk(request: pytest.FixtureRequest) -> Sdk:
    return Sdk(request.param)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Each test has a queue of its own on the shared server."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


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


@pytest.mark.parametrize(
    "payload",
    [(1, 2), {1: 2}, float("nan"), float("inf"), {"b": b"x"}, {1, 2}, range(3), "\ud800", [[[(1,)]]]],
    ids=repr,
)
def test_a_payload_that_json_would_change_is_refused(payload: Any) -> None:
    with penstock.connect("sqlite:///:memory:") as client:
        queue = client.create_queue("q")
        with pytest.raises(WrongType) as caught:
            queue.push(payload)
        assert caught.value.field == "payload"
        assert queue.stats().ready == 0


def test_nesting_has_a_limit(sdk: Sdk, url: str, name: str) -> None:
    def nested(depth: int) -> Any:
        value: Any = []
        for _ in range(depth - 1):
            value = [value]
        return value

    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            await queue.push(nested(60))
            with pytest.raises(InvalidInput):
                await queue.push(nested(61))
            assert (await leased(queue)).payload == nested(60)

    asyncio.run(main())


def test_a_message_carries_its_options(sdk: Sdk, url: str, name: str) -> None:
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


def test_ack_nack_extend_release(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, max_attempts=2)
            await queue.push("x")
            message = await leased(queue)
            await queue.extend(message, 60)
            await message.release()
            message = await leased(queue)
            assert message.attempts == 1, "a lease given back uses up no attempt"
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


def test_a_with_block_settles(sdk: Sdk, url: str, name: str) -> None:
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
    """Nor is it said, when its lease would have been renewed, that it was neither acked nor nacked."""

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


def test_a_waiting_lease_is_answered_by_a_push(sdk: Sdk, url: str, name: str) -> None:
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


def test_queues_are_made_listed_changed_and_dropped(sdk: Sdk, url: str, name: str) -> None:
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
            assert (options.max_attempts, options.lease_ms) == (9, 5_000), "what is named is set, the rest stays"
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


def test_errors_are_the_same_everywhere(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url, retry_for=0) as client:
            missing = client.queue("missing")
            for call in (lambda: missing.push("x"), missing.stats, missing.lease, missing.purge):
                with pytest.raises(UnknownQueue) as caught:
                    await call()
                assert caught.value.queue == "missing"
                assert "missing" in str(caught.value)
            with pytest.raises(InvalidName):
                client.queue("no spaces")
            with pytest.raises(InvalidName):
                await client.queue("a.dlq").push(1)
            with pytest.raises(InvalidInput) as option:
                await client.create_queue(name, lease_ms=0)
            assert option.value.field == "lease_ms"
            queue = await client.create_queue(name, max_size=1)
            with pytest.raises(PayloadTooLarge):
                await queue.push(b"x" * (600 << 10))
            for wrong in ({"priority": 2**40}, {"delay": -1}, {"ttl": 0}, {"key": ""}, {"delay": "5"}):
                with pytest.raises(InvalidInput):
                    await queue.push("x", **wrong)
            await queue.push("x")
            with pytest.raises(QueueFull) as full:
                await queue.push("y")
            assert full.value.retry_after_ms > 0
            assert not isinstance(full.value, Conflict)
            limited = await client.create_queue(f"{name}-limited", push_rate=0.01, push_burst=1)
            await limited.push("x")
            with pytest.raises(RateLimited):
                await limited.push("y")
            with pytest.raises(InvalidInput):
                await queue.lease(0)
            with pytest.raises(InvalidInput):
                await queue.peek(state="lost")

    asyncio.run(main())


def test_a_value_that_cannot_be_is_refused_by_its_name_everywhere(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url, retry_for=0) as client:
            queue, stream = await client.create_queue(name), await client.create_stream(name)
            await queue.push("held")
            [message] = await queue.lease()
            before = held(await queue.stats())
            for wrong, kind in [
                *[({"key": value}, WrongType) for value in (5, True, b"abc", ["x"])],
                *[({"key": value}, InvalidInput) for value in ("", "x" * 513, "\ud800")],
                *[({"headers": value}, WrongType) for value in ("x", ["a"], {1: "x"}, {"a": 1}, {"a": b"b"})],
                *[({"headers": value}, InvalidInput) for value in ({"a": "\ud800"}, {"\ud800": "a"})],
                ({"headers": {"a": "x" * 16_384}}, InvalidInput),
                *[({"priority": value}, WrongType) for value in (None, "", False, 0.0, "1")],
                ({"priority": 2**31}, InvalidInput),
            ]:
                [field] = wrong
                await refused(queue.push("x", **wrong), kind, field)
                await refused(queue.push_many(["x", NewMessage(payload="x", **wrong)]), kind, field)
            for value in (5, b"x", ["x"]):
                await refused(message.nack(error=value), WrongType, "error")
                await refused(queue.nack_many([message], error=value), WrongType, "error")
            for value in (5, None, message.id, "x"):
                for settle in (queue.ack, queue.nack, queue.release, queue.extend):
                    await refused(settle(value), WrongType, "messages")
                await refused(queue.ack_many([message, value]), WrongType, "messages")
            for value in (5, None, "x", {"a": message}):
                for call in (queue.ack_many, queue.nack_many, queue.push_many):
                    await refused(call(value), WrongType, "messages")
                await refused(stream.append_many(value), WrongType, "records")
            for value, kind in (("x", WrongType), (True, WrongType), (0, InvalidInput), (2**70, InvalidInput)):
                await refused(queue.get(value), kind, "message_id")
                await refused(queue.remove(value), kind, "message_id")
                await refused(queue.redrive(ids=[value]), kind, "ids")
            for value in (5, "12"):
                await refused(queue.redrive(ids=value), WrongType, "ids")
            await refused(queue.redrive(error_contains=5), WrongType, "error_contains")
            await refused(queue.redrive(error_contains="\ud800"), InvalidInput, "error_contains")
            await refused(queue.redrive(rate_per_s="1"), WrongType, "rate_per_s")
            await refused(queue.peek(after=5), WrongType, "after")
            for value in ("5", 5.0, None):
                await refused(queue.peek(value), WrongType, "limit")
            for value in ("no", 1, None):
                await refused(queue.redrive(dry_run=value), WrongType, "dry_run")
                for call in (queue.drop, stream.drop, stream.trim):
                    await refused(call(force=value), WrongType, "force")
            await refused(client.create_queue(5), WrongType, "queue")
            for listing in (client.queues, client.streams):
                for field in ("prefix", "after"):
                    await refused(listing(**{field: 5}), WrongType, field)
                    await refused(listing(**{field: "\ud800"}), InvalidInput, field)
                await refused(listing(limit=0), InvalidInput, "limit")
            await refused(queue.push_many(repeat(1)), BatchTooLarge, "messages")
            await refused(queue.ack_many(repeat(message)), BatchTooLarge, "messages")
            await refused(stream.append_many(repeat(1)), BatchTooLarge, "records")
            assert held(await queue.stats()) == before
            await message.ack()

    asyncio.run(main())


def test_an_option_that_cannot_be_is_refused_by_its_name_everywhere(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url, retry_for=0) as client:
            queue, stream = await client.create_queue(name), await client.create_stream(name)
            before = (await queue.info()).options, (await stream.info()).options
            wrong_types = ("5", True, None, 1.5, b"5", [5], {"a": 5}, {5}, object())
            for changes, kind in [
                *[({"lease_ms": value}, WrongType) for value in wrong_types],
                *[({"lease_ms": value}, InvalidInput) for value in (0, -1, 2**62, 2**70)],
                *[({"push_rate": value}, WrongType) for value in ("5", True, object())],
                *[({"push_rate": value}, InvalidInput) for value in (0, -1.5, 1e10)],
                *[({"backoff": value}, WrongType) for value in (5, None, ["fixed"])],
                *[({"backoff": value}, InvalidInput) for value in ("", "linear", "\ud800")],
                *[({"dlq": value}, WrongType) for value in (1, None)],
                *[({"lease": value}, InvalidInput) for value in (5, None)],
            ]:
                [field] = changes
                await refused(client.create_queue(f"{name}-new", **changes), kind, field)
                await refused(queue.configure(**changes), kind, field)
            for changes, kind in [
                *[({"segment_bytes": value}, WrongType) for value in wrong_types],
                *[({"segment_bytes": value}, InvalidInput) for value in (0, 2**62, 2**70)],
                ({"segments": 5}, InvalidInput),
            ]:
                [field] = changes
                await refused(client.create_stream(f"{name}-new", **changes), kind, field)
                await refused(stream.configure(**changes), kind, field)
            assert ((await queue.info()).options, (await stream.info()).options) == before
            with pytest.raises(UnknownQueue):
                await client.queue(f"{name}-new").info()

    asyncio.run(main())


def held(stats: Any) -> tuple[Any, ...]:
    """Without what changes with the time alone: rates and ages."""
    return stats.paused, stats.ready, stats.scheduled, stats.leased, stats.dead, stats.totals


async def refused(call: Any, kind: type[InvalidInput], field: str) -> None:
    with pytest.raises(kind) as caught:
        await call
    assert type(caught.value) is kind
    assert caught.value.field == field


def test_a_transaction_of_a_queue_that_is_not_there_does_nothing(sdk: Sdk, url: str, name: str) -> None:
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


def test_a_closed_client_says_that_it_is_closed(sdk: Sdk, url: str, name: str) -> None:
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


async def _transact_and_fail(queue: Any, message: Any) -> None:
    async with queue.transact() as tx:
        tx.ack(message)
        raise RuntimeError


async def _push(queue: Any, payload: Any) -> Any:
    return await queue.push(payload)


@pytest.mark.parametrize(
    "url_", ["tasks.db", "/tmp/tasks.db", "sqlite://", "sqlite:///", "mysql://h/db", "ftp://h", ""]
)
def test_an_invalid_url_is_refused_with_the_valid_forms(url_: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        penstock.connect(url_)
    assert "sqlite:///path" in str(caught.value)
    assert "http://host:port" in str(caught.value)


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"retry_for": -1}, {"linger": "1"}, {"connections": 0}])
def test_a_setting_out_of_bounds_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        penstock.connect("http://h", **wrong)
    assert caught.value.field in wrong


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


def test_a_relative_path_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with penstock.connect("sqlite:///tasks.db") as client:
        client.create_queue("q").push("x")
    with penstock.connect(f"sqlite:///{tmp_path}/tasks.db") as client:
        assert client.queue("q").lease()[0].payload == "x"
    with penstock.LiteQueue(tmp_path / "tasks.db") as lite:
        assert lite.put(b"raw", "q")
    with penstock.connect("sqlite:///tasks.db") as client:
        assert client.queue("q").lease()[0].payload == b"raw"


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


def test_a_slow_redrive_may_take_longer_than_a_request(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url, timeout=0.3, retry_for=0) as client:
            queue = await client.create_queue(name, max_attempts=1)
            await queue.push_many(["a", "b", "c"])
            assert not await queue.nack_many(await queue.lease(3), "no")
            assert (await queue.redrive(rate_per_s=2)).moved == 3

    asyncio.run(main())


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_rate_that_is_not_finite_is_refused_and_changes_nothing(sdk: Sdk, url: str, name: str, number: float) -> None:
    """Over HTTP it took the limit away."""

    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, push_rate=5.0)
            for call in (
                lambda: queue.configure(push_rate=number),
                lambda: queue.redrive(rate_per_s=number),
                lambda: client.create_queue(f"{name}-2", push_rate=number),
            ):
                with pytest.raises(InvalidInput) as refused:
                    await call()
                assert refused.value.field in ("push_rate", "rate_per_s")
            assert (await queue.info()).options.push_rate == 5.0

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
