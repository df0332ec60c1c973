"""The SDK over a failing network: lost answers, refusals, restarts, and batched calls."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import aio
from penstock.errors import (
    BatchTooLarge,
    DiskFull,
    Forbidden,
    InvalidInput,
    LeaseLost,
    PayloadTooLarge,
    QueueFull,
    ServerFault,
    StoreClosed,
    StoreError,
    StoreUnreachable,
    TryLater,
    Unauthorized,
    Unreachable,
)
from penstock.server.http import connection
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


async def lease_one(queue: Any, wait: float = 20) -> Any:
    return await queue.lease(wait=wait)


def test_a_push_whose_answer_is_lost_is_one_message(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url) as client:
            queue = await client.create_queue(name)
            between.lose_answer("/messages")
            receipt = await queue.push("once")
            assert not receipt.duplicate
            between.lose_answer("/messages")
            many = await queue.push_many(["a", "b"])
            between.lose_answer("/messages")
            assert (await queue.push("mine", key="k")).duplicate, "a key of the user's own is reported as it is"
            assert between.count("/messages") == 6
            messages = await queue.lease(10)
            assert [each.id for each in messages][:3] == [receipt.id, *(each.id for each in many)]
            assert [each.payload for each in messages] == ["once", "a", "b", "mine"]

    asyncio.run(main())


def test_a_settle_whose_answer_is_lost_is_done(sdk: Sdk, between: Proxy, name: str) -> None:
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
def test_a_repeated_settle_does_not_claim_a_message_that_another_has(
    sdk: Sdk, server: Running, between: Proxy, name: str, verb: str, then: str
) -> None:
    """The first attempt finds the lease over already, and its answer is lost."""

    async def main() -> None:
        async with sdk.connect(between.url) as client, sdk.connect(f"http://127.0.0.1:{server.port}") as straight:
            queue = await client.create_queue(name)
            await queue.push("a")
            [late] = await queue.lease(lease=0.05)
            [other] = await lease_one(straight.queue(name))
            if then == "acked":
                await other.ack()
            between.lose_answer(f"/{verb}")
            with pytest.raises(LeaseLost) as caught:
                await getattr(late, verb)()
            assert caught.value.maybe_done is ((verb, then) != ("ack", "held")), "what is still there was not acked"
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
                assert (await straight.queue(name).get(other.id)).state == "leased"
                await other.ack()

    asyncio.run(main())


def test_a_transaction_whose_answer_is_lost_is_not_repeated(sdk: Sdk, between: Proxy, name: str) -> None:
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


def test_a_server_that_lost_its_database_says_whether_it_may_be_done(sdk: Sdk, between: Proxy, name: str) -> None:
    def away(path: str, **data: object) -> None:
        body = json.dumps({"error": "gone", "code": "store_unreachable", **data})
        between.answer(path, "503 Service Unavailable", body=body)

    async def main() -> None:
        async with sdk.connect(between.url) as client, sdk.connect(between.url, retry_for=0) as hasty:
            queue = await client.create_queue(name)
            for may_be in (True, False):
                away("/messages", maybe_done=may_be)
                with pytest.raises(StoreUnreachable) as caught:
                    await hasty.queue(name).push("a")
                assert caught.value.maybe_done is may_be
            await queue.push("a")
            (message,) = await queue.lease()
            away("/transact", maybe_done=True)
            with pytest.raises(StoreUnreachable):
                async with queue.transact() as transaction:
                    transaction.ack(message)
            assert between.count("/transact") == 1, "done twice, the second would find its lease gone"
            # Another ack of the same message stands for the first attempt, which the server did not know the end of.
            assert await queue.ack_many([message]) == []
            away("/ack", maybe_done=True)
            assert await queue.ack_many([message]) == []

    asyncio.run(main())


def test_a_refusal_after_a_lost_answer_does_not_claim_that_nothing_was_kept(
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
def test_an_error_of_a_gateway_is_retried_only_if_a_repeat_is_safe(
    sdk: Sdk, between: Proxy, name: str, status: str
) -> None:
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


def test_a_server_that_does_not_answer_is_unreachable(sdk: Sdk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def silent() -> None:
            async with sdk.connect(f"http://127.0.0.1:{port}", retry_for=0, timeout=0.1) as client:
                with pytest.raises(Unreachable, match=r"no answer within 0\.1 s"):
                    await client.queue("q").stats()

        asyncio.run(silent())

    async def refused() -> None:
        async with sdk.connect(f"http://127.0.0.1:{port}", retry_for=0.2) as client:
            with pytest.raises(Unreachable) as caught:
                await client.queue("q").push("x")
            assert not caught.value.maybe_done
            assert isinstance(caught.value, ConnectionError)

    asyncio.run(refused())


def test_a_server_that_cannot_be_reached_is_an_error_soon(sdk: Sdk, caplog: pytest.LogCaptureFixture) -> None:
    """Long before `retry_for`, which is for answers that were lost; and the wait is announced, once."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def main() -> None:
        async with sdk.connect(f"http://127.0.0.1:{port}") as client, asyncio.timeout(20):
            with pytest.raises(Unreachable, match="no connection"):
                await client.queue("q").push("x")
        async with sdk.connect(f"http://127.0.0.1:{port}", connect_timeout=0.2, retry_for=3600) as client:
            for _ in range(2):
                with pytest.raises(Unreachable, match="no connection"):
                    await client.queue("q").lease(wait=5)

    asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records if record.name == "penstock.client"]
    assert [line.partition("; ")[2] for line in lines] == [f"retrying for up to {s} s" for s in ("3", "0.2")]
    assert all(f"127.0.0.1:{port}" in line for line in lines)


