"""JSON schemas of the tree API's analytics. A series is newest first."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from penstock.wire.tree import TreeOptions

Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Interval = Annotated[str, Meta(pattern="^([1-9][0-9]{0,4}[mhd]|minute|hour|day)$")]


class Source(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Source of a window's history, if the window begins before the roll-ups."""

    rollups_since: str
    lake_until: str | None = None
    """Time up to which the lake, which has the older data, is complete."""
    note: str | None = None


class HistoryQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """A window. If given, the data comes from the roll-ups, and from the lake where those are too recent."""

    from_: Time | None = field(default=None, name="from")
    """Start; by default an hour before `to`."""
    to: Time | None = None
    """End; by default now."""
    interval: Interval | None = None


class PageQuery(HistoryQuery, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000
    after: Annotated[str, Meta(max_length=1_000)] | None = None
    """The `next` of an earlier page."""


class TreeStats(Struct, rename="camel", kw_only=True):
    pending: int
    processing: int
    completed: int
    failed: int
    """Deliveries that failed, or whose lease ran out."""
    dead_letter: int
    total: int
    """Messages pushed in total."""


class StatsPoint(TreeStats, kw_only=True):
    timestamp: str


class QueueStats(Struct, kw_only=True, omit_defaults=True):
    """Counts over a window: pending, processing and deadLetter at its end, the others within it."""

    queue: str
    ns: str | None
    task: str | None
    name: str
    options: TreeOptions
    stats: TreeStats
    series: list[StatsPoint] | None = None


class AllQueues(Struct, kw_only=True, omit_defaults=True):
    queues: list[QueueStats]
    next: str | None = None
    source: Source | None = None


class NamespaceStats(Struct, kw_only=True, omit_defaults=True):
    namespace: str
    totals: TreeStats
    """Totals of all queues, including those on other pages."""
    queues: list[QueueStats]
    next: str | None = None
    source: Source | None = None


class TaskStats(Struct, kw_only=True, omit_defaults=True):
    namespace: str
    task: str
    totals: TreeStats
    queues: list[QueueStats]
    next: str | None = None
    source: Source | None = None


class DepthPoint(Struct):
    timestamp: str
    depth: int
    processing: int


class QueueDepth(Struct, kw_only=True, omit_defaults=True):
    queue: str
    depth: int
    processing: int
    series: list[DepthPoint] | None = None


class Depths(Struct, kw_only=True, omit_defaults=True):
    depths: list[QueueDepth]
    next: str | None = None
    source: Source | None = None


class ThroughputPoint(Struct, rename="camel"):
    timestamp: str
    messages_per_minute: float
    messages_per_second: float


class Throughput(Struct, omit_defaults=True):
    """Messages completed, in all queues."""

    throughput: list[ThroughputPoint]
    source: Source | None = None


class Percentiles(Struct):
    p50: int | None
    p95: int | None
    p99: int | None


class LatencyPoint(Struct, kw_only=True):
    timestamp: str
    wait: Percentiles
    service: Percentiles
    total: Percentiles


class QueueLatency(Struct, kw_only=True, omit_defaults=True):
    """Milliseconds: from push to first lease, from lease to completion, and from push to completion."""

    queue: str
    wait: Percentiles
    service: Percentiles
    total: Percentiles
    series: list[LatencyPoint] | None = None
    """Steps with at least one message."""


class Latencies(Struct, kw_only=True, omit_defaults=True):
    latency: list[QueueLatency]
    next: str | None = None
    source: Source | None = None
