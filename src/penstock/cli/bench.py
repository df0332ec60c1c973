"""`penstock bench`: a quick load test on a temporary queue."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from math import ceil

import click

from penstock.cli.common import CommandFailed, fail, on_queues
from penstock.cli.output import Advance, Data, Output, progress
from penstock.client._sync.client import Client
from penstock.client._sync.message import LeasedMessage
from penstock.client._sync.queue import Queue
from penstock.core.signals import defer_interrupt, interrupted_by_sigterm
from penstock.errors import PenstockError

# Makes one call and returns how many messages it moved; 0 when the phase is over.
Work = Callable[[], int]


@click.command("bench")
@click.option("--messages", type=click.IntRange(1, 10_000_000), default=5_000, show_default=True)
@click.option("--batch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Messages per call.")
@click.option("--clients", type=click.IntRange(1, 256), default=4, show_default=True, help="Concurrent clients.")
@click.option("--payload-bytes", type=click.IntRange(2, 524_288), default=200, show_default=True)
@on_queues(create=True)
def command(client: Client, out: Output, messages: int, batch: int, clients: int, payload_bytes: int) -> None:
    """Measure push, lease and ack, first one after the other, then together.

    JSON: {"messages", "batch", "clients", "payload_bytes", "phases": [{"phase", "msg_s", "p50_ms", "p99_ms",
    "calls", "seconds"}]}; latencies are per call.
    """
    queue = client.queue(f"bench-{secrets.token_hex(6)}")
    phases = []
    with interrupted_by_sigterm(), ExitStack() as stack:
        with defer_interrupt():
            client.create_queue(queue.name, lease_ms=600_000, max_attempts=1_000)
            stack.callback(queue.drop, force=True)
        load = Load(queue, batch, payload_bytes)
        advance = stack.enter_context(progress("bench", 4 * messages))
        for name, work in (("push", load.push), ("lease", load.lease), ("ack", load.ack), ("cycle", load.cycle)):
            load.left = messages
            phases.append({"phase": name, **_run(work, clients, advance)})
    settings = {"messages": messages, "batch": batch, "clients": clients, "payload_bytes": payload_bytes}
    headings = ("PHASE", "MSG/S", "P50 MS", "P99 MS", "CALLS", "SECONDS")
    rows = [tuple(phase.values()) for phase in phases]
    out.show({**settings, "phases": phases}, lambda: out.table(headings, rows, empty=""))


class Load:
    """The remaining work of a phase, shared by its clients."""

    def __init__(self, queue: Queue, batch: int, payload_bytes: int) -> None:
        self.left = 0
        self._queue = queue
        self._batch = batch
        self._payload = "x" * (payload_bytes - 2)
        self._lock = threading.Lock()
        self._leased: list[LeasedMessage] = []

    def _claim(self) -> int:
        with self._lock:
            count = min(self._batch, self.left)
            self.left -= count
            return count

    def push(self) -> int:
        count = self._claim()
        if count:
            self._queue.push_many([self._payload] * count)
        return count

    def lease(self) -> int:
        count = self._claim()
        if count:
            self._leased += self._poll(count)
        return count

    def ack(self) -> int:
        count = self._claim()
        if count:
            with self._lock:
                mine, self._leased = self._leased[:count], self._leased[count:]
            self._ack(mine)
        return count

    def cycle(self) -> int:
        count = self.push()
        if count:
            self._ack(self._poll(count))
        return count

    def _poll(self, count: int) -> list[LeasedMessage]:
        """Lease `count` messages, in several polls if concurrent clients split the batches."""
        found: list[LeasedMessage] = []
        while len(found) < count:
            more = self._queue.lease(count - len(found), wait=1)
            if not more:
                raise CommandFailed("messages that were pushed did not come back")
            found += more
        return found

    def _ack(self, leased: list[LeasedMessage]) -> None:
        if self._queue.ack_many(leased):
            raise CommandFailed("a lease was lost")


def _run(work: Work, clients: int, advance: Advance) -> Data:
    took_ms: list[float] = []
    moved = 0
    failures: list[BaseException] = []
    lock = threading.Lock()

    def client() -> None:
        nonlocal moved
        try:
            while not failures:
                started = time.perf_counter()
                count = work()
                if not count:
                    return
                elapsed = (time.perf_counter() - started) * 1000
                with lock:
                    took_ms.append(elapsed)
                    moved += count
                    advance(count)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    for failure in failures:
        if isinstance(failure, PenstockError):
            fail(failure)
        raise failure
    took_ms.sort()
    return {
        "msg_s": round(moved / seconds),
        "p50_ms": _percentile(took_ms, 0.50),
        "p99_ms": _percentile(took_ms, 0.99),
        "calls": len(took_ms),
        "seconds": round(seconds, 3),
    }


def _percentile(ordered: list[float], share: float) -> float:
    return round(ordered[max(0, ceil(len(ordered) * share) - 1)], 2)
