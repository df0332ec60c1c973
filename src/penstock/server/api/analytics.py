"""Analytics of the tree API, from counters for now and from history for a window; nothing is counted on request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from penstock.broker.broker import Broker
from penstock.core.ids import check_scope
from penstock.core.model import Depth, Latencies, Latency, RollUp, Span, Totals, Window, current_depth
from penstock.server.http.messages import Request, Response, reply
from penstock.server.metrics_history import History
from penstock.wire import analytics as shapes
from penstock.wire.http_errors import HttpError
from penstock.wire.payloads import rfc3339
from penstock.wire.tree import options_view

# Limit of points in one response.
POINTS_MAX = 100_000
HOUR_MINUTES = 60
# Minutes: longer than any window.
LONGEST = 1 << 40
MINUTES = {"m": 1, "h": 60, "d": 1_440, "minute": 1, "hour": 60, "day": 1_440}
# The years 1 to 9999, which RFC 3339 can express.
MINUTE_MIN, MINUTE_MAX = -1_035_593_280, 4_223_371_680
Instant = Annotated[datetime, Meta(tz=True)]
Point = TypeVar("Point")


class Analytics:
    def __init__(self, broker: Broker, history: History) -> None:
        self._broker = broker
        self._history = history

    async def queues(self, request: Request) -> Response:
        query = request.query(shapes.PageQuery)
        window = self._window(query)
        found, following = await self._page(query, window, "")
        shown = [_queue(each, window, query) for each in found]
        source = await self._history.source(window)
        return reply(shapes.AllQueues(queues=shown, next=following, source=source), rows=len(shown))

    async def namespace(self, request: Request) -> Response:
        namespace = check_scope(request.params["ns"])
        totals, shown, rest = await self._scope(request, namespace)
        return reply(shapes.NamespaceStats(namespace=namespace, totals=totals, queues=shown, **rest))

    async def task(self, request: Request) -> Response:
        namespace, task = request.params["ns"], request.params["task"]
        totals, shown, rest = await self._scope(request, check_scope(f"{namespace}/{task}"))
        return reply(shapes.TaskStats(namespace=namespace, task=task, totals=totals, queues=shown, **rest))

    async def depths(self, request: Request) -> Response:
        query = request.query(shapes.PageQuery)
        window = self._window(query)
        found, following = await self._page(query, window, "")
        shown = []
        for each in found:
            depth = _depth(each)
            series = _series(each, window, _depth_point) if window and query.interval else None
            shown.append(
                shapes.QueueDepth(
                    queue=each.info.name, depth=depth.ready + depth.scheduled, processing=depth.leased, series=series
                )
            )
        source = await self._history.source(window)
        return reply(shapes.Depths(depths=shown, next=following, source=source), rows=len(shown))

    async def throughput(self, request: Request) -> Response:
        query = request.query(shapes.HistoryQuery)
        window = self._window(query, step=1)
        assert window is not None
        done = await self._history.completed(window)
        points = [_throughput(window, minute, count) for minute, count in done.items()]
        return reply(shapes.Throughput(points[::-1], await self._history.source(window)), rows=len(points))

    async def latency(self, request: Request) -> Response:
        query = request.query(shapes.PageQuery)
        window = self._window(query, step=LONGEST)
        assert window is not None
        limit = _page_limit(query, window)
        found = await self._history.latencies(window, after=query.after, limit=limit)
        shown = [_latency(each, window, query) for each in found]
        following = found[-1].queue if len(found) == limit else None
        source = await self._history.source(window)
        return reply(shapes.Latencies(latency=shown, next=following, source=source), rows=len(shown))

    def _window(self, query: shapes.HistoryQuery, *, step: int | None = None) -> Window | None:
        """Return the query's window in whole minutes, in steps of `step` by default; None for current values."""
        if step is None and query.from_ is query.to is query.interval is None:
            return None
        to = -(-self._broker.store.clock() // 60_000) if query.to is None else -(-_ms(query.to, "to") // 60_000)
        start = max(to - HOUR_MINUTES, MINUTE_MIN) if query.from_ is None else _ms(query.from_, "from") // 60_000
        if start >= to:
            raise HttpError(422, "invalid_value", "from must be before to", field="from")
        window = Window(start, to, _minutes(query.interval) or step or to - start)
        most = self._broker.limits.steps
        if len(window.starts) > most:
            raise HttpError(
                422,
                "invalid_value",
                f"too many points ({len(window.starts)}; at most {most})",
                field="interval",
                hint="use a longer interval or a shorter window",
            )
        return window

    async def _scope(
        self, request: Request, scope: str
    ) -> tuple[shapes.TreeStats, list[shapes.QueueStats], dict[str, Any]]:
        query = request.query(shapes.PageQuery)
        window, prefix = self._window(query), scope + "/"
        found, following = await self._page(query, window, prefix)
        shown = [_queue(each, window, query) for each in found]
        rest = {"next": following, "source": await self._history.source(window)}
        if query.after is None and following is None:
            return _sum(queue.stats for queue in shown), shown, rest
        everything: list[shapes.TreeStats] = []
        async for page in self._pages(window, prefix):
            everything.append(_sum(_stats(each, window) for each in page))
        return _sum(everything), shown, rest

    async def _page(
        self, query: shapes.PageQuery, window: Window | None, prefix: str
    ) -> tuple[list[RollUp], str | None]:
        """Return one page and the name after which the next begins."""
        limit = _page_limit(query, window)
        found = await self._fetch(window, prefix, query.after, limit)
        return found, found[-1].info.name if len(found) == limit else None

    async def _pages(self, window: Window | None, prefix: str) -> AsyncIterator[list[RollUp]]:
        after: str | None = None
        limit = self._broker.limits.page
        while True:
            found = await self._fetch(window, prefix, after, limit)
            yield found
            if len(found) < limit:
                return
            after = found[-1].info.name

    async def _fetch(self, window: Window | None, prefix: str, after: str | None, limit: int) -> list[RollUp]:
        if window is None:
            infos = await self._broker.list_queues(prefix=prefix, after=after, limit=limit)
            return [RollUp(info, current_depth(info), []) for info in infos]
        return await self._history.roll_ups(window, prefix=prefix, after=after, limit=limit)


def _ms(text: str, name: str) -> int:
    try:
        ms = round(msgspec.convert(text, Instant).timestamp() * 1000)
    except msgspec.ValidationError:
        raise HttpError(
            422, "invalid_value", f"{name} is not a time", field=name, hint="send a time such as 2025-10-07T12:00:00Z"
        ) from None
    if not MINUTE_MIN <= ms // 60_000 < MINUTE_MAX:
        raise HttpError(
            422, "invalid_value", f"{name} is out of range", field=name, hint="use a year from 1 to 9999, in UTC"
        )
    return ms


def _minutes(interval: str | None) -> int | None:
    if interval is None:
        return None
    return MINUTES.get(interval) or int(interval[:-1]) * MINUTES[interval[-1]]


def _page_limit(query: shapes.PageQuery, window: Window | None) -> int:
    if window is None or query.interval is None:
        return query.limit
    return min(query.limit, max(1, POINTS_MAX // len(window.starts)))


def _depth(each: RollUp) -> Depth:
    return each.spans[-1].depth if each.spans else each.before


def _stats(each: RollUp, window: Window | None) -> shapes.TreeStats:
    happened = [each.info.totals] if window is None else [span.happened for span in each.spans]
    return shapes.TreeStats(**_counts(_depth(each), happened))


def _counts(depth: Depth, happened: Sequence[Totals]) -> dict[str, int]:
    return {
        "pending": depth.ready + depth.scheduled,
        "processing": depth.leased,
        "completed": sum(totals.acked for totals in happened),
        "failed": sum(totals.nacked + totals.lapsed for totals in happened),
        "dead_letter": depth.dead,
        "total": sum(totals.pushed for totals in happened),
    }


def _sum(many: Iterable[shapes.TreeStats]) -> shapes.TreeStats:
    rows = [msgspec.structs.astuple(each) for each in many]
    return shapes.TreeStats(
        **{name: sum(row[n] for row in rows) for n, name in enumerate(shapes.TreeStats.__struct_fields__)}
    )


def _queue(each: RollUp, window: Window | None, query: shapes.PageQuery) -> shapes.QueueStats:
    *path, name = each.info.name.split("/")
    ns, task = path or (None, None)
    return shapes.QueueStats(
        queue=each.info.name,
        ns=ns,
        task=task,
        name=name,
        options=options_view(each.info.options),
        stats=_stats(each, window),
        series=_series(each, window, _stats_point) if window and query.interval else None,
    )


def _series(each: RollUp, window: Window, point: Callable[[str, Span], Point]) -> list[Point]:
    """Return a point for each step, newest first."""
    return [point(rfc3339(span.minute * 60_000), span) for span in each.steps(window)][::-1]


def _stats_point(timestamp: str, span: Span) -> shapes.StatsPoint:
    return shapes.StatsPoint(timestamp=timestamp, **_counts(span.depth, [span.happened]))


def _depth_point(timestamp: str, span: Span) -> shapes.DepthPoint:
    return shapes.DepthPoint(timestamp, span.depth.ready + span.depth.scheduled, span.depth.leased)


def _throughput(window: Window, minute: int, count: int) -> shapes.ThroughputPoint:
    minutes = min(window.step_minutes, window.to_minute - minute)
    return shapes.ThroughputPoint(rfc3339(minute * 60_000), round(count / minutes, 3), round(count / minutes / 60, 3))


def _latency(each: Latencies, window: Window, query: shapes.PageQuery) -> shapes.QueueLatency:
    series = None
    if query.interval is not None:
        series = [
            shapes.LatencyPoint(timestamp=rfc3339(minute * 60_000), **_percentiles(each.by_minute[minute]))
            for minute in reversed(window.starts)
            if minute in each.by_minute
        ]
    return shapes.QueueLatency(queue=each.queue, **_percentiles(each.latency), series=series)


def _percentiles(latency: Latency) -> dict[str, shapes.Percentiles]:
    return {kind: shapes.Percentiles(**latency[f"{kind}_ms"]) for kind in ("wait", "service", "total")}
