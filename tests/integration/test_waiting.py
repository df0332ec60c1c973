"""pop(wait=...) returns when any process puts a message, and costs next to nothing until then."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import LiteQueue, StoreClosed
from penstock.broker.waiters_async import Waiters
from penstock.broker.waiters_threads import ThreadWaiters
from penstock.store.sqlite import SqliteStore

# Seconds until an unwoken wait ends; a wait that ends well before that was woken.
LONG = 60
SOON = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def queue(path: Path) -> Iterator[LiteQueue]:
    with LiteQueue(path) as queue:
        yield queue


def pop_while(queue: LiteQueue, act: Callable[[], Any], **options: Any) -> bytes:
    """Return the message of a pop that waits while `act` runs."""
    with ThreadPoolExecutor(1) as pool:
        started = time.monotonic()
        popped = pool.submit(queue.pop, wait=LONG, **options)
        time.sleep(0.1)
        act()
        message = popped.result(LONG * 2)
    assert message is not None
    assert time.monotonic() - started < SOON
    return message.data


def run_in_process(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100)


class IdleStore:
    """A store without other writers."""

    def version(self, topic: str | None = None) -> int:
        return 0

    def listen(self, listener: object) -> None:
        return None


def test_a_put_in_another_thread_wakes_a_pop(queue: LiteQueue) -> None:
    assert pop_while(queue, lambda: queue.put(b"x")) == b"x"


def test_a_put_through_another_handle_wakes_a_pop(queue: LiteQueue, path: Path) -> None:
    with LiteQueue(path) as other:
        assert pop_while(queue, lambda: other.put(b"x")) == b"x"


def test_a_put_in_another_process_wakes_a_pop(queue: LiteQueue, path: Path) -> None:
    script = f"from penstock import LiteQueue\nLiteQueue({str(path)!r}).put(b'x')"
    assert pop_while(queue, lambda: run_in_process(script)) == b"x"


def test_a_pop_can_wait_for_a_queue_that_does_not_exist_yet(queue: LiteQueue, path: Path) -> None:
    with LiteQueue(path) as other:
        assert pop_while(queue, lambda: other.put(b"x", "later"), qname="later") == b"x"


def test_a_message_that_becomes_due_wakes_a_pop(queue: LiteQueue) -> None:
    assert pop_while(queue, lambda: queue.put(b"x", delay=0.3)) == b"x"


def test_an_expired_lease_wakes_a_pop(queue: LiteQueue) -> None:
    queue.put(b"x")
    queue.pop(timeout=0.5)
    assert pop_while(queue, lambda: None) == b"x"


def test_a_nack_wakes_a_pop(queue: LiteQueue) -> None:
    queue.put(b"x")
    message = queue.pop()
    assert message is not None
    assert pop_while(queue, lambda: queue.nack(message, delay=0)) == b"x"


def test_each_message_wakes_one_pop(queue: LiteQueue) -> None:
    with ThreadPoolExecutor(20) as pool:
        popped = [pool.submit(queue.pop, wait=LONG) for _ in range(20)]
        time.sleep(0.1)
        queue.put_many([b"%d" % number for number in range(10)])
        for number in range(10, 20):
            queue.put(b"%d" % number)
        messages = [future.result(SOON) for future in popped]
    assert sorted(int(message.data) for message in messages if message) == list(range(20))


def test_an_empty_queue_pops_nothing(queue: LiteQueue) -> None:
    started = time.monotonic()
    assert queue.pop(wait=0.3) is None
    assert 0.3 <= time.monotonic() - started < SOON


def test_a_stopped_clock_does_not_make_a_wait_endless(path: Path) -> None:
    with LiteQueue(path, clock=lambda: 1_000_000) as queue:
        assert queue.pop(wait=0.1) is None


def test_waiting_uses_hardly_any_cpu(queue: LiteQueue) -> None:
    queue.pop(wait=0.01)
    before = time.thread_time()
    assert queue.pop(wait=2) is None
    assert time.thread_time() - before < 0.5


def test_closing_ends_all_waits(queue: LiteQueue) -> None:
    def wait() -> None:
        with suppress(StoreClosed):
            assert queue.pop(wait=LONG) is None

    with ThreadPoolExecutor(10) as pool:
        waits = [pool.submit(wait) for _ in range(10)]
        time.sleep(0.1)
        queue.close()
        for each in waits:
            each.result(SOON)


def test_a_put_between_check_and_wait_is_not_missed_by_a_thread(path: Path) -> None:
    with LiteQueue(path) as queue, LiteQueue(path) as other:
        queue.put(b"makes the queue")
        waiters = ThreadWaiters(queue._store)
        started = time.monotonic()
        for put in (lambda: other.put(b"x"), lambda: waiters.wake("default", 1)):
            ticket = waiters.ticket("default")
            put()
            waiters.wait(ticket, LONG)
        assert time.monotonic() - started < SOON


def test_a_put_between_check_and_wait_is_not_missed_by_a_coroutine(path: Path) -> None:
    async def wait(store: SqliteStore, other: LiteQueue) -> None:
        waiters = Waiters(store)
        ticket = waiters.ticket("default")
        await asyncio.to_thread(other.put, b"x")
        await asyncio.sleep(0.05)
        waiters.finish_check(ticket)
        await asyncio.wait_for(waiters.wait(ticket, LONG), SOON)
        waiters.close()

    with LiteQueue(path) as queue, LiteQueue(path) as other:
        asyncio.run(wait(queue._store, other))


@pytest.mark.parametrize("topic", ["orders/eu/q", "orders/eu/", "orders/"])
def test_a_push_committed_before_an_empty_check_ends_the_wait(topic: str) -> None:
    async def wait() -> None:
        waiters = Waiters(IdleStore())
        ticket = waiters.ticket(topic)
        waiters.wake("orders/eu/q", 1)
        waiters.finish_check(ticket)
        await asyncio.wait_for(waiters.wait(ticket, LONG), SOON)
        waiters.close()

    asyncio.run(wait())


def test_a_program_can_exit_with_an_open_queue(path: Path) -> None:
    done = run_in_process(
        f"""
        import threading
        from penstock import LiteQueue
        queue = LiteQueue({str(path)!r})
        for _ in range(3):
            threading.Thread(target=queue.pop, args=("idle",), kwargs={{"wait": 60}}, daemon=True).start()
        for _ in range(5):
            queue.put(b"x" * 100_000)
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with LiteQueue(path) as queue:
        assert queue.qsize() == 5


