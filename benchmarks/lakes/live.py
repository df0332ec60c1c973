"""Measures the freshness of the gold tables under steady load, and the cost of the pipeline for the server."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from threading import Event, Thread
from time import monotonic
from typing import Any

import psutil

from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import QUEUE_MINUTES

from .start import PENSTOCK

BODY = "x" * 200
TICK_S = 0.05
POLL_S = 0.02
READY_S_MAX = 180
Row = dict[str, Any]


@contextmanager
def server(folder: Path, core: int | None = None) -> Iterator[tuple[psutil.Process, int]]:
    command = [PENSTOCK, "serve", "--port", "0", "--data", str(folder), "--no-access-log"]
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / "log_path"
    with log_path.open("wb") as sink:
        process = subprocess.Popen(command, stderr=sink, stdout=sink)
    try:
        if core is not None:
            psutil.Process(process.pid).cpu_affinity([core])
        yield psutil.Process(process.pid), _port(log_path)
    finally:
        process.kill()
        process.wait()


def _port(log_path: Path) -> int:
    deadline = monotonic() + READY_S_MAX
    while monotonic() < deadline:
        for word in log_path.read_text().split():
            if word.startswith("http://"):
                return int(word.rpartition(":")[2])
        time.sleep(0.05)
    raise RuntimeError(log_path.read_text())


@contextmanager
def following(folder: Path, cores: list[int] | None = None) -> Iterator[psutil.Process]:
    """Run `pipeline run --continuous`, and yield its process once the gold table has rows."""
    command = [PENSTOCK, "pipeline", "run", "--continuous", "--data", str(folder)]
    with (folder / "pipeline.out").open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        if cores is not None:
            psutil.Process(process.pid).cpu_affinity(cores)
        deadline = monotonic() + READY_S_MAX
        poller = GoldPoller(folder / "lake")
        while not poller.pushed():
            if process.poll() is not None or monotonic() > deadline:
                raise RuntimeError((folder / "pipeline.out").read_text())
            time.sleep(0.2)
        yield psutil.Process(process.pid)
    finally:
        for each in process_tree(process.pid):
            each.kill()
        process.wait()


def process_tree(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class GoldPoller:
    """Polls the number of pushes in the gold table. A poll is cheap until the table has a new version."""

    def __init__(self, lake: Path) -> None:
        self._table = Lake(lake)[QUEUE_MINUTES]
        self._version, self._found = -1, 0

    def pushed(self) -> int:
        news = self._table.folder / "_delta_log" / f"{self._version + 1:020}.json"
        if news.exists():
            delta = self._table.refresh().delta
            self._found = sum(delta.to_pyarrow_table(columns=["pushed"])["pushed"].to_pylist())
            self._version = delta.version()
        return self._found


class Load(Thread):
    """Generates events at a fixed rate: it pushes, leases and acks messages, which is one event each."""

    def __init__(self, port: int, events_s: int) -> None:
        super().__init__()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._batch = max(1, round(events_s * TICK_S / 3))
        self._over = Event()
        self.pushed: list[tuple[int, float]] = []
        """The total number of pushes at the time of each response."""
        self._ask("/queues", {"name": "steady"}, (200, 201))

    def run(self) -> None:
        total, due = 0, monotonic()
        messages = {"messages": [{"payload": BODY}] * self._batch}
        while not self._over.is_set():
            self._ask("/queues/steady/messages", messages)
            total += self._batch
            self.pushed.append((total, time.time()))
            leased = self._ask(f"/queues/steady/poll?batch={self._batch}&wait_ms=0")["messages"]
            items = [{"id": each["id"], "token": each["token"]} for each in leased]
            self._ask("/queues/steady/ack", {"items": items})
            due += TICK_S
            time.sleep(max(0.0, due - monotonic()))

    def _ask(self, path: str, body: Any = None, good: tuple[int, ...] = (200, 201)) -> Any:
        text = None if body is None else json.dumps(body)
        self._connection.request("POST", path, text, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status not in good:
            raise RuntimeError(content)
        return json.loads(content)

    def close(self) -> None:
        self._over.set()
        self.join()


def freshness(folder: Path, events_s: int, seconds: float) -> Row:
    """Measure the time from the response to a push until the gold table counts it."""
    with server(folder) as (_, port):
        load = Load(port, events_s)
        load.start()
        try:
            with following(folder):
                ages = _ages(folder / "lake", load, seconds)
        finally:
            load.close()
    cuts = quantiles(ages, n=20)
    return {
        "events_s": events_s,
        "p50_s": round(cuts[9], 2),
        "p95_s": round(cuts[18], 2),
        "offered_s": round(3 * load.pushed[-1][0] / (load.pushed[-1][1] - load.pushed[0][1])),
    }


def _ages(lake: Path, load: Load, seconds: float) -> list[float]:
    ages: list[float] = []
    poller = GoldPoller(lake)
    seen, counted, warm = poller.pushed(), 0, monotonic() + seconds / 3
    deadline = monotonic() + seconds * 4 / 3
    while monotonic() < deadline:
        found, now = poller.pushed(), time.time()
        while counted < len(load.pushed) and load.pushed[counted][0] <= found:
            if load.pushed[counted][0] > seen and monotonic() > warm:
                ages.append(now - load.pushed[counted][1])
            counted += 1
        seen = found
        time.sleep(POLL_S)
    return ages


def server_cost(folder: Path, events_s: int, window_s: float, windows: int) -> Row:
    """Measure the server's CPU time per message in turns: with the pipeline running and with it stopped.

    The server has the first core; the pipeline and the load share the others.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[1:] or cores)
    found: dict[str, list[float]] = {"alone": [], "followed": []}
    try:
        with server(folder, cores[0]) as (process, port):
            load = Load(port, events_s)
            load.start()
            try:
                with following(folder) as pipeline:
                    for number in range(2 * windows):
                        kind = "followed" if number % 2 else "alone"
                        # The driver is not stopped, because it may be draining the journal and hold its lock.
                        for each in process_tree(pipeline.pid)[1:]:
                            each.send_signal(signal.SIGCONT if kind == "followed" else signal.SIGSTOP)
                        found[kind].append(_cpu_us_per_message(process, load, window_s))
            finally:
                load.close()
    finally:
        os.sched_setaffinity(0, cores)
    # Only adjacent windows are compared, because the machine's speed changes by a third within minutes.
    ratios = [followed / alone for alone, followed in zip(found["alone"], found["followed"], strict=True)]
    return {
        "events_s": events_s,
        "alone_us": round(median(found["alone"]), 1),
        "followed_us": round(median(found["followed"]), 1),
        "growth": round(median(ratios) - 1, 3),
        "rounds": {kind: [round(each, 1) for each in values] for kind, values in found.items()},
    }


def _cpu_us_per_message(process: psutil.Process, load: Load, seconds: float) -> float:
    time.sleep(1)
    before, began = sum(process.cpu_times()[:2]), load.pushed[-1][0]
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) * 1e6 / (load.pushed[-1][0] - began)
