"""The SDK's connections: unreachable servers, restarts, credentials, TLS, event loops and forks."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import aio
from penstock.errors import (
    Forbidden,
    InvalidInput,
    StoreClosed,
    Unauthorized,
    Unreachable,
)
from tests.integration.client_support import Proxy, Sdk
from tests.integration.serving import Running, running

pytestmark = pytest.mark.timeout(60)


async def _push(queue: Any, payload: Any, **how: Any) -> Any:
    return await queue.push(payload, **how)


async def lease_one(queue: Any, wait: float = 20) -> Any:
    return await queue.lease(wait=wait)


def test_a_server_that_does_not_respond_is_unreachable(sdk: Sdk) -> None:
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


def test_an_unreachable_server_soon_raises_an_error(sdk: Sdk, caplog: pytest.LogCaptureFixture) -> None:
    """The error comes long before `retry_for` ends, which applies to lost responses, and the wait is logged once."""
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


def test_a_server_that_accepts_no_connection_soon_raises_an_error(sdk: Sdk) -> None:
    """A single connection attempt is bounded too. A full backlog acts like a network that drops packets."""
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
    """Work that is already done is worth a longer wait than `connect_timeout`."""
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


def test_valid_credentials_are_required(sdk: Sdk, tmp_path: Path) -> None:
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


def test_a_client_connects_over_tls(sdk: Sdk, tmp_path: Path) -> None:
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


def test_a_connection_closed_by_the_server_is_not_reused(sdk: Sdk, between: Proxy, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(between.url, retry_for=0) as client:
            queue = await client.create_queue(name)
            between.cut()
            await asyncio.sleep(0.6)
            await queue.push("x")
            assert between.count("/messages") == 1

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_client_can_be_used_in_successive_event_loops(
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
            await asyncio.sleep(2)  # Hold the message for twice as long as its lease.
            await message.ack()
            return

    for use in (make, work, keep, client.close):
        asyncio.run(use())
    assert not caplog.records
    gc.collect()  # Close the sockets of the finished loops while that raises no warning.


def test_consume_survives_a_server_restart(sdk: Sdk, tmp_path: Path) -> None:
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
            # The server stops while the poll is waiting. The next server uses the same files.
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


def test_closing_a_client_does_not_wait_for_a_retried_renewal(sdk: Sdk, tmp_path: Path) -> None:
    """Otherwise the renewal would be retried for a third of the lease."""

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


def test_a_client_can_be_used_after_a_fork(server: Running, name: str) -> None:
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
