"""Workers: concurrency, failures, time limits and clean shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import InvalidInput, StoreClosed, UnknownQueue, aio
from tests.integration.client_support import Sdk, proxy
from tests.integration.serving import Running, running

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["sqlite", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tasks.db"
    return f"http://127.0.0.1:{request.getfixturevalue('server').port}"


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.005)


def test_a_worker_processes_a_queue(sdk: Sdk, url: str, name: str) -> None:
    running_ids, running_max = set(), 0

    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, max_attempts=1)
            await queue.push_many([{"n": number} for number in range(20)])

            async def work(message: Any) -> None:
                nonlocal running_max
                running_ids.add(message.id)
                running_max = max(running_max, len(running_ids))
                await asyncio.sleep(0.01)
                running_ids.discard(message.id)
                if message.payload["n"] == 7:
                    raise ValueError("seven")
                if message.payload["n"] == 8:
                    await message.nack("by hand", delay=600)

            worker = queue.worker(concurrency=4)(sdk.handler(work))
            running = asyncio.ensure_future(sdk.run(worker))
            info = await queue.info()
            while info.totals.acked + info.dead < 20:
                await asyncio.sleep(0.01)
                info = await queue.info()
            worker.stop()
            await running
            assert 2 <= running_max <= 4
            assert {each.error for each in await queue.dead_letters()} == {"ValueError: seven", "by hand"}
            assert (await queue.info()).totals.acked == 18

    asyncio.run(main())


def test_background_acks_are_done_when_a_run_ends(sdk: Sdk, url: str, name: str) -> None:
    handled: list[int] = []

    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            await queue.push_many([{"n": number} for number in range(500)])

            async def work(message: Any) -> None:
                handled.append(message.payload["n"])

            worker = queue.worker()(sdk.handler(work))
            running = asyncio.ensure_future(sdk.run(worker))
            await until(lambda: len(handled) == 500)
            worker.stop()
            await running
            info = await queue.info()
            assert (info.totals.acked, info.ready, info.leased) == (500, 0, 0)
            assert handled == list(range(500))

    asyncio.run(main())


def test_a_handler_that_becomes_slow_does_not_hold_back_other_messages(sdk: Sdk, url: str, name: str) -> None:
    handled: list[int] = []
    is_slow, go_on = threading.Event(), threading.Event()

    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            await queue.push_many([{"n": number} for number in range(100)])

            async def work(message: Any) -> None:
                if message.payload["n"] == 20:
                    is_slow.set()
                    while not go_on.is_set():
                        await asyncio.sleep(0.01)
                handled.append(message.payload["n"])

            worker = queue.worker()(sdk.handler(work))
            running = asyncio.ensure_future(sdk.run(worker))
            await until(is_slow.is_set)
            others: list[Any] = []
            async with asyncio.timeout(20):
                while len(others) < 79:
                    others += await queue.lease(100, wait=1)
            assert sorted(message.payload["n"] for message in others) == list(range(21, 100))
            assert {message.attempts for message in others} == {1}
            assert await queue.ack_many(others) == []
            go_on.set()
            await until(lambda: len(handled) == 21)
            worker.stop()
            await running
            info = await queue.info()
            assert (info.totals.acked, info.ready, info.leased) == (100, 0, 0)

    asyncio.run(main())


@pytest.mark.parametrize("prefetch", [-1, 10_001, True, "many"])
def test_an_invalid_prefetch_is_refused(prefetch: Any, tmp_path: Path) -> None:
    with (
        penstock.connect(f"sqlite:///{tmp_path}/tasks.db") as client,
        pytest.raises(penstock.PenstockError, match="prefetch"),
    ):
        client.create_queue("q").worker(prefetch=prefetch)(print)


def test_a_message_that_takes_too_long_is_nacked(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, max_attempts=1, lease_ms=1_000)
            await queue.push("slow")
            ended = threading.Event()

            async def work(message: Any) -> None:
                try:
                    await asyncio.sleep(2.5)
                finally:
                    ended.set()

            worker = queue.worker(time_limit=1.5)(sdk.handler(work))
            running = asyncio.ensure_future(sdk.run(worker))
            await until(ended.is_set)
            worker.stop()
            await running
            [dead] = await queue.dead_letters()
            assert dead.error == "TimeoutError: took longer than 1.5 s"
            totals = (await queue.info()).totals
            assert (totals.acked, totals.lapsed) == (0, 0), "the lease was renewed until the limit, and not acked later"

    asyncio.run(main())


def test_a_stop_finishes_running_messages(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)
            await queue.push_many([1, 2, 3])
            begun = threading.Event()

            async def work(message: Any) -> None:
                begun.set()
                await asyncio.sleep(0.2)

            worker = queue.worker(concurrency=1)(sdk.handler(work))
            running = asyncio.ensure_future(sdk.run(worker))
            await until(begun.is_set)
            worker.stop()
            await running
            stats = await queue.stats()
            assert (stats.totals.acked, stats.ready, stats.leased) == (1, 2, 0)

    asyncio.run(main())


def test_a_stop_releases_messages_that_do_not_finish_in_time(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name, max_attempts=1)
            await queue.push("endless")
            begun = threading.Event()
            ended = threading.Event()

            async def work(message: Any) -> None:
                begun.set()
                try:
                    await asyncio.sleep(1)
                finally:
                    ended.set()

            worker = queue.worker(grace=0.05)(sdk.handler(work))
            running = asyncio.ensure_future(sdk.run(worker))
            await until(begun.is_set)
            worker.stop()
            await running
            [message] = await queue.lease()
            assert message.attempts == 1, "released, not failed"
            await until(ended.is_set)
            await message.ack()

    asyncio.run(main())


def test_an_idle_worker_stops_at_once(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)

            async def work(message: Any) -> None:
                pass

            worker = queue.worker(concurrency=3)(sdk.handler(work))
            running = asyncio.ensure_future(sdk.run(worker))
            await asyncio.sleep(0.2)
            started = time.monotonic()
            worker.stop()
            await running
            assert time.monotonic() - started < 5

    asyncio.run(main())


def test_an_async_worker_is_stopped_at_once_from_another_thread(url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as client:
            queue = await client.create_queue(name)

            @queue.worker()
            async def work(message: aio.LeasedMessage) -> None:
                pass

            began = time.monotonic()
            threading.Timer(0.3, work.stop).start()
            await work.run()
            assert time.monotonic() - began < 10

    asyncio.run(main())


def test_a_worker_of_a_missing_queue_raises_an_error(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:

            async def work(message: Any) -> None:
                pass

            with pytest.raises(UnknownQueue):
                await sdk.run(client.queue(name).worker()(sdk.handler(work)))
            with pytest.raises(InvalidInput):
                client.queue(name).worker(concurrency=0)(sdk.handler(work))

    asyncio.run(main())


def test_a_failed_worker_can_run_again(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        done = []
        async with sdk.connect(url) as client:

            async def work(message: Any) -> None:
                done.append(message.payload)

            queue = await client.create_queue(name)
            worker = queue.worker(concurrency=3)(sdk.handler(work))
            running = asyncio.ensure_future(sdk.run(worker))
            await queue.push("first")
            await until(lambda: done)
            await queue.drop(force=True)
            with pytest.raises(UnknownQueue):
                await running
            await client.create_queue(name)
            running = asyncio.ensure_future(sdk.run(worker))
            await queue.push("second")
            await until(lambda: len(done) == 2)
            worker.stop()
            await running

    asyncio.run(main())


def test_a_worker_outlives_a_cut_connection(sdk: Sdk, server: Running, name: str) -> None:
    with proxy(server.port) as between:

        async def main() -> None:
            async with sdk.connect(between.url) as client:
                queue = await client.create_queue(name)
                done = []

                async def work(message: Any) -> None:
                    done.append(message.payload)

                worker = queue.worker(concurrency=2)(sdk.handler(work))
                running = asyncio.ensure_future(sdk.run(worker))
                await queue.push(1)
                await until(lambda: done == [1])
                await asyncio.sleep(0.05)
                between.cut()
                await queue.push(2)
                await until(lambda: done == [1, 2])
                worker.stop()
                await running

        asyncio.run(main())


def test_calling_a_worker_calls_its_function() -> None:
    with penstock.connect("sqlite:///:memory:") as client:
        queue = client.create_queue("q")

        @queue.worker()
        def double(message: penstock.LeasedMessage) -> int:
            return int(message.payload) * 2

        queue.push(21)
        [message] = queue.lease()
        assert double(message) == 42

    async def main() -> None:
        async with aio.connect("sqlite:///:memory:") as client:
            queue = await client.create_queue("q")

            @queue.worker()
            async def double(message: aio.LeasedMessage) -> int:
                return int(message.payload) * 2

            await queue.push(21)
            [message] = await queue.lease()
            assert await double(message) == 42

    asyncio.run(main())


PROGRAMS = {
    "sync": """
