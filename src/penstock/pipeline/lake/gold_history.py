"""History from the gold tables for times before the store's roll-ups. Needs neither Spark nor Java."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from msgspec import Struct

from penstock.core.latency import SERVICE, TOTAL, WAIT, Counts
from penstock.core.model import Depth, Span, Totals, Window
from penstock.errors import CannotOpen, StoreError
from penstock.pipeline.lake.lake import Lake, app_of
from penstock.pipeline.lake.sketches import buckets, weighted
from penstock.pipeline.lake.storage import Folder, read_batches
from penstock.pipeline.lake.tables import BRONZE, QUEUE_MINUTES, QUEUES, STATES

REFRESH_SECONDS = 5.0
BATCH_ROWS = 64 << 10
HAPPENED = ("pushed", "leased", "acked", "nacked", "lapsed", "dead", "expired", "redriven", "removed")
SKETCHES = {WAIT: "wait_sketch", SERVICE: "service_sketch", TOTAL: "total_sketch"}
_MINUTE_US = 60_000_000
ByKind = dict[int, Counts]


class QueueHistory(Struct):
    """A queue's history before the cutover, in steps of a window."""

    before: Depth
    """Depth when the window begins."""
    spans: dict[int, Span]
    """Steps with events, by first minute; one more step covers the time after the window."""
    first: int
    last: dict[int, int]
    """Last minute with events, by step."""


class GoldHistory:
    """The part of a lake that one journal filled. Thread-safe."""

    def __init__(self, folder: Folder, uid: str) -> None:
        self._folder = folder
        self._lake = Lake(folder)
        self._app = app_of(uid)
        self._lock = threading.Lock()
        self._refreshed_at = -REFRESH_SECONDS
        self._until: datetime | None = None
        self._error: StoreError | None = None

    def until(self) -> datetime | None:
        """Return the time up to which gold is complete; None if there is no lake of this journal."""
        with self._lock:
            self._refresh()
            return self._until

    def _refresh(self) -> None:
        if time.monotonic() - self._refreshed_at >= REFRESH_SECONDS:
            self._until = self._error = None
            try:
                self._until = self._newest()
            except StoreError as error:
                self._error = error
            self._refreshed_at = time.monotonic()
        if self._error is not None:
            raise self._error  # An object store that does not answer is not a lake without history.

    def _newest(self) -> datetime | None:
        self._lake = Lake(self._folder)  # The lake may have been deleted and recreated.
        if not self._lake.exists() or self._lake[QUEUE_MINUTES].position(self._app) is None:
            return None
        # Retention may have dropped all events.
        newest: datetime | None = self._lake[BRONZE].greatest_of("at") or self._lake[QUEUES].greatest_of("last_at")
        return newest

    def roll_ups(self, window: Window, cutover: int, names: Sequence[str]) -> dict[str, QueueHistory]:
        """Return the histories of these queues from the window's start to the cutover. The cutover may be after the
        window's end, because a queue's depth follows from its next change."""
        found: dict[str, QueueHistory] = {}
        ends = [f"{state}_{part}" for state in STATES for part in ("end", "change")]
        # Skip minutes that only have queue events, such as its creation.
        counted = reduce(or_, (ds.field(name) != 0 for name in (*HAPPENED, *(f"{state}_change" for state in STATES))))
        for batch in self._scan(window, cutover, names, [*HAPPENED, *ends], counted):
            for row in _grouped(batch, window, ends):
                _add(found, row)
        return found

    def completed(self, window: Window, cutover: int) -> dict[int, int]:
        """Return the completed messages per step over all queues, including deleted ones."""
        done: dict[int, int] = {}
        for batch in self._scan(window, min(cutover, window.to_minute), None, ["acked"]):
            steps = _steps(batch["minute"], window)
            for step in np.unique(steps).tolist():
                done[step] = done.get(step, 0) + int(batch["acked"].to_numpy(zero_copy_only=False)[steps == step].sum())
        return done

    def latencies(self, window: Window, cutover: int, names: Sequence[str]) -> dict[str, dict[int, ByKind]]:
        """Return latency bucket counts by queue, step and kind."""
        found: dict[str, dict[int, ByKind]] = {}
        for batch in self._scan(window, min(cutover, window.to_minute), names, list(SKETCHES.values())):
            steps = _steps(batch["minute"], window).tolist()
            queues = batch["queue"].to_pylist()
            for kind, name in SKETCHES.items():
                rows, values, weights = weighted(batch[name])
                for row, slot, weight in zip(rows.tolist(), buckets(values).tolist(), weights.tolist(), strict=True):
                    kinds = found.setdefault(queues[row], {}).setdefault(steps[row], {each: {} for each in SKETCHES})
                    kinds[kind][slot] = kinds[kind].get(slot, 0) + weight
        return found

    def _scan(
        self,
        window: Window,
        cutover: int,
        names: Sequence[str] | None,
        columns: Sequence[str],
        where: ds.Expression | None = None,
    ) -> Iterator[pa.RecordBatch]:
        low, high = _time(window.from_minute), _time(cutover)
        with self._lock:
            self._refresh()
            if self._until is None or low >= high:
                return
            dataset = self._dataset(low)
        wanted = (ds.field("minute") >= low) & (ds.field("minute") < high)
        if where is not None:
            wanted &= where
        for batch in read_batches(dataset, ["queue", "minute", *columns], wanted, BATCH_ROWS):
            # Not in the dataset's filter: delta-rs writes string statistics in a type that Arrow cannot compare.
            named = batch if names is None else batch.filter(pc.is_in(batch["queue"], pa.array(names, pa.string())))
            if named.num_rows:
                yield named

    def _dataset(self, low: datetime) -> ds.Dataset:
        try:
            return self._lake[QUEUE_MINUTES].dataset(minute=low)
        except CannotOpen:  # A compaction removed files meanwhile.
            return self._lake[QUEUE_MINUTES].refresh().dataset(minute=low)


