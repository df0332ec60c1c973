"""Sums up gold's minutes over a time span, in batches: it may cover years and thousands of queues."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from msgspec import Struct, field

from penstock.core.latency import percentiles
from penstock.core.model import Window
from penstock.errors import InvalidInput
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.sketches import BUCKETS, Numbers, buckets, weighted
from penstock.pipeline.lake.storage import read_batches, read_table
from penstock.pipeline.lake.tables import COUNTS, QUEUE_MINUTES, QUEUES

STEPS_MAX = 370
STEP_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)
DAY_MINUTES = 1_440
DAYS_SHOWN = 31
BATCH_ROWS = 16 << 10
TIMES = ("wait", "service")
_HELD = {"depth": ("waiting", "leased"), "dead": ("dead",)}
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
Percentiles = dict[str, int | None]


class QueueSummary(Struct):
    depth: int = 0
    """Waiting and leased messages at the end of the span."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    times: dict[str, Numbers] = field(default_factory=dict)
    first: int | None = None
    """First minute with events since the start of the span."""
    before: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_HELD, 0))
    """Messages held at the start of the span."""


class Summary:
    def __init__(self, window: Window, queues: dict[str, QueueSummary]) -> None:
        self.window = window
        self.queues = queues
        steps = len(window.starts)
        self.counts = {name: _zeros(steps) for name in COUNTS}
        self._changes = {name: _zeros(steps) for name in _HELD}
        self._times = {name: _zeros(steps, BUCKETS) for name in TIMES}
        days = (window.to_minute - 1) // DAY_MINUTES - window.from_minute // DAY_MINUTES + 1
        self._by_day = days <= DAYS_SHOWN
        self._hours = _zeros(days if self._by_day else 7, 24, BUCKETS)

    def held(self, what: str) -> Numbers:
        """Return `depth` or `dead` at the end of each step, over all queues, including those without events."""
        before = sum(each.before[what] for each in self.queues.values())
        return before + np.cumsum(self._changes[what])

    def times(self, name: str) -> list[Percentiles]:
        """Return the percentiles of each step."""
        return [percentiles_of(counts) for counts in self._times[name]]

    def all_times(self, name: str) -> Percentiles:
        return percentiles_of(self._times[name].sum(axis=0))

    def a_minute(self, name: str) -> list[float]:
        window = self.window
        minutes = [min(window.step_minutes, window.to_minute - start) for start in window.starts]
        return [count / each for count, each in zip(self.counts[name].tolist(), minutes, strict=True)]

    def hours(self) -> tuple[list[str], dict[tuple[str, int], float]]:
        """Return the rows (days or weekdays), and the p95 wait by row and hour."""
        day = datetime.fromtimestamp(self.window.from_minute * 60, UTC)
        rows = [f"{day + timedelta(days=n):%a %Y-%m-%d}" for n in range(len(self._hours))]
        rows = rows if self._by_day else list(_WEEKDAYS)
        cells = {
            (row, hour): float(value)
            for number, row in enumerate(rows)
            for hour in range(24)
            if (value := percentiles_of(self._hours[number, hour])["p95"]) is not None
        }
        return rows, cells

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of minutes since the start of the span."""
        numbers = batch["minute"].cast(pa.int64()).to_numpy() // 60_000_000
        table = pa.Table.from_batches([batch]).append_column("number", pa.array(numbers))
        self._add_before(table)
        inside = numbers < self.window.to_minute
        if not inside.any():
            return
        table, numbers = table.filter(pa.array(inside)), numbers[inside]
        steps = (numbers - self.window.from_minute) // self.window.step_minutes
        for name in COUNTS:
            _sum_into(self.counts[name], steps, _values(table, name))
        for name, states in _HELD.items():
            for state in states:
                _sum_into(self._changes[name], steps, _values(table, f"{state}_change"))
        self._add_queues(table)
        self._add_times(table, numbers, steps)

    def _add_before(self, table: pa.Table) -> None:
        """Derive what each queue held at the start of the span from its first change since."""
        columns = [f"{state}_{part}" for states in _HELD.values() for state in states for part in ("end", "change")]
        firsts = table.sort_by("number").group_by("queue", use_threads=False)
        for row in firsts.aggregate([(name, "first") for name in ("number", *columns)]).to_pylist():
            queue = self.queues.setdefault(row["queue"], QueueSummary())
            if queue.first is None or row["number_first"] < queue.first:
                queue.first = row["number_first"]
                queue.before = {
                    name: sum(row[f"{state}_end_first"] - row[f"{state}_change_first"] for state in states)
                    for name, states in _HELD.items()
                }

    def _add_queues(self, table: pa.Table) -> None:
        changes = [f"{state}_change" for state in _HELD["depth"]]
        found = table.group_by("queue").aggregate([(name, "sum") for name in (*COUNTS, *changes)])
        for row in found.to_pylist():
            queue = self.queues[row["queue"]]
            queue.depth += sum(row[f"{name}_sum"] for name in changes)
            for name in COUNTS:
                queue.counts[name] += row[f"{name}_sum"]

    def _add_times(self, table: pa.Table, numbers: Numbers, steps: Numbers) -> None:
        names = table["queue"].combine_chunks().dictionary_encode()
        codes = names.indices.to_numpy()
        days = numbers // DAY_MINUTES
        # 1970 began on a Thursday.
        rows = days - self.window.from_minute // DAY_MINUTES if self._by_day else (days + 3) % 7
        for name in TIMES:
            which, values, weights = weighted(table[f"{name}_sketch"].combine_chunks())
            slots = buckets(values)
            _sum_into(self._times[name].reshape(-1), steps[which] * BUCKETS + slots, weights)
            by_queue = _zeros(len(names.dictionary), BUCKETS)
            _sum_into(by_queue.reshape(-1), codes[which] * BUCKETS + slots, weights)
            for queue, counts in zip(names.dictionary.to_pylist(), by_queue, strict=True):
                of_queue = self.queues[queue].times
                of_queue[name] = of_queue.get(name, 0) + counts
            if name == "wait":
                hours = rows * 24 + numbers // 60 % 24
                _sum_into(self._hours.reshape(-1), hours[which] * BUCKETS + slots, weights)


def summary_of(lake: Lake, start: datetime | None, end: datetime | None, queue: str | None) -> Summary:
    """Return the summary from `start` up to `end`, limited to the lake's data, for one queue or all."""
    if start is not None and end is not None and start >= end:
        raise InvalidInput("the end of the span is before its start", field="to")
    now = _now(lake, queue)
    table = lake[QUEUE_MINUTES].refresh()
    first, newest = table.least_of("minute"), table.greatest_of("minute")
    if first is None or (queue is not None and queue not in now):
        what = "any queue" if queue is None else f"the queue {queue}"
        raise InvalidInput(f"the lake has no data of {what} yet", field="queue", hint="run `penstock pipeline run`")
    low = _minute(first) if start is None else max(_minute(start), _minute(first))
    high = _minute(newest) + 1 if end is None else min(-_minute(-end.timestamp()), _minute(newest) + 1)
    if low >= high:
        raise InvalidInput(
            f"no data in that span: the lake covers {when(first)} to {when(newest)}",
            field="from",
            hint="run `penstock pipeline run` to bring it up to date",
        )
    summary = Summary(Window(low, high, _step(high - low)), {})
    for batch in _batches(lake, low, queue):
        summary.add(batch)
    for name, held in now.items():
        of_queue = summary.queues.setdefault(name, QueueSummary())
        if of_queue.first is None:  # No events since, so the depth has not changed.
            of_queue.before = {what: sum(held[f"{state}_now"] for state in _HELD[what]) for what in _HELD}
        of_queue.depth += of_queue.before["depth"]
    return summary