import sys, time, penstock
client = penstock.connect(sys.argv[1])
queue = client.create_queue("q", exist_ok=True)
@queue.worker(concurrency=2)
def work(message):
    print("begun", flush=True)
    time.sleep(0.3)
work.run()
client.close()
print("left", flush=True)
""",
    "async": """
import asyncio, sys, penstock.aio
async def main():
    async with penstock.aio.connect(sys.argv[1]) as client:
        queue = await client.create_queue("q", exist_ok=True)
        @queue.worker(concurrency=2)
        async def work(message):
            print("begun", flush=True)
            await asyncio.sleep(0.3)
        await work.run(handle_signals=True)
    print("left", flush=True)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_signal_stops_a_worker_cleanly(kind: str, number: signal.Signals, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    with penstock.connect(url) as client:
        queue = client.create_queue("q")
        queue.push("x")
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAMS[kind], url], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert program.stdout is not None
        with program, program.stdout:
            assert program.stdout.readline() == "begun\n"
            program.send_signal(number)
            try:
                assert program.communicate(timeout=50) == ("left\n", None)
            finally:
                program.kill()
            assert program.returncode == 0
        assert queue.stats().totals.acked == 1


def test_a_signal_that_interrupts_no_wait_still_stops_a_worker(tmp_path: Path) -> None:
    """The signal is delivered to another thread just before the main thread starts to wait."""
    url = f"sqlite:///{tmp_path}/tasks.db"
    with penstock.connect(url) as client:
        client.create_queue("q").push("x")
    program = PROGRAMS["sync"].replace("time.sleep(0.3)", "import signal; signal.raise_signal(signal.SIGTERM)")
    done = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.returncode) == ("begun\nleft\n", 0)