def test_ctrl_c_ends_a_wait_and_leaves_the_queue_usable(path: Path) -> None:
    done = run_in_process(
        f"""
        import os, signal, threading, time
        from penstock import LiteQueue
        queue = LiteQueue({str(path)!r})
        def interrupt():
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            queue.pop(wait=60)
        except KeyboardInterrupt:
            queue.put(b"x")
            print(queue.pop(wait=60).data)
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'x'\n", "")


def test_ctrl_c_at_any_moment_leaves_no_lock_and_no_partial_work(path: Path) -> None:
    done = run_in_process(
        f"""
        import os, random, signal, threading, time
        from penstock import LiteQueue, StoreError
        queue = LiteQueue({str(path)!r}, durability="relaxed")
        chance, over, stored_ids, armed = random.Random(1), threading.Event(), [], False
        def on_signal(*_):
            global armed
            if armed:
                armed = False
                raise KeyboardInterrupt
        signal.signal(signal.SIGINT, on_signal)
        def interrupt():
            for _ in range(40):
                time.sleep(chance.uniform(0, 0.02))
                os.kill(os.getpid(), signal.SIGINT)
            over.set()
        def put():
            while not over.is_set():
                try:
                    queue.put(b"x", "threads")
                except StoreError as error:
                    assert "interrupted in another thread" in str(error), error
        workers = [threading.Thread(target=put) for _ in range(3)]
        for each in [*workers, threading.Thread(target=interrupt)]:
            each.start()
        while not over.is_set():
            try:
                armed = True
                stored_ids.append(queue.put(b"y", "main"))
                armed = False
            except KeyboardInterrupt:
                pass
        for each in workers:
            each.join()
        there = {{message.id for message in queue.pop_many(10_000, "main")}}
        assert there >= set(stored_ids[:9_000])
        assert len(there) - len(stored_ids) <= 40
        queue.close()
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    with LiteQueue(path, busy_ms=0) as queue:
        queue.put(b"x")


@pytest.mark.parametrize("first", ["n/t/q", "n/t/"])
def test_a_cancelled_poll_passes_its_wake_up_to_a_namespace_poll(first: str) -> None:
    async def main() -> None:
        waiters = Waiters(IdleStore())
        leaving, staying = (asyncio.ensure_future(waiters.wait(waiters.ticket(topic), LONG)) for topic in (first, "n/"))
        await asyncio.sleep(0)
        waiters.wake("n/t/q", 1)
        leaving.cancel()
        async with asyncio.timeout(SOON):
            await staying
        waiters.close()

    asyncio.run(main())
