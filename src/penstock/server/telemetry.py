"""JSON log lines and Prometheus metrics of the server."""

from __future__ import annotations

import asyncio
import platform
import shutil
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from penstock import __version__
from penstock.broker.broker import Broker
from penstock.core.model import Ages, QueueInfo
from penstock.journal.folders import cuts_beside
from penstock.log.check_report import DamageKind
from penstock.log.recovery import FOUND
from penstock.store.interface import Store
from penstock.store.sqlite import SqliteStore

LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
QUEUES_SHOWN_MAX = 1_000
NO_AGES = Ages()
ACCESS_LINGER_SECONDS = 0.05
ACCESS_LINES_MAX = 1_000


class AccessLine(msgspec.Struct, gc=False):
    time: datetime
    request_id: str
    client: str | None
    method: str
    path: str
    route: str
    queue: str | None
    status: int
    ms: float
    rows: int | None
    who: str | None


class LogLines:
    """Writes log lines in batches: errors at the end of the event loop's iteration, requests 50 ms later."""

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream or sys.stderr.buffer
        self._lines: list[AccessLine | dict[str, Any]] = []
        self._encoder = msgspec.json.Encoder()

    def access(self, line: AccessLine) -> None:
        if not self._lines:
            asyncio.get_running_loop().call_later(ACCESS_LINGER_SECONDS, self.flush)
        self._lines.append(line)
        if len(self._lines) >= ACCESS_LINES_MAX:
            self.flush()

    def write(self, **fields: Any) -> None:
        asyncio.get_running_loop().call_soon(self.flush)
        self._lines.append({"time": datetime.now(UTC), **fields})

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        # The operator may have closed stderr; the server keeps running without a log.
        with suppress(OSError, ValueError):
            self._stream.write(self._encoder.encode_lines(lines))
            self._stream.flush()


CUTS_SECONDS = 30.0


class PlainHistogram:
    """A histogram of plain integers: cheap to update on every request, converted only when metrics are scraped."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(names, accumulate(self._counts), strict=True)), self._sum)


class Metrics:
    """Prometheus metrics of one application, with a registry of its own."""

    def __init__(self, broker: Broker) -> None:
        registry = self.registry = CollectorRegistry()
        self._work = WorkCollector()
        self.answered = self._work.answered
        self.committed = self._work.committed
        registry.register(self._work)
        ProcessCollector(registry=registry)
        build = Info("penstock_build", "Version, Python version and store of this server.", registry=registry)
        store = "sqlite" if isinstance(broker.store, SqliteStore) else "postgresql"
        build.info({"version": __version__, "python": platform.python_version(), "store": store})
        self.wal_bytes = Gauge("penstock_wal_bytes", "Size of SQLite's write-ahead log.", registry=registry)
        self.journal_offset = Gauge(
            "penstock_journal_next_offset", "The offset of the next record in the journal's log.", registry=registry
        )
        self.journal_failing = Gauge(
            "penstock_journal_failing",
            "1 if events cannot be moved from the store to the journal, so that they pile up in the store.",
            registry=registry,
        )
        self.canary_seconds = Histogram(
            "penstock_canary_seconds",
            "Push to pop of the canary's synthetic message.",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._canary_rounds = Counter(
            "penstock_canary_rounds",
            "Canary rounds by result: within the objective, slower, or failed.",
            ("result",),
            registry=registry,
        )
        for result in ("met", "missed", "failed"):
            self._canary_rounds.labels(result)
        collector = BrokerCollector(broker)
        self.cuts = collector.cuts
        registry.register(collector)

    def canary(self, received: bool, seconds: float, objective_seconds: float) -> None:
        if received:
            self.canary_seconds.observe(seconds)
        result = "failed" if not received else "met" if seconds <= objective_seconds else "missed"
        self._canary_rounds.labels(result).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class WorkCollector(Collector):
    """Collects HTTP requests and commits."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = {}
        self._latency: dict[tuple[str, str], PlainHistogram] = {}
        self._batch = PlainHistogram(BATCH_BUCKETS)
        self._store = PlainHistogram(LATENCY_BUCKETS)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method, route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        latency = self._latency.get((method, route))
        if latency is None:
            latency = self._latency[method, route] = PlainHistogram(LATENCY_BUCKETS)
        latency.observe(seconds)

    def committed(self, commands: int, seconds: float) -> None:
        self._batch.observe(commands)
        self._store.observe(seconds)

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "penstock_http_requests", "Requests answered.", labels=("method", "route", "status")
        )
        latency = HistogramMetricFamily(
            "penstock_http_request_seconds",
            "Time to answer a request, including long polling.",
            labels=("method", "route"),
        )
        batch = HistogramMetricFamily("penstock_commit_batch_commands", "Commands that shared a commit.", labels=())
        store = HistogramMetricFamily("penstock_store_seconds", "Time a batch spent in the store.", labels=())
        # The event loop keeps counting on its own thread meanwhile.
        for (method, route, status), count in list(self._requests.items()):
            requests.add_metric((method, route, str(status)), count)
        for names, spread in list(self._latency.items()):
            spread.add_to(latency, names)
        self._batch.add_to(batch)
        self._store.add_to(store)
        yield from (requests, latency, batch, store)