def test_a_server_that_takes_no_connection_is_an_error_soon(sdk: Sdk) -> None:
    """One attempt to connect is bounded, too: its backlog is full, as if its packets were dropped."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(taken.getsockname())

        async def main() -> None:
            async with sdk.connect(f"http://127.0.0.1:{taken.getsockname()[1]}", connect_timeout=0.2) as client:
                async with asyncio.timeout(20):
                    with pytest.raises(Unreachable, match=r"no connection within 0\.2 s"):
                        await client.queue("q").push("x")

        asyncio.run(main())
        for each in waiting:
            each.close()


def test_an_ack_waits_for_a_server_that_restarts(sdk: Sdk, tmp_path: Path) -> None:
    """Work already done is worth more patience than `connect_timeout`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def main() -> None:
        async with sdk.connect(f"http://127.0.0.1:{port}", connect_timeout=0.1) as client:
            with running(tmp_path, port=port):
                queue = await client.create_queue("q")
                await queue.push("x")
                [message] = await queue.lease()
            acking = asyncio.ensure_future(message.ack())
            await asyncio.sleep(0.5)
            with running(tmp_path, port=port):
                await acking
                assert (await queue.stats()).totals.acked == 1

    asyncio.run(main())


def test_credentials(sdk: Sdk, tmp_path: Path) -> None:
    with running(tmp_path, auth_token="secret") as server:
        url = f"http://127.0.0.1:{server.port}"

        async def main() -> None:
            async with sdk.connect(url) as client:
                with pytest.raises(Unauthorized):
                    await client.queues()
            async with sdk.connect(url, token="secret") as client:
                queue = await client.create_queue("q")
                await queue.push("x")
            with server.client() as plain:
                key = plain.post("/queues/q/keys", {"rights": ["push"]}).json["key"]
            async with sdk.connect(url, token=key) as client:
                await client.queue("q").push("y")
                with pytest.raises(Forbidden):
                    await client.queue("q").lease()
            with pytest.raises(InvalidInput):
                sdk.connect(url, token="two\r\nlines")

        asyncio.run(main())


def test_over_tls(sdk: Sdk, tmp_path: Path) -> None:
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(make, cwd=tmp_path, check=True, capture_output=True)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    with running(tmp_path / "data", tls_cert=cert, tls_key=key) as server:

        async def main() -> None:
            url = f"https://localhost:{server.port}"
            async with sdk.connect(url, tls=ssl.create_default_context(cafile=cert)) as client:
                queue = await client.create_queue("q")
                waiting = asyncio.ensure_future(lease_one(queue))
                await queue.push(b"x" * 100_000)
                [message] = await waiting
                assert message.payload == b"x" * 100_000
            async with sdk.connect(url, retry_for=0) as client:
                with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                    await client.queue("q").stats()

        asyncio.run(main())