def test_a_handler_that_ends_its_thread_ends_the_worker(url: str, name: str) -> None:
    """The worker must not go on silently with one lane fewer."""
    with penstock.connect(url) as client:
        queue = client.create_queue(name)
        queue.push(1)

        @queue.worker()  # With more lanes, another one could lease the message while this one ends.
        def leave(message: penstock.LeasedMessage) -> None:
            sys.exit(3)

        too_late = threading.Timer(10, leave.stop)
        too_late.start()
        with pytest.raises(SystemExit):
            leave.run()
        assert too_late.is_alive()
        too_late.cancel()
        assert queue.stats().ready == 1


def test_a_handler_whose_own_wait_is_cancelled_has_failed(url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as client:
            queue = await client.create_queue(name, backoff_ms=0)
            await queue.push(1)

            @queue.worker()
            async def work(message: aio.LeasedMessage) -> None:
                if message.attempts == 1:
                    other = asyncio.ensure_future(asyncio.sleep(60))
                    other.cancel()
                    await other
                work.stop()

            async with asyncio.timeout(10):
                await work.run()
            assert (await queue.stats()).totals.acked == 1

    asyncio.run(main())


def test_a_stop_after_a_run_does_not_stop_the_next_run(sdk: Sdk, url: str, name: str) -> None:
    done = []

    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)

            async def work(message: Any) -> None:
                done.append(message.payload)
                worker.stop()

            worker = queue.worker()(sdk.handler(work))
            for number in (1, 2, 3):
                await queue.push(number)
                await sdk.run(worker)
                worker.stop()
            assert done == [1, 2, 3]

    asyncio.run(main())


def test_a_stop_before_the_first_run_ends_that_run(sdk: Sdk, url: str, name: str) -> None:
    """An application that fails just after starting its worker stops the worker like this."""

    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)

            async def work(message: Any) -> None:
                pass

            worker = queue.worker()(sdk.handler(work))
            worker.stop()
            await sdk.run(worker)

    asyncio.run(main())


def test_a_worker_starts_working_when_its_server_becomes_reachable(
    sdk: Sdk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with penstock.connect(f"sqlite:///{tmp_path}/penstock.db") as client:
        client.create_queue("q").push("x")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def main() -> None:
        async with sdk.connect(f"http://127.0.0.1:{port}", connect_timeout=0.05, retry_for=50) as client:

            async def work(message: Any) -> None:
                worker.stop()

            worker = client.queue("q").worker()(sdk.handler(work))
            run = asyncio.ensure_future(sdk.run(worker))
            await until(lambda: "is unreachable" in caplog.text)
            await asyncio.sleep(0.5)  # This is ten times as long as a push would wait for a connection.
            assert not run.done()
            with running(tmp_path, port=port) as server:
                await run
                with server.client() as http:
                    assert http.get("/queues/q/stats").json["totals"]["acked"] == 1

    asyncio.run(main())


def test_a_worker_whose_client_is_closed_raises_an_error(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.connect(url) as client:
            queue = await client.create_queue(name)

            async def work(message: Any) -> None:
                pass

            running = asyncio.ensure_future(sdk.run(queue.worker()(sdk.handler(work))))
            await asyncio.sleep(0.2)
        async with asyncio.timeout(10):
            with pytest.raises(StoreClosed):
                await running

    asyncio.run(main())
