"""The SDK over a failing network: lost responses, refusals and retries."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import penstock
from penstock.errors import (
    BatchTooLarge,
    DiskFull,
    InvalidInput,
    LeaseLost,
    QueueFull,
    ServerFault,
    StoreError,
    StoreUnreachable,
    TryLater,
    Unreachable,
)
from penstock.server.http import connection
from tests.integration.client_support import Proxy, Sdk
from tests.integration.serving import Running

pytestmark = pytest.mark.timeout(60)


async def lease_one(queue: Any, wait: float = 20) -> Any:
    return await queue.lease(wait=wait)


def test_a_push_with_a_lost_response_adds_one_message(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url) as client:
            queue = await client.create_queue(name)
            between.lose_answer("/messages")
            receipt = await queue.push("once")
            assert not receipt.duplicate
            between.lose_answer("/messages")
            many = await queue.push_many(["a", "b"])
            between.lose_answer("/messages")
            assert (await queue.push("mine", key="k")).duplicate, "a duplicate of the caller's own key is reported"
            assert between.count("/messages") == 6
            messages = await queue.lease(10)
            assert [each.id for each in messages][:3] == [receipt.id, *(each.id for each in many)]
            assert [each.payload for each in messages] == ["once", "a", "b", "mine"]

    asyncio.run(main())


def test_a_settle_with_a_lost_response_succeeds(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url) as client:
            queue = await client.create_queue(name)
            await queue.push_many(["a", "b", "c"])
            first, second, third = await queue.lease(3)
            for path, call in (("/ack", first.ack), ("/nack", second.nack), ("/extend", third.extend)):
                between.lose_answer(path)
                await call()
            stats = await queue.stats()
            assert (stats.totals.acked, stats.totals.nacked, stats.leased) == (1, 1, 1)
            await first.ack()
            with pytest.raises(LeaseLost):
                await first.nack()

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["ack", "nack", "release"])
@pytest.mark.parametrize("then", ["held", "acked"])
def test_a_repeated_settle_does_not_affect_the_lease_of_another_consumer(
    sdk: Sdk, server: Running, between: Proxy, name: str, verb: str, then: str
) -> None:
    """The lease has expired before the first attempt, and the response to that attempt is lost."""

    async def main() -> None:
        async with sdk.connect(between.url) as client, sdk.connect(f"http://127.0.0.1:{server.port}") as direct:
            queue = await client.create_queue(name)
            await queue.push("a")
            [late] = await queue.lease(lease=0.05)
            [other] = await lease_one(direct.queue(name))
            if then == "acked":
                await other.ack()
            between.lose_answer(f"/{verb}")
            with pytest.raises(LeaseLost) as caught:
                await getattr(late, verb)()
            assert caught.value.maybe_done is ((verb, then) != ("ack", "held")), (
                "a message that still exists was not acked"
            )
            assert between.count(f"/{verb}") == 2
            if verb != "release":
                between.lose_answer(f"/{verb}")
                many = getattr(queue, f"{verb}_many")
                if (verb, then) == ("ack", "held"):
                    assert len(await many([late])) == 1
                else:
                    with pytest.raises(LeaseLost) as caught:
                        await many([late])
                    assert caught.value.maybe_done
            if then == "held":
                assert (await direct.queue(name).get(other.id)).state == "leased"
                await other.ack()

    asyncio.run(main())


def test_a_transaction_with_a_lost_response_is_not_repeated(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url) as client:
            queue = await client.create_queue(name)
            await queue.push("a")
            [message] = await queue.lease()
            tx = queue.transact()
            tx.ack(message)
            tx.push("b")
            between.lose_answer("/transact")
            with pytest.raises(Unreachable) as caught:
                await tx.commit()
            assert caught.value.maybe_done
            tx = queue.transact()
            tx.push("only pushes")
            between.lose_answer("/transact")
            await tx.commit()
            assert [each.payload for each in await queue.lease(9)] == ["b", "only pushes"]

    asyncio.run(main())


def test_a_server_without_its_database_reports_if_a_call_may_be_done(sdk: Sdk, between: Proxy, name: str) -> None:
    def answer_unreachable(path: str, **data: object) -> None:
        body = json.dumps({"error": "gone", "code": "store_unreachable", **data})
        between.answer(path, "503 Service Unavailable", body=body)

    async def main() -> None:
        async with sdk.connect(between.url) as client, sdk.connect(between.url, retry_for=0) as no_retry:
            queue = await client.create_queue(name)
            for may_be in (True, False):
                answer_unreachable("/messages", maybe_done=may_be)
                with pytest.raises(StoreUnreachable) as caught:
                    await no_retry.queue(name).push("a")
                assert caught.value.maybe_done is may_be
            await queue.push("a")
            (message,) = await queue.lease()
            answer_unreachable("/transact", maybe_done=True)
            with pytest.raises(StoreUnreachable):
                async with queue.transact() as transaction:
                    transaction.ack(message)
            assert between.count("/transact") == 1, "a second attempt would find its lease settled"
            # Another ack of the message stands in for the first attempt, whose result the server did not know.
            assert await queue.ack_many([message]) == []
            answer_unreachable("/ack", maybe_done=True)
            assert await queue.ack_many([message]) == []

    asyncio.run(main())


def test_a_refusal_after_a_lost_response_does_not_claim_that_nothing_was_kept(
    sdk: Sdk, between: Proxy, name: str
) -> None:
    refusals = {"disk_full": ("507 Insufficient Storage", DiskFull), "queue_full": ("429 Too Many Requests", QueueFull)}

    async def main() -> None:
        async with sdk.connect(between.url) as client:
            queue = await client.create_queue(name)
            for code, (status, kind) in refusals.items():
                body = json.dumps({"error": "full", "code": code, "hint": "nothing of this request was kept"})
                for may_be in (False, True):
                    if may_be:
                        between.lose_answer("/messages")
                    between.answer("/messages", status, "retry-after: 3600", body=body)
                    with pytest.raises(kind) as caught:
                        await queue.push(code)
                    assert caught.value.maybe_done is may_be
                    assert ("nothing of this request was kept" in str(caught.value)) is not may_be
            assert [each.payload for each in await queue.lease(10)] == list(refusals)

    asyncio.run(main())


def test_temporary_refusals_are_retried(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url) as client:
            queue = await client.create_queue(name)
            between.answer("/messages", "503 Service Unavailable", body='{"error":"busy","code":"store_busy"}')
            between.answer("/messages", "503 Service Unavailable", body="<html>a proxy's own page</html>")
            between.answer("/messages", "429 Too Many Requests", "retry-after: 1", body="")
            started = asyncio.get_running_loop().time()
            await queue.push("x")
            assert asyncio.get_running_loop().time() - started >= 1.0, "Retry-After is honoured"
            assert between.count("/messages") == 4
        async with sdk.connect(between.url, retry_for=0) as client:
            queue = client.queue(name)
            between.answer("/messages", "503 Service Unavailable", body='{"error":"busy","code":"store_busy"}')
            with pytest.raises(penstock.StoreBusy):
                await queue.push("x")
            between.answer("/messages", "503 Service Unavailable")
            with pytest.raises(StoreError):
                await queue.push("x")
            between.answer("/messages", "429 Too Many Requests", "retry-after: 7")
            with pytest.raises(TryLater) as later:
                await queue.push("x")
            assert later.value.retry_after_ms == 7_000
            between.answer("/messages", "502 Bad Gateway", body="<html>")
            with pytest.raises(ServerFault) as fault:
                await queue.push("x")
            assert fault.value.status == 502
            between.answer("/messages", "201 Created", body="not json")
            with pytest.raises(ServerFault):
                await queue.push("x")

    asyncio.run(main())


@pytest.mark.parametrize("status", ["502 Bad Gateway", "504 Gateway Timeout"])
def test_a_gateway_error_is_retried_only_if_a_repeat_is_safe(sdk: Sdk, between: Proxy, name: str, status: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url) as client:
            queue = await client.create_queue(name)
            between.answer("/messages", status, body="<html>")
            await queue.push("x")
            assert between.count("/messages") == 2
            [message] = await queue.lease()
            between.answer("/transact", status, body="<html>")
            with pytest.raises(ServerFault) as caught:
                async with queue.transact() as transaction:
                    transaction.ack(message)
            assert caught.value.maybe_done
            assert between.count("/transact") == 1

    asyncio.run(main())


def test_a_redirect_is_an_error_that_names_the_address(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url) as client:
            between.answer("/messages", "307 Temporary Redirect", "location: http://me:secret@other/queues")
            with pytest.raises(InvalidInput, match="redirects to 'http://") as caught:
                await client.queue(name).push("x")
            assert "secret" not in str(caught.value)
            assert between.count("/messages") == 1

    asyncio.run(main())


@pytest.mark.parametrize("linger_bytes", [None, 0], ids=["read-over", "cut-off"])
def test_a_request_that_is_too_large_raises_the_servers_error(
    sdk: Sdk, server: Running, name: str, linger_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if linger_bytes is not None:
        monkeypatch.setattr(connection, "LINGER_BYTES", linger_bytes)
    many = ["x" * 500_000] * 40

    async def main() -> None:
        async with sdk.connect(f"http://127.0.0.1:{server.port}") as client:
            queue, stream = await client.create_queue(name), await client.create_stream(name)
            with pytest.raises(BatchTooLarge):
                await queue.push_many(many)
            with pytest.raises(BatchTooLarge):
                await stream.append_many(many)
            assert (await queue.stats()).ready == 0
            assert len(await queue.push_many(many[:20])) == 20

    asyncio.run(main())