def _time(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, UTC)


def _minutes(times: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    numbers: np.ndarray[Any, np.dtype[np.int64]] = times.cast(pa.int64()).to_numpy(zero_copy_only=False) // _MINUTE_US
    return numbers


def _steps(times: pa.Array, window: Window) -> np.ndarray[Any, np.dtype[np.int64]]:
    minutes = _minutes(times)
    steps = minutes - (minutes - window.from_minute) % window.step_minutes
    return np.where(minutes < window.to_minute, steps, window.to_minute)


def _grouped(batch: pa.RecordBatch, window: Window, ends: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per queue and step: sums, and the values of its first and last minute."""
    table = pa.Table.from_batches([batch])
    table = table.append_column("step", pa.array(_steps(batch["minute"], window)))
    table = table.append_column("number", pa.array(_minutes(batch["minute"]))).sort_by("number")
    sums = [(name, "sum") for name in HAPPENED]
    edges = [(name, edge) for name in (*ends, "number") for edge in ("first", "last")]
    rows: list[dict[str, Any]] = (
        table.group_by(["queue", "step"], use_threads=False).aggregate(sums + edges).to_pylist()
    )
    return rows


def _add(found: dict[str, QueueHistory], row: dict[str, Any]) -> None:
    step, first, last = row["step"], row["number_first"], row["number_last"]
    past = found.get(row["queue"])
    if past is None:
        past = found[row["queue"]] = QueueHistory(Depth(), {}, first + 1, {})
    if first < past.first:
        past.first = first
        past.before = _depth({state: row[f"{state}_end_first"] - row[f"{state}_change_first"] for state in STATES})
    span = past.spans.setdefault(step, Span(step, Totals(), Depth()))
    span.happened = span.happened.plus(Totals(**{name: row[f"{name}_sum"] or 0 for name in HAPPENED}))
    if last >= past.last.get(step, -1):
        past.last[step] = last
        span.depth = _depth({state: row[f"{state}_end_last"] for state in STATES})


def _depth(held: dict[str, int]) -> Depth:
    """Return the depth; waiting messages count as ready, because gold does not separate scheduled ones."""
    return Depth(ready=held["waiting"], leased=held["leased"], dead=held["dead"])