class BrokerCollector(Collector):
    """Collects queue depths, totals and ages from the store's counters when metrics are scraped."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.cuts = CutFiles(broker.store)

    def collect(self) -> Iterable[Metric]:
        broker = self._broker
        yield GaugeMetricFamily("penstock_long_polls_open", "Long polls waiting for a message.", broker.polls)
        yield GaugeMetricFamily("penstock_commit_queue", "Commands waiting for a commit.", broker.committer.depth)
        yield CounterMetricFamily(
            "penstock_leases_given_back", "Leases released because their client disconnected.", broker.given_back
        )
        if (free := disk_free_bytes(broker.store)) is not None:
            yield GaugeMetricFamily("penstock_disk_free_bytes", "Free space on the disk that holds the data.", free)
        yield GaugeMetricFamily(
            "penstock_log_cut_files",
            "Files of records cut off a damaged log, which a repair restores.",
            self.cuts.count(),
        )
        troubles = CounterMetricFamily(
            "penstock_log_troubles", "Damage found when opening the journal or a stream, by kind.", labels=["trouble"]
        )
        for trouble in DamageKind:
            troubles.add_metric([trouble], FOUND[trouble])
        yield troubles
        yield from self._queues()

    def _queues(self) -> Iterable[Metric]:
        found = self._broker.store.list_queues(limit=QUEUES_SHOWN_MAX + 1)
        queues = found[:QUEUES_SHOWN_MAX]
        yield GaugeMetricFamily(
            "penstock_queues_left_out",
            f"1 if there are more than {QUEUES_SHOWN_MAX:,} queues; the rest, by name, have no metrics.",
            float(len(found) > QUEUES_SHOWN_MAX),
        )
        ages = self._broker.store.ages([info.name for info in queues if info.ready])
        head = GaugeMetricFamily(
            "penstock_head_age_seconds", "Age of the message that would be leased next.", labels=("queue",)
        )
        oldest = GaugeMetricFamily(
            "penstock_oldest_age_seconds", "Age of the oldest ready message, whatever its priority.", labels=("queue",)
        )
        alert = GaugeMetricFamily(
            "penstock_queue_age_alert",
            "1 if the oldest ready message is older than max_age_alert_ms; only for queues with that option.",
            labels=("queue",),
        )
        depth = GaugeMetricFamily("penstock_messages", "Messages in the queue, by state.", labels=("queue", "state"))
        total = CounterMetricFamily("penstock_events", "Message events, by kind.", labels=("queue", "event"))
        retries = CounterMetricFamily("penstock_retries", "Deliveries that failed.", labels=("queue",))
        inflow = CounterMetricFamily(
            "penstock_dead_letters", "Messages moved to the dead-letter queue.", labels=("queue",)
        )
        for info in queues:
            age = ages.get(info.name, NO_AGES)
            head.add_metric((info.name,), (age.head_ms or 0) / 1000)
            oldest.add_metric((info.name,), (age.oldest_ms or 0) / 1000)
            if info.options.max_age_alert_ms is not None:
                alert.add_metric((info.name,), float(info.options.is_age_alert(age.oldest_ms)))
            for state in ("ready", "scheduled", "leased", "dead", "archived"):
                depth.add_metric((info.name, state), getattr(info, state))
            for event, count in msgspec.structs.asdict(info.totals).items():
                total.add_metric((info.name, event), count)
            retries.add_metric((info.name,), _retries(info))
            inflow.add_metric((info.name,), info.totals.dead)
        yield from (depth, head, oldest, alert, total, retries, inflow)


class CutFiles:
    """Counts the `*.cut` files beside a store; cached for 30 seconds, because there may be many streams."""

    def __init__(self, store: Store) -> None:
        path = getattr(store, "path", None)
        self._path = None if path is None or path == ":memory:" else Path(path)
        self._look_at = 0.0
        self._count = 0

    def count(self) -> int:
        if self._path is not None and time.monotonic() >= self._look_at:
            self._count = len(cuts_beside(self._path))
            self._look_at = time.monotonic() + CUTS_SECONDS
        return self._count


def disk_free_bytes(store: Store) -> int | None:
    """Return the free bytes on the disk that holds the data; None for a store without a local file."""
    path = getattr(store, "path", None)
    return None if path is None or path == ":memory:" else shutil.disk_usage(Path(path).parent).free


def _retries(info: QueueInfo) -> int:
    return max(0, info.totals.nacked + info.totals.lapsed - info.totals.dead)
