"""What the server says of itself: one JSON line a request, and Prometheus metrics."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.broker import Broker
from penstock.model import QueueInfo

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
        # Whoever has closed the log does not want it.
        with suppress(OSError, ValueError):
            self._stream.write(b"".join(lines))
            self._stream.flush()


class Metrics:
    """Named as Prometheus wants them; each application has its own registry."""

    def __init__(self, broker: Broker) -> None:
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
        self.wal_bytes = Gauge("penstock_wal_bytes", "Size of SQLite's write-ahead log.", registry=registry)
        self.journal_offset = Gauge(
            "penstock_journal_next_offset", "The offset of the next record in the journal's log.", registry=registry
        )
        self.canary_seconds = Histogram(
            "penstock_canary_seconds",
            "Push to pop of the canary's synthetic message.",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._canary_rounds = Counter(
            "penstock_canary_rounds",
            "Canary rounds: within the objective, past it, or failed.",
            ("result",),
            registry=registry,
        )
        for result in ("met", "missed", "failed"):
            self._canary_rounds.labels(result)
        registry.register(BrokerCollector(broker))
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

    def canary(self, heard: bool, seconds: float, objective_seconds: float) -> None:
        if heard:
            self.canary_seconds.observe(seconds)
        result = "failed" if not heard else "met" if seconds <= objective_seconds else "missed"
        self._canary_rounds.labels(result).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class BrokerCollector(Collector):
    """Depths, totals and waits, read from what is kept anyway when they are asked for."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        broker = self._broker
        yield GaugeMetricFamily("penstock_long_polls_open", "Polls that wait for a message.", broker.polls)
        yield GaugeMetricFamily("penstock_commit_queue", "Commands that wait for a commit.", broker.committer.depth)
        yield CounterMetricFamily(
            "penstock_leases_given_back", "Leases given back because their client had gone.", broker.given_back
        )
        queues = broker.store.list_queues(limit=QUEUES_SHOWN_MAX)
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
        yield from (depth, total, retries, inflow)


def _retries(info: QueueInfo) -> int:
    return max(0, info.totals.nacked + info.totals.lapsed - info.totals.dead)
