"""Fifty threads and nine processes on one file: no lock errors, no losses, no duplicates."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from penstock import LiteQueue, StoreClosed
from tests.conformance.recount import check_tables
from tests.integration.contend import (
    MAX_RETRIES,
    QNAMES,
    Tally,
    lock_with_sqlite,
    open_at,
    use_continuously,
    use_reopened,
)

SECONDS = 8.0
SPAWN = multiprocessing.get_context("spawn")


def settle(path: Path, futures: list[Future[Tally]]) -> None:
    """Check that every message that was put was either acked once or is still there."""
    tallies = [future.result(timeout=200) for future in futures]
    assert [error for tally in tallies for error in tally.errors] == []
    put = [id_ for tally in tallies for id_ in tally.put]
    acked = [id_ for tally in tallies for id_ in tally.acked]
    assert len(put) == len(set(put))
    assert len(acked) == len(set(acked))
    with LiteQueue(path) as queue:
        left = [message.id for qname in QNAMES for message in queue.pop_many(10_000, qname)]
        assert [queue.pop(qname) for qname in QNAMES] == [None, None]
    assert len(put) == len(acked) + len(left)
    assert set(put) == {*acked, *left}
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        check_tables(db)


def test_fifty_threads_and_nine_processes_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    with (
        LiteQueue(path, MAX_RETRIES) as shared,
        ProcessPoolExecutor(9, mp_context=SPAWN) as processes,
        ThreadPoolExecutor(50) as threads,
    ):
        works = [use_continuously, use_reopened] * 4 + [lock_with_sqlite]
        futures = [processes.submit(work, path, seed, SECONDS) for seed, work in enumerate(works)]
        futures += [threads.submit(use_continuously, path, 100 + n, SECONDS, shared) for n in range(30)]
        futures += [threads.submit(use_reopened, path, 200 + n, SECONDS) for n in range(20)]
        settle(path, futures)


def test_many_processes_open_a_brand_new_file_at_the_same_moment(tmp_path: Path) -> None:
    with ProcessPoolExecutor(8, mp_context=SPAWN) as processes:
        list(processes.map(abs, range(64)))
        for number in range(10):
            path, at = tmp_path / f"queue{number}.db", time.time() + 0.05
            settle(path, [processes.submit(open_at, path, at) for _ in range(8)])


def test_many_threads_open_a_brand_new_file_at_the_same_moment(tmp_path: Path) -> None:
    path, at = tmp_path / "queue.db", time.time() + 0.1
    with ThreadPoolExecutor(50) as threads:
        settle(path, [threads.submit(open_at, path, at) for _ in range(50)])


@pytest.mark.parametrize("where", ["file", "memory"])
def test_closing_raises_in_threads_that_still_use_the_queue(tmp_path: Path, where: str) -> None:
    queue = LiteQueue(":memory:" if where == "memory" else tmp_path / "queue.db", durability="relaxed")
    started = threading.Barrier(21)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        started.wait(60)
        try:
            while True:
                if seed % 4 == 0:
                    queue.pop("idle", wait=60)
                queue.put(b"x")
                with queue.process():
                    queue.qsize()
                queue.peek()
        except BaseException as error:
            errors.append(error)

    queue.put(b"x", "idle-made-first")
    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(20)]
    for thread in threads:
        thread.start()
    started.wait(60)
    time.sleep(0.2)
    queue.close()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert {type(error) for error in errors} == {StoreClosed}
    assert len(errors) == 20
