"""A program may fork with an open queue. Parent and child both keep working."""

from __future__ import annotations

import multiprocessing
import os
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import LeaseLost, LiteQueue, StoreClosed
from tests.conformance.recount import check_tables
from tests.postgres import cluster, drop_schema, new_schema

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "queue.db"
    yield path
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        check_tables(db)


class Child:
    """A forked process that does some work once it gets a signal through a pipe."""

    def __init__(self, work: Callable[[], Any]) -> None:
        start_pipe, self._tell = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                os.read(start_pipe, 1)
                work()
                status = 0
            finally:
                os._exit(status)

    def finish(self) -> int:
        """Start the work and return the exit status; -1 if the child hangs."""
        os.write(self._tell, b"x")
        deadline = time.monotonic() + 60
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                os.kill(self.pid, 9)
                os.waitpid(self.pid, 0)
                return -1
            time.sleep(0.002)


def test_a_put_by_a_child_after_its_parent_closed_is_kept(path: Path) -> None:
    queue = LiteQueue(path)
    queue.put(b"parent")
    child = Child(lambda: [queue.put(b"child") for _ in range(5)])
    queue.close()
    assert child.finish() == 0
    with LiteQueue(path) as again:
        assert again.qsize() == 6


def test_a_forked_child_sees_later_puts_of_its_parent(path: Path) -> None:
    with LiteQueue(path) as queue:
        queue.put(b"before")

        def expect_two() -> None:
            assert queue.qsize() == 2
            queue.put(b"child")

        child = Child(expect_two)
        queue.put(b"parent")
        assert child.finish() == 0
        assert [message.data for message in queue.pop_many(10)] == [b"before", b"parent", b"child"]


def test_parent_children_and_grandchildren_work_at_the_same_time(path: Path) -> None:
    with LiteQueue(path, durability="relaxed") as queue:
        queue.put(b"x")

        def work() -> None:
            grandchild = Child(lambda: [queue.put(b"grandchild") for _ in range(20)])
            for _ in range(20):
                queue.put(b"child")
            assert grandchild.finish() == 0

        children = [Child(work) for _ in range(4)]
        for child in children:
            os.write(child._tell, b"x")
        for _ in range(20):
            queue.put(b"parent")
        assert [child.finish() for child in children] == [0] * 4
        assert queue.qsize() == 1 + 20 + 4 * 40


def test_a_pool_of_forked_workers_shares_the_queue_it_was_made_with(path: Path) -> None:
    with LiteQueue(path, durability="relaxed") as queue:
        queue.put_many([b"%d" % number for number in range(100)])
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()

        def work() -> None:
            done = []
            while (message := queue.pop()) is not None:
                queue.ack(message)
                done.append(message.data)
            results.put(done)

        workers = [context.Process(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        done = [data for _ in workers for data in results.get()]
        for worker in workers:
            worker.join(60)
        assert [worker.exitcode for worker in workers] == [0] * 4
        assert sorted(done, key=int) == [b"%d" % number for number in range(100)]
        assert queue.qsize() == 0


def test_a_message_popped_before_the_fork_is_settled_once_by_either(path: Path) -> None:
    with LiteQueue(path) as queue:
        queue.put(b"x")
        message = queue.pop()
        assert message is not None
        assert Child(lambda: queue.ack(message)).finish() == 0
        # A repeated ack with the same token succeeds again, and a nack with it fails.
        assert queue.ack_many([message]) == []
        with pytest.raises(LeaseLost):
            queue.nack(message)
        assert queue.qsize() == 0


def test_a_fork_while_other_threads_commit_read_and_wait_leaves_both_sides_working(path: Path) -> None:
    with LiteQueue(path, durability="relaxed") as queue:
        queue.put(b"first")
        stop, errors, put = threading.Event(), [], []

        def run_until_stopped(step: Callable[[], Any]) -> None:
            try:
                while not stop.is_set():
                    step()
            except BaseException as error:
                errors.append(error)

        steps = [lambda: put.append(queue.put(b"parent"))] * 3
        steps += [queue.peek, queue.qsize, lambda: queue.pop("idle", wait=0.05)]
        threads = [threading.Thread(target=run_until_stopped, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                child = Child(lambda: (queue.put(b"child", "theirs"), queue.qsize("theirs"), queue.peek()))
                assert child.finish() == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        assert errors == []
        assert queue.qsize("theirs") == 20
        assert queue.qsize() == 1 + len(put)


def test_a_queue_in_memory_is_copied_to_the_child(tmp_path: Path) -> None:
    with LiteQueue(":memory:") as queue:
        queue.put(b"x")

        def work() -> None:
            assert queue.qsize() == 1
            queue.put(b"child")
            assert queue.qsize() == 2

        assert Child(work).finish() == 0
        assert queue.qsize() == 1


def test_a_closed_queue_stays_closed_in_the_child(path: Path) -> None:
    queue = LiteQueue(path)
    queue.close()

    def work() -> None:
        with pytest.raises(StoreClosed):
            queue.put(b"x")

    assert Child(work).finish() == 0


def test_a_forked_client_of_postgresql_is_woken_by_its_parent_and_by_other_processes() -> None:
    schema = new_schema()
    url = f"{cluster().url}&schema={schema}"
    with penstock.connect(url) as client, penstock.connect(url) as other:
        queue = client.create_queue("q")
        store = client.transport.broker.store  # type: ignore[attr-defined]
        assert queue.lease(wait=0.01) == [], "the parent has a listening thread from here on"
        ready_pipe, signal_ready = os.pipe()

        def wait_twice() -> None:
            for payload in ("parent", "other"):
                before = store.version("q")
                os.write(signal_ready, b"x")
                while store.version("q") == before:
                    time.sleep(0.002)
                with client.queue("q").lease()[0] as message:
                    assert message.payload == payload

        child = Child(wait_twice)
        os.write(child._tell, b"x")
        for pushing, payload in ((client, "parent"), (other, "other")):
            if not select.select([ready_pipe], [], [], 30)[0]:
                break  # The child was not woken.
            os.read(ready_pipe, 1)
            pushing.queue("q").push(payload)
        assert child.finish() == 0
        assert queue.stats().totals.acked == 2
    drop_schema(schema)
