"""Penstock mounted in other applications, with workers beside them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.asgi
from tests.integration.serving import PATIENCE, Client, clean_environment

pytestmark = pytest.mark.timeout(120)
TOKEN = "a-token-for-this-test"
APPLICATION = f"""
import logging
from fastapi import FastAPI
import penstock
import penstock.asgi
from penstock import aio

logging.basicConfig()
URL = "sqlite:///tasks.db"
queues = penstock.asgi.app(URL, auth_token={TOKEN!r}, canary_ms=0)
client = penstock.connect(URL)
emails = client.create_queue("emails", exist_ok=True)
client.create_queue("sent", exist_ok=True)
client.create_queue("reports", exist_ok=True)

@emails.worker()
def send(message):
    client.queue("sent").push({{"thread": message.payload}})

tasks = aio.connect(URL)

@tasks.queue("reports").worker()
async def write(message):
    await tasks.queue("sent").push({{"task": message.payload}})

@tasks.queue("missing").worker()
async def lost(message):
    pass

api = FastAPI(lifespan=penstock.asgi.lifespan(queues, send, write, lost))
api.mount("/penstock", queues)

@api.post("/welcome/{{name}}")
def welcome(name: str):
    return {{"id": emails.push(name).id}}
"""


@contextmanager
def uvicorn(folder: Path, text: str, name: str) -> Iterator[tuple[Client, subprocess.Popen[bytes]]]:
    (folder / "application.py").write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "uvicorn", f"application:{name}", "--port", str(port), "--log-level", "warning"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, env=clean_environment(), stderr=log, stdout=log)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        with Client("127.0.0.1", port, TOKEN) as client:
            yield client, process
    finally:
        process.kill()
        process.wait()


def test_penstock_can_be_mounted_beside_routes_with_workers_that_stop_with_the_server(tmp_path: Path) -> None:
    with uvicorn(tmp_path, APPLICATION, "api") as (client, process):
        assert client.post("/welcome/ada").status == 200
        pushed = client.post("/penstock/queues/reports/messages", {"payload": "q3"})
        assert pushed.status == 201, pushed
        found = []
        while len(found) < 2:
            polled = client.post("/penstock/queues/sent/poll?wait_ms=5000")
            assert polled.status == 200
            found += [message["payload"] for message in polled.json["messages"]]
        assert sorted(map(str, found)) == ["{'task': 'q3'}", "{'thread': 'ada'}"]
        client.token = None
        assert client.get("/penstock/queues").status == 401
        client.close()
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    assert "the worker of queue 'missing' failed" in (tmp_path / "log").read_text()
    # Messages that the workers had leased are settled, so nothing waits for a lease to expire.
    with penstock.connect(f"sqlite:///{tmp_path}/tasks.db") as opened:
        for name in ("emails", "reports"):
            info = opened.queue(name).info()
            assert (info.ready, info.leased) == (0, 0)


def test_penstock_can_run_as_the_whole_application(tmp_path: Path) -> None:
    text = f"import penstock.asgi\nqueues = penstock.asgi.app('sqlite:///q.db', auth_token={TOKEN!r}, canary_ms=0)\n"
    with uvicorn(tmp_path, text, "queues") as (client, process):
        assert client.post("/queues", {"name": "q"}).status == 201
        client.close()
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    with penstock.connect(f"sqlite:///{tmp_path}/q.db") as opened:
        assert [each.name for each in opened.queues()] == ["q"]


def test_without_a_lifespan_penstock_starts_with_the_first_request(tmp_path: Path) -> None:
    text = f"""
import penstock.asgi
from starlette.applications import Starlette
from starlette.routing import Mount
queues = penstock.asgi.app('sqlite:///q.db', auth_token={TOKEN!r}, canary_ms=0)
api = Starlette(routes=[Mount('/q', queues)])
"""
    with uvicorn(tmp_path, text, "api") as (client, _):
        assert client.post("/q/queues", {"name": "q"}).status == 201
        assert client.get("/q/readyz").status == 200


def test_a_server_without_a_token_requires_the_insecure_setting() -> None:
    with pytest.raises(penstock.InvalidInput, match="insecure=True"):
        penstock.asgi.app("sqlite:///q.db")
    assert penstock.asgi.app("sqlite:///q.db", insecure=True)


def test_an_invalid_setting_is_named() -> None:
    with pytest.raises(penstock.InvalidInput) as caught:
        penstock.asgi.app("sqlite:///q.db", auth_token="t", prot=1)
    assert caught.value.field == "prot"


def test_a_function_that_is_not_a_worker_is_refused_at_once() -> None:
    with pytest.raises(penstock.InvalidInput, match=r"got function.*@queue.worker"):
        penstock.asgi.lifespan(print_nothing)  # type: ignore[arg-type]


def print_nothing() -> None: ...


def test_a_store_that_cannot_be_opened_stops_the_application(tmp_path: Path) -> None:
    (tmp_path / "q.db").write_bytes(os.urandom(8192))
    application = penstock.asgi.app(f"sqlite:///{tmp_path}/q.db", insecure=True)

    async def start() -> None:
        async with application.running():
            pass

    with pytest.raises(penstock.NotADatabase):
        asyncio.run(start())


def test_more_sync_workers_than_the_loop_has_threads_can_run(tmp_path: Path) -> None:
    count = 2 * ((os.cpu_count() or 1) + 4)
    with penstock.connect(f"sqlite:///{tmp_path}/q.db") as client:
        done = client.create_queue("done")
        queues = [client.create_queue(f"q{number}") for number in range(count)]
        workers = [queue.worker()(lambda message: done.push(message.payload)) for queue in queues]

        async def run() -> None:
            async with penstock.asgi.lifespan(*workers)(None):
                for number, queue in enumerate(queues):
                    await asyncio.to_thread(queue.push, number)
                while done.info().ready < count:
                    await asyncio.sleep(0.02)

        asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_large_responses_are_sent_in_parts_with_backpressure(tmp_path: Path) -> None:
    application = penstock.asgi.app(f"sqlite:///{tmp_path}/q.db", insecure=True, canary_ms=0)
    parts: list[int] = []

    async def send(event: MutableMapping[str, Any]) -> None:
        parts.append(len(event.get("body", b"")))

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    with penstock.connect(f"sqlite:///{tmp_path}/q.db") as client:
        client.create_queue("q").push("x" * 400_000)
    scope = {"type": "http", "method": "GET", "path": "/queues/q/peek", "query_string": b"", "headers": []}

    async def ask() -> None:
        async with application.running():
            await application(scope, receive, send)

    asyncio.run(ask())
    assert sum(parts) > 400_000
    assert max(parts) <= 64 << 10
