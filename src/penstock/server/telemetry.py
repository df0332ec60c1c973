"""What the server says of itself: one JSON line a request, and Prometheus metrics."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from typing import Any, BinaryIO

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.model import QueueInfo
from penstock.store.protocol import Store

LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
QUEUES_SHOWN_MAX = 1_000


class LogLines:
    """Lines gathered during one turn of the event loop are written together."""

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream or sys.stderr.buffer
        self._lines: list[bytes] = []

    def write(self, **fields: Any) -> None:
        if not self._lines:
            asyncio.get_running_loop().call_soon(self.flush)
        self._lines.append(msgspec.json.encode(fields) + b"\n")

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self._stream.write(b"".join(lines))
            self._stream.flush()


class Metrics:
    """Named as Prometheus wants them; each application has its own registry."""

    def __init__(self, store: Store) -> None:
        registry = self.registry = CollectorRegistry()
        self._requests = Counter(
            "penstock_http_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        self._latency = Histogram(
            "penstock_http_request_seconds",
            "Time to answer, waiting included.",
            ("method", "route"),
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.commit_batch = Histogram(
            "penstock_commit_batch_commands",
            "Commands that shared a commit.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
            registry=registry,
        )
        self.store_seconds = Histogram(
            "penstock_store_seconds", "Time a batch spent in the store.", buckets=LATENCY_BUCKETS, registry=registry
        )
        self.polls = Gauge("penstock_long_polls_open", "Polls that wait for a message.", registry=registry)
        self.wal_bytes = Gauge("penstock_wal_bytes", "Size of SQLite's write-ahead log.", registry=registry)
        self.canary_seconds = Histogram(
            "penstock_canary_seconds",
            "Push to pop of the canary's synthetic message.",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.canary_failures = Counter("penstock_canary_failures", "Canary rounds that failed.", registry=registry)
        self.undelivered = Counter(
            "penstock_leases_given_back", "Leases given back because their client had gone.", registry=registry
        )
        registry.register(QueueCollector(store))
        self._counters: dict[tuple[str, str, int], Any] = {}
        self._histograms: dict[tuple[str, str], Any] = {}

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        counter = self._counters.get((method, route, status))
        if counter is None:
            counter = self._counters[method, route, status] = self._requests.labels(method, route, str(status))
            self._histograms[method, route] = self._latency.labels(method, route)
        counter.inc()
        self._histograms[method, route].observe(seconds)

    def committed(self, commands: int, seconds: float) -> None:
        self.commit_batch.observe(commands)
        self.store_seconds.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class QueueCollector(Collector):
    """Depths and totals, read from the kept counters when they are asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterable[Metric]:
        queues = self._store.list_queues(limit=QUEUES_SHOWN_MAX)
        depth = GaugeMetricFamily("penstock_messages", "Messages now, by state.", labels=("queue", "state"))
        total = CounterMetricFamily("penstock_events", "What has happened to messages.", labels=("queue", "event"))
        retries = CounterMetricFamily("penstock_retries", "Deliveries that failed.", labels=("queue",))
        inflow = CounterMetricFamily("penstock_dead_letters", "Messages that died.", labels=("queue",))
        for info in queues:
            for state in ("ready", "scheduled", "leased", "dead", "archived"):
                depth.add_metric((info.name, state), getattr(info, state))
            for event, count in msgspec.structs.asdict(info.totals).items():
                total.add_metric((info.name, event), count)
            retries.add_metric((info.name,), _retries(info))
            inflow.add_metric((info.name,), info.totals.dead)
        return [depth, total, retries, inflow]


def _retries(info: QueueInfo) -> int:
    return max(0, info.totals.nacked + info.totals.lapsed - info.totals.dead)


class Stopwatch:
    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started
