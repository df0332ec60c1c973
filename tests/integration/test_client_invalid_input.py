"""The SDK rejects invalid input with an error that names it, the same for a file, a database and a server."""

from __future__ import annotations

import asyncio
from itertools import repeat
from typing import Any

import pytest

import penstock
from penstock import (
    BatchTooLarge,
    Conflict,
    InvalidInput,
    InvalidName,
    NewMessage,
    PayloadTooLarge,
    QueueFull,
    RateLimited,
    UnknownQueue,
    WrongType,
)
from tests.integration.client_support import Sdk

pytestmark = pytest.mark.timeout(60)


async def leased(queue: Any) -> Any:
    [message] = await queue.lease(wait=10)
    return message


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


def test_nesting_is_limited(sdk: Sdk, url: str, name: str) -> None:
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


def test_an_invalid_value_is_named_in_the_error_everywhere(sdk: Sdk, url: str, name: str) -> None:
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


def test_an_invalid_option_is_named_in_the_error_everywhere(sdk: Sdk, url: str, name: str) -> None:
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
    """Return the statistics that do not change with time alone, unlike rates and ages."""
    return stats.paused, stats.ready, stats.scheduled, stats.leased, stats.dead, stats.totals


async def refused(call: Any, kind: type[InvalidInput], field: str) -> None:
    with pytest.raises(kind) as caught:
        await call
    assert type(caught.value) is kind
    assert caught.value.field == field


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


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_rate_that_is_not_finite_is_refused_and_changes_nothing(sdk: Sdk, url: str, name: str, number: float) -> None:
    """Over HTTP such a value would remove the limit."""

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
