"""Signals and workers: which handler runs, the effect of a second signal, and how handlers are restored."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import aio
from tests.integration.client_support import Sdk
from tests.integration.serving import running

pytestmark = pytest.mark.timeout(60)

UVICORN = """
import asyncio, sys
import uvicorn
from penstock import aio

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    await receive()
    async with aio.connect(sys.argv[1]) as client:
        @client.queue("q").worker()
        async def work(message):
            print("worked", flush=True)

        running = asyncio.create_task(work.run())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        work.stop()
        await running
    print("worker left", flush=True)
    await send({"type": "lifespan.shutdown.complete"})

uvicorn.run(app, port=0, log_level="warning")
"""

GATHER = """
import asyncio, sys
from penstock import aio

async def main():
    async with aio.connect(sys.argv[1]) as client:
        async def work(message):
            print("worked", flush=True)
        workers = []
        for name in ("q", "r"):
            queue = await client.create_queue(name, exist_ok=True)
            workers.append(queue.worker()(work))
        await asyncio.gather(*(worker.run(HOW) for worker in workers))
    print("left", flush=True)

asyncio.run(main())
"""

STUCK = {
    "sync": """
import logging, sys, time, penstock
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
client = penstock.connect(sys.argv[1])
@client.queue("q").worker(grace=600)
def work(message):
    sys.stdout.write("begun\\n")
    sys.stdout.flush()
    time.sleep(600)
work.run()
client.close()
print("left", flush=True)
""",
    "async": """
import asyncio, logging, sys, penstock.aio
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
async def main():
    async with penstock.aio.connect(sys.argv[1]) as client:
        @client.queue("q").worker(grace=600)
        async def work(message):
            print("begun", flush=True)
            while True:
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    if message.settled:
                        raise
        await work.run(handle_signals=True)
    print("left", flush=True)
asyncio.run(main())
""",
}


@contextmanager
def program(text: str, url: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    started = subprocess.Popen(
        [sys.executable, "-c", text, url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield started, started.stdout
    finally:
        started.kill()
        started.communicate()


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/tasks.db"
    with penstock.connect(url) as client:
        client.create_queue("q").push("x")
        client.create_queue("r").push("x")
    return url


def test_sigterm_stops_the_application_that_an_async_worker_runs_in(url: str) -> None:
    with program(UVICORN, url) as (started, output):
        assert output.readline() == "worked\n"
        started.terminate()
        assert output.read() == "worker left\n"
        started.wait()


def test_workers_of_one_loop_leave_signals_to_it(url: str) -> None:
    with program(GATHER.replace("HOW", ""), url) as (started, output):
        assert [output.readline(), output.readline()] == ["worked\n"] * 2
        started.terminate()
        assert started.wait() == -signal.SIGTERM


def test_one_signal_stops_all_workers_that_handle_signals(url: str) -> None:
    with program(GATHER.replace("HOW", "handle_signals=True"), url) as (started, output):
        assert [output.readline(), output.readline()] == ["worked\n"] * 2
        started.terminate()
        assert output.read() == "left\n"
        assert started.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_second_signal_releases_running_messages_and_stops(kind: str, number: signal.Signals, url: str) -> None:
    with program(STUCK[kind], url) as (started, output):
        assert output.readline() == "begun\n"
        started.send_signal(number)
        assert "finishing " in output.readline()
        started.send_signal(number)
        assert "releasing" in output.readline()
        assert output.read() == "left\n"
        assert started.wait() == 0
    with penstock.connect(url) as client:
        [message] = client.queue("q").lease()
        assert message.attempts == 1, "released, not failed"


@pytest.mark.parametrize("where", ["file", "server"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_second_signal_releases_every_lease_of_the_worker(kind: str, where: str, url: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        if where == "server":
            server = stack.enter_context(running(tmp_path))
            url = f"http://127.0.0.1:{server.port}"
        client = stack.enter_context(penstock.connect(url))
        queue = client.create_queue("q", exist_ok=True)
        queue.push_many(["y"] * (4 - queue.stats().ready))
        text = STUCK[kind].replace("grace=600", "grace=600, concurrency=4")
        with program(text, url) as (started, output):
            assert [output.readline() for _ in range(4)] == ["begun\n"] * 4
            started.send_signal(signal.SIGINT)
            assert "finishing " in output.readline()
            started.send_signal(signal.SIGINT)
            assert "releasing 4 unfinished messages of 'q'" in output.readline()
            assert output.read() == "left\n"
            assert started.wait() == 0
        assert queue.stats().leased == 0
        assert [message.attempts for message in queue.lease(9)] == [1] * 4


def test_signal_handlers_are_restored() -> None:
    """The handlers of an application that shares the loop are restored too, in whatever order its workers end."""

    async def main() -> None:
        async with aio.connect("sqlite:///:memory:") as client:
            received = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, received.set)
            before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
            queue = await client.create_queue("q")

            async def work(message: aio.LeasedMessage) -> None:
                pass

            workers = [queue.worker()(work) for _ in range(3)]
            running = [asyncio.ensure_future(worker.run(handle_signals=True)) for worker in workers]
            await asyncio.sleep(0.05)
            assert all(signal.getsignal(number) != handler for number, handler in before.items())
            for number in (1, 0, 2):
                workers[number].stop()
                await running[number]
            assert {number: signal.getsignal(number) for number in before} == before
            os.kill(os.getpid(), signal.SIGTERM)
            await received.wait()
            loop.remove_signal_handler(signal.SIGTERM)

    asyncio.run(main())


def test_a_sync_worker_may_leave_signals_alone() -> None:
    with penstock.connect("sqlite:///:memory:") as client:
        handlers = []

        @client.create_queue("q").worker()
        def work(message: penstock.LeasedMessage) -> None:
            handlers.append(signal.getsignal(signal.SIGINT))
            work.stop()

        client.queue("q").push(1)
        work.run(handle_signals=False)
        client.queue("q").push(2)
        work.run()
        assert handlers[0] is signal.getsignal(signal.SIGINT)
        assert handlers[1] is not handlers[0]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_message_past_its_time_limit_is_logged(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    sdk = Sdk(kind)

    async def main() -> None:
        async with sdk.connect("sqlite:///:memory:") as client:
            queue = await client.create_queue("q", max_attempts=1)
            [receipt] = await queue.push_many(["slow"])
            over = threading.Event()

            async def work(message: Any) -> None:
                while not over.is_set():
                    await asyncio.sleep(0.01)

            worker = queue.worker(time_limit=0.05)(sdk.handler(work))
            running = asyncio.ensure_future(sdk.run(worker))
            while not await queue.dead_letters():
                await asyncio.sleep(0.01)
            over.set()
            worker.stop()
            await running
            errors = [each for each in caplog.records if each.levelno == logging.ERROR]
            assert len(errors) == 1
            message_text = errors[0].getMessage() + str(errors[0].exc_info)
            assert f"message {receipt.id} of 'q' failed" in message_text
            assert "took longer than 0.05 s" in message_text

    asyncio.run(main())