def _now(lake: Lake, queue: str | None) -> dict[str, dict[str, Any]]:
    """Return the current depths. Read them before the minutes, which then include anything newer."""
    columns = ["queue", *(f"{state}_now" for states in _HELD.values() for state in states)]
    rows = read_table(lake[QUEUES].refresh().dataset(), columns).to_pylist()
    return {row["queue"]: row for row in rows if queue in (None, row["queue"])}


def _batches(lake: Lake, low: int, queue: str | None) -> Iterator[pa.RecordBatch]:
    since = datetime.fromtimestamp(low * 60, UTC)
    dataset = lake[QUEUE_MINUTES].dataset(minute=since)
    states = [state for states in _HELD.values() for state in states]
    columns = [
        *("queue", "minute", *COUNTS),
        *(f"{state}_{part}" for state in states for part in ("change", "end")),
        *(f"{name}_sketch" for name in TIMES),
    ]
    for batch in read_batches(dataset, columns, ds.field("minute") >= since, BATCH_ROWS):
        # Not in the dataset's filter: delta-rs writes string statistics in a type that Arrow cannot compare.
        chosen = batch if queue is None else batch.filter(pc.equal(batch["queue"], queue))
        if chosen.num_rows:
            yield chosen


def percentiles_of(counts: Numbers) -> Percentiles:
    return percentiles({int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)})


def when(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


def _step(minutes: int) -> int:
    days = -(-minutes // (DAY_MINUTES * STEPS_MAX)) * DAY_MINUTES
    return next((each for each in STEP_MINUTES if minutes <= each * STEPS_MAX), days)


def _minute(at: datetime | float) -> int:
    return int((at.timestamp() if isinstance(at, datetime) else at) // 60)


def _zeros(*shape: int) -> Numbers:
    return np.zeros(shape, np.int64)


def _values(table: pa.Table, name: str) -> Numbers:
    found: Numbers = pc.fill_null(table[name], 0).to_numpy()
    return found


def _sum_into(sums: Numbers, places: Numbers, values: Numbers) -> None:
    np.add.at(sums, places, values)
