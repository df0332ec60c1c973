"""Totals of all queues over the last minutes or days, for the dashboard's first screen.

All dashboards share one response, which is cached for at least twenty times its cost: with ten thousand queues it may
take a third of a second, and must not use more than a twentieth of the server's time.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Annotated, Any

from msgspec import Meta, Struct

from penstock.broker.broker import Broker
from penstock.core.latency import summarize
from penstock.core.model import Ages, Depth, Latencies, Latency, RollUp, Totals, Window, current_depth
from penstock.server.api.tree.routes import API
from penstock.server.background import CANARY_QUEUE
from penstock.server.http.messages import Request, Response, reply
from penstock.server.metrics_history import History
from penstock.server.routing import Route
from penstock.wire.analytics import Percentiles
from penstock.wire.http_errors import HttpError
from penstock.wire.payloads import rfc3339

MINUTES_MAX = 366 * 24 * 60
KEPT_SECONDS_MIN = 2.0
KEPT_TIMES = 20
BUSIEST = 8


class OverviewQuery(Struct, forbid_unknown_fields=True):
    minutes: Annotated[int, Meta(ge=1, le=MINUTES_MAX)] = 60
    step_minutes: Annotated[int, Meta(ge=1, le=MINUTES_MAX)] = 1


class Counts(Struct, rename="camel", kw_only=True):
    pushed: int = 0
    completed: int = 0
    failed: int = 0
    """Deliveries that failed or whose lease expired."""
    died: int = 0
    expired: int = 0
    pending: int = 0
    processing: int = 0
    dead_letter: int = 0


class OverviewPoint(Counts, kw_only=True):
    timestamp: str
    wait: Percentiles
    service: Percentiles


class BusyQueue(Counts, kw_only=True):
    queue: str


class Overview(Struct, rename="camel", kw_only=True):
    timestamp: str
    queues: int
    paused: int
    oldest_age_ms: int | None
    """Age since its push of the oldest ready message in any queue."""
    totals: Counts
    """Current pending, processing and deadLetter; the other counts are for the window."""
    wait: Percentiles
    service: Percentiles
    total: Percentiles
    busiest: list[BusyQueue]
    series: list[OverviewPoint]
    """Newest first."""


class Shared:
    """Shares one response among concurrent requests and caches it for a time proportional to its cost."""

    def __init__(self, load: Callable[[Any], Coroutine[Any, Any, Response]]) -> None:
        self._load = load
        self._cached: dict[Any, tuple[asyncio.Future[Response], float]] = {}

    async def __call__(self, key: Any) -> Response:
        now = time.monotonic()
        loading, until = self._cached.get(key, (None, 0.0))
        if loading is None or (loading.done() and (until < now or loading.exception() is not None)):
            self._cached = {known: kept for known, kept in self._cached.items() if kept[1] >= now}
            loading = asyncio.ensure_future(self._load(key))
            self._cached[key] = (loading, now + KEPT_SECONDS_MIN)
            loading.add_done_callback(lambda done: self._keep(key, done, time.monotonic() - now))
        found = await asyncio.shield(loading)
        return Response(found.status, found.body, rows=found.rows)

    def _keep(self, key: Any, done: asyncio.Future[Response], took: float) -> None:
        if not done.cancelled() and done.exception() is None:
            self._cached[key] = (done, time.monotonic() + max(KEPT_SECONDS_MIN, KEPT_TIMES * took))


class OverviewApi:
    def __init__(self, broker: Broker, history: History) -> None:
        self._broker = broker
        self._history = history
        self._shared = Shared(self._load)

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                f"{API}/analytics/overview",
                self.overview,
                "All queues together, over the last minutes",
                "read",
                tag="tree",
                query=OverviewQuery,
                answers={200: Overview},
            )
        ]

    async def overview(self, request: Request) -> Response:
        query = request.query(OverviewQuery)
        points = -(-query.minutes // query.step_minutes)
        if points > self._broker.limits.steps:
            raise HttpError(422, "invalid_value", f"{points} points are too many", field="step_minutes")
        return await self._shared((query.minutes, query.step_minutes))

    async def _load(self, span: tuple[int, int]) -> Response:
        minutes, step = span
        now = self._broker.store.clock()
        to = now // 60_000 + 1
        gathered = _Gathered(Window(to - minutes, to, step))
        async for rolled, latencies in self._pages(gathered.window):
            for each in rolled:
                gathered.add(each)
            gathered.add_ages(await self._ages([each.info.name for each in rolled if each.info.ready]))
            for timed in latencies:
                gathered.add_latencies(timed)
        return reply(gathered.overview(now), rows=gathered.queues)

    async def _pages(self, window: Window) -> AsyncIterator[tuple[list[RollUp], list[Latencies]]]:
        after: str | None = None
        limit = self._broker.limits.page
        while True:
            rolled = await self._history.roll_ups(window, prefix="", after=after, limit=limit)
            timed = await self._history.latencies(window, after=after, limit=limit)
            # The canary is not traffic.
            yield (
                [each for each in rolled if each.info.name != CANARY_QUEUE],
                [each for each in timed if each.queue != CANARY_QUEUE],
            )
            if len(rolled) < limit:
                return
            after = rolled[-1].info.name

    async def _ages(self, queues: list[str]) -> list[Ages]:
        return list((await self._broker.read(lambda: self._broker.store.ages(queues))).values())


class _Gathered:
    def __init__(self, window: Window) -> None:
        self.window = window
        self.queues = 0
        self._paused = 0
        self._totals = Counts()
        self._steps = {start: Counts() for start in window.starts}
        self._busiest: list[tuple[int, str, Counts]] = []
        self._oldest_ms: int | None = None
        self._latencies: dict[int, dict[int, Counter[int]]] = {}

    def add(self, each: RollUp) -> None:
        info = each.info
        self.queues += 1
        self._paused += info.paused
        mine = Counts()
        for span in each.spans:
            _add_totals(self._steps[span.minute], span.happened)
            _add_totals(mine, span.happened)
        self._depths(each)
        _add_depth(mine, current_depth(info))
        for name in Counts.__struct_fields__:
            setattr(self._totals, name, getattr(self._totals, name) + getattr(mine, name))
        weight = mine.pushed + mine.completed + mine.failed
        if weight or mine.pending:
            _keep_greatest(self._busiest, (weight, info.name, mine), BUSIEST)

    def _depths(self, each: RollUp) -> None:
        """Add the depth at the end of each step, also of steps without events."""
        spans = {span.minute: span.depth for span in each.spans}
        if not spans and each.before == Depth():
            return
        depth = each.before
        for start, point in self._steps.items():
            depth = spans.get(start, depth)
            _add_depth(point, depth)

    def add_ages(self, ages: list[Ages]) -> None:
        known = [self._oldest_ms, *(each.oldest_ms for each in ages)]
        self._oldest_ms = max((age for age in known if age is not None), default=None)

    def add_latencies(self, timed: Latencies) -> None:
        for start, kinds in timed.counts.items():
            sums = self._latencies.setdefault(start, {})
            for kind, counts in kinds.items():
                sums.setdefault(kind, Counter()).update(counts)

    def overview(self, now: int) -> Overview:
        whole: dict[int, Counter[int]] = {}
        for kinds in self._latencies.values():
            for kind, counts in kinds.items():
                whole.setdefault(kind, Counter()).update(counts)
        latency = summarize(whole)
        return Overview(
            timestamp=rfc3339(now),
            queues=self.queues,
            paused=self._paused,
            oldest_age_ms=self._oldest_ms,
            totals=self._totals,
            **{kind: _percentiles(latency, kind) for kind in ("wait", "service", "total")},
            busiest=[
                BusyQueue(queue=name, **_fields(counts))
                for _, name, counts in sorted(self._busiest, key=lambda each: (-each[0], each[1]))
            ],
            series=[self._point(start) for start in reversed(self.window.starts)],
        )

    def _point(self, start: int) -> OverviewPoint:
        latency = summarize(self._latencies.get(start, {}))
        return OverviewPoint(
            timestamp=rfc3339(start * 60_000),
            wait=_percentiles(latency, "wait"),
            service=_percentiles(latency, "service"),
            **_fields(self._steps[start]),
        )


def _fields(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in Counts.__struct_fields__}


def _keep_greatest(kept: list[Any], entry: Any, most: int) -> None:
    if len(kept) < most:
        heapq.heappush(kept, entry)
    elif entry[:2] > kept[0][:2]:
        heapq.heapreplace(kept, entry)


def _add_totals(into: Counts, totals: Totals) -> None:
    into.pushed += totals.pushed
    into.completed += totals.acked
    into.failed += totals.nacked + totals.lapsed
    into.died += totals.dead
    into.expired += totals.expired


def _add_depth(into: Counts, depth: Depth) -> None:
    into.pending += depth.ready + depth.scheduled
    into.processing += depth.leased
    into.dead_letter += depth.dead


def _percentiles(latency: Latency, kind: str) -> Percentiles:
    return Percentiles(**latency[f"{kind}_ms"])