def test_a_connection_that_the_server_closed_meanwhile_is_not_used(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url, retry_for=0) as client:
            queue = await client.create_queue(name)
            between.cut()
            await asyncio.sleep(0.6)
            await queue.push("x")
            assert between.count("/messages") == 1

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_client_may_be_used_in_one_event_loop_after_the_other(
    server: Running, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = aio.connect(f"http://127.0.0.1:{server.port}", retry_for=0, timeout=5, connections=1)
    queue = client.queue(name)

    async def work() -> None:
        await asyncio.gather(*(queue.push(number) for number in range(3)), queue.stats(), queue.info())
        async for message in queue.consume(idle=0.01):
            async with message:
                pass

    async def make() -> None:
        await client.create_queue(name, lease_ms=1_000)
        await work()

    async def keep() -> None:
        await queue.push("kept")
        async for message in queue.consume():
            await asyncio.sleep(2)  # For twice as long as the lease.
            await message.ack()
            return

    for use in (make, work, keep, client.close):
        asyncio.run(use())
    assert not caplog.records
    gc.collect()  # The sockets of the loops that have ended, while that is no warning.


def test_a_restart_in_the_middle_of_consume(sdk: Sdk, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    seen: list[int] = []

    async def main() -> None:
        async with sdk.connect(f"http://127.0.0.1:{port}", connect_timeout=30) as client:
            with running(tmp_path, port=port):
                queue = await client.create_queue("q")
                await queue.push_many([0, 1])
                consuming = aiter(queue.consume())
                for _ in range(2):
                    async with await anext(consuming) as message:
                        seen.append(message.payload)
                following = asyncio.ensure_future(anext(consuming))
                await asyncio.sleep(0.1)
                await asyncio.to_thread(lambda: None)
                assert not following.done()
            # The server has gone while the poll was waiting; the next one has the same files.
            pushing = asyncio.ensure_future(_push(queue, 2))
            await asyncio.sleep(0.1)
            with running(tmp_path, port=port):
                await pushing
                async with await following as message:
                    seen.append(message.payload)
                assert (await queue.stats()).totals.acked == 3
                await consuming.aclose()

    asyncio.run(main())
    assert seen == [0, 1, 2]


def test_a_waiting_call_raises_when_the_client_is_closed(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        client = sdk.connect(between.url)
        queue = await client.create_queue(name)
        waiting = asyncio.ensure_future(lease_one(queue))
        while not between.count("/poll"):
            await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(StoreClosed, match="the client is closed"):
            await waiting

    asyncio.run(main())


def test_a_client_is_closed_though_a_renewal_is_still_being_tried(sdk: Sdk, tmp_path: Path) -> None:
    """It would be tried for a third of the lease."""

    async def main() -> None:
        with running(tmp_path) as server:
            client = sdk.connect(f"http://127.0.0.1:{server.port}")
            queue = await client.create_queue("q")
            await queue.push("x")
            consuming = aiter(queue.consume(lease=7_200))
            message = await anext(consuming)
        renewer = getattr(client, "target", client).lease_renewer
        for renewal in renewer._renewals.values():
            renewal.due = 0.0
        renewer._slot.set()
        await asyncio.sleep(0.1)
        await client.close()
        assert message.payload == "x"
        await consuming.aclose()

    asyncio.run(main())


async def _push(queue: Any, payload: Any, **how: Any) -> Any:
    return await queue.push(payload, **how)


def test_calls_at_the_same_time_travel_together(sdk: Sdk, between: Proxy, name: str) -> None:
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


def test_one_bad_push_does_not_spoil_the_others(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url, linger=0.05) as client:
            queue = await client.create_queue(name)
            payloads = ["a", "b", b"x" * (600 << 10), "c", "d"]
            outcomes = await asyncio.gather(*(_push(queue, each) for each in payloads), return_exceptions=True)
            assert [isinstance(each, PayloadTooLarge) for each in outcomes] == [False, False, True, False, False]
            assert sorted(message.payload for message in await queue.lease(9)) == ["a", "b", "c", "d"]
            for headers in ({"x": "\ud800"}, {"x": object()}):
                told = [None, headers, None]
                outcomes = await asyncio.gather(
                    *(_push(queue, "e", headers=each) for each in told), return_exceptions=True
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


def test_a_cancelled_lease_takes_no_message_along(server: Running, name: str) -> None:
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


def test_a_client_may_be_used_after_a_fork(server: Running, name: str) -> None:
    with penstock.connect(f"http://127.0.0.1:{server.port}") as client:
        queue = client.create_queue(name)
        queue.push("parent")
        child = os.fork()
        if not child:
            code = 1
            try:
                queue.push("child")
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        queue.push("parent again")
        assert [message.payload for message in queue.lease(5)] == ["parent", "child", "parent again"]


def test_an_interrupted_leader_neither_fails_nor_repeats_the_calls_of_others(server: Running, name: str) -> None:
    """It is interrupted when the server has done what it asked for itself and for another."""
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
            assert (len(interruptions), len(receipts)) == (1, 1), "the other's call ends well"
            stats = queue.stats()
            assert (stats.totals.pushed, stats.totals.acked) == (2, 0 if verb == "messages" else 2)
