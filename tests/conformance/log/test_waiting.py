"""Waiting for records: an append of this or another process wakes every waiter."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from penstock.log.interface import Streams
from tests.conformance.log.conftest import StreamsUnderTest

LONG = 60.0


def test_a_wait_for_existing_records_returns_at_once(streams: Streams) -> None:
    streams.append("s", [b"x"])
    assert streams.wait("s", 0, LONG)


def test_a_wait_ends_after_its_timeout(streams: Streams) -> None:
    assert not streams.wait("s", 0, 0.01)
    streams.append("s", [b"x"])
    assert not streams.wait("s", 1, 0.01)


def test_an_append_wakes_every_waiter(streams: Streams) -> None:
    streams.append("s", [b"first"])
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(streams.wait, "s", 1, LONG) for _ in range(8)]
        streams.append("s", [b"x"])
        assert all(future.result() for future in waiting)


def test_an_append_by_another_process_wakes_every_waiter(shared: StreamsUnderTest, streams: Streams) -> None:
    other = shared.open()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.wait, "s", 1, LONG)
        streams.append("s", [b"one", b"two"])
        assert waiting.result()


def test_listeners_are_notified_of_appends_until_they_unsubscribe(streams: Streams) -> None:
    streams.append("s", [b"first"])
    notified = threading.Semaphore(0)
    stop = streams.listen("s", notified.release)
    assert stop is not None
    streams.append("s", [b"x"])
    assert notified.acquire(timeout=LONG)
    stop()
    streams.append("s", [b"x"])
    assert not notified.acquire(blocking=False)
