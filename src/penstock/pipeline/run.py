"""The pipeline itself: journal to bronze, bronze to silver and gold, in steps of bounded size.

Every table goes on from its own position, so a step that was cut short anywhere is finished by the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from msgspec import Struct

from penstock.errors import Conflict, OffsetTrimmed
from penstock.journal.events import Kind
from penstock.pipeline.lake import gold, silver
from penstock.pipeline.lake.files import write_files, write_parts
from penstock.pipeline.lake.lake import Lake, LakeTable, NewFile, app_of
from penstock.pipeline.lake.tables import BRONZE, QUEUE_ERRORS, QUEUE_MINUTES, QUEUES, SILVER
from penstock.pipeline.runtime.session import cores_of
from penstock.pipeline.source.log_sources import FolderLocation, LogLocation
from penstock.pipeline.source.offset_ranges import OffsetRange, end_within, is_small, parts_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CONSUMER = "spark:pipeline"
# Of the journal, in one step.
STEP_BYTES = 256 << 20
# Minutes come after the totals of queues, which they need as of the same offset.
DERIVED = (SILVER, QUEUES, QUEUE_MINUTES, QUEUE_ERRORS)
# An event may bear a slightly earlier time than the message that it tells of.
CLOCKS_APART = timedelta(minutes=1)
KINDS = frozenset(kind.name.lower() for kind in Kind)


class Step(Struct, frozen=True, kw_only=True):
    """What one step did."""

    start: int
    end: int
    """Offsets from `start` up to here are in all tables now."""
    events: int
    lag: int
    """Records of the journal that are not yet in."""
    lost: int = 0
    """Offsets that the journal no longer had."""
    seconds: float = 0.0


Doing = Callable[[str], None]


class Pipeline:
    """One at a time for a lake; `close` lets another begin. A journal is in a folder, or where a place says."""

    def __init__(
        self,
        spark: SparkSession,
        journal: Path | LogLocation,
        lake: Lake,
        *,
        fail_on_data_loss: bool = True,
        step_bytes: int = STEP_BYTES,
        doing: Doing = lambda what: None,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._fail_on_data_loss = fail_on_data_loss
        self._step_bytes = step_bytes
        self._doing = doing
        self._lock = lake.lock()
        try:
            self._place = FolderLocation(str(journal)) if isinstance(journal, Path) else journal
            self.log = self._place.open()
            self.app = app_of(self.log.uid)
            lake.create()
            lake.check_belongs(self.app)
        except BaseException:
            self._lock.close()
            raise

    def position(self) -> int:
        """Where the next step begins to read."""
        found = self._lake[BRONZE].position(self.app)
        return self.log.first_offset if found is None else found

    def lags(self) -> bool:
        """Has the journal more than the lake?"""
        return self.position() < self.log.next_offset

    def steps(self, until: int | None = None) -> Iterator[Step]:
        """Up to an offset; by default to what is the end now."""
        until = self.log.next_offset if until is None else until
        while self.position() < until or self._derived_lag():
            yield self.step(until)

    def _derived_lag(self) -> bool:
        """Did a run end between bronze and what is computed from it?"""
        position = self._lake[BRONZE].position(self.app)
        return position is not None and any(self._lake[table].position(self.app) != position for table in DERIVED)

    def step(self, until: int | None = None) -> Step:
        began = time.monotonic()
        end = self.log.next_offset
        until = end if until is None else min(until, end)
        start, lost = self._start()
        events, little = 0, False
        if start < until:
            until = end_within(self.log.segments(), start, until, self._step_bytes)
            little = is_small(self.log.segments(), start, until) and not self._derived_lag()
            events = self._bronze(start, until, little)
        else:
            until = start
            if lost:
                self._lake[BRONZE].append([], self.app, until)
        self._derive(until, little)
        if until > 0:
            self.log.report(CONSUMER, until - 1, "pipeline")
        for table in self._lake.tables():
            table.tidy()
        return Step(
            start=start,
            end=until,
            events=events,
            lag=self.log.next_offset - until,
            lost=lost,
            seconds=time.monotonic() - began,
        )

    def _start(self) -> tuple[int, int]:
        start, first, end = self.position(), self.log.first_offset, self.log.next_offset
        if start > end:
            raise Conflict(
                f"the lake has come to offset {start} of a journal that ends at {end}",
                hint="was an older state of the database put back? its journal needs a new --lake",
            )
        if start >= first:
            return start, 0
        if self._fail_on_data_loss:
            error = OffsetTrimmed(self.log.name, start, first)
            error.hint = f"{first - start} records are gone; to go on without them: --no-fail-on-data-loss"
            raise error
        return first, first - start

    def _bronze(self, start: int, end: int, little: bool) -> int:
        self._doing("bronze")
        table = self._lake[BRONZE]
        parts = parts_of(self.log.segments(), start, end, cores_of(self._spark))
        read = partial(_read, self._place, not self._fail_on_data_loss)
        files = write_parts(self._spark, parts, read, table.folder, BRONZE, little=little)
        table.append(files, self.app, end)
        return sum(file.rows for file in files)

    def _derive(self, end: int, little: bool) -> None:
        self._doing("silver and gold")
        silver_table, _, _, errors = (self._lake[table] for table in DERIVED)
        kinds = self._kinds(self._from(silver_table)) if little else KINDS
        with ThreadPoolExecutor(3) as pool:
            doing = [pool.submit(self._gold, end)]
            if self._todo(silver_table, end):
                doing.append(pool.submit(self._silver, silver_table, end, little, kinds))
            if self._todo(errors, end):
                doing.append(pool.submit(self._errors, errors, end, kinds))
        for each in doing:
            each.result()

    def _kinds(self, start: int) -> frozenset[str]:
        """Of the few events since that offset: for what is not among them Spark need not be asked."""
        files = self._lake[BRONZE].files(offset=start)
        return frozenset(
            kind for file in files for kind in pq.read_table(file, columns=["kind"])["kind"].unique().to_pylist()
        )

    def _gold(self, end: int) -> None:
        queues, minutes = self._lake[QUEUES], self._lake[QUEUE_MINUTES]
        starts = {self._from(queues), self._from(minutes)}
        added: DataFrame | None = None
        if len(starts) == 1 and self._todo(minutes, end):
            # As always, but after a crash: what is aggregated once serves both tables.
            added = gold.minutes_of(self._events(starts.pop(), end)).persist()
        if self._todo(queues, end):
            self._queues(queues, end, added)
        if self._todo(minutes, end):
            self._minutes(minutes, end, added)
        if added is not None:
            added.unpersist()

    def _todo(self, table: LakeTable, end: int) -> bool:
        return table.position(self.app) != end

    def _from(self, table: LakeTable) -> int:
        return table.position(self.app) or 0

    def _events(self, start: int, end: int, **least: datetime) -> DataFrame:
        """Events between two offsets; `least` passes over files, not over rows."""
        bronze = self._lake[BRONZE]
        events = bronze.read(self._spark, offset=start, **least)
        first = bronze.least_of("offset", offset=start)
        if first is None or (first >= start and bronze.position(self.app) == end):
            # No file holds more than is wanted. A number in the plan would be compiled anew at every step.
            return events
        return events.where((events["offset"] >= start) & (events["offset"] < end))

    def _oldest(self, start: int) -> datetime | None:
        """No event since that offset happened before this."""
        oldest: datetime | None = self._lake[BRONZE].least_of("at", offset=start)
        return oldest

    def _silver(self, table: LakeTable, end: int, little: bool, kinds: frozenset[str]) -> None:
        events = self._events(self._from(table), end)
        files: list[NewFile] = []
        if kinds.intersection(silver.ENDS):
            files += write_files(silver.finished_lives(events), table.folder, SILVER, little=little)
        removals = silver.removal_events(events)
        oldest_ms = silver.oldest_ms(removals) if "queue" in kinds else None
        if oldest_ms is not None:
            since = datetime.fromtimestamp(oldest_ms / 1000, UTC) - CLOCKS_APART
            lives = silver.lives_of_removed_queues(self._events(0, end, at=since), removals)
            files += write_files(lives, table.folder, SILVER)
        table.append(files, self.app, end)

    def _queues(self, table: LakeTable, end: int, added: DataFrame | None) -> None:
        if added is None:
            added = gold.minutes_of(self._events(self._from(table), end))
        rows = gold.queues_with(table.read(self._spark), added)
        table.put(rows.toArrow(), self.app, end)

    def _minutes(self, table: LakeTable, end: int, added: DataFrame | None) -> None:
        start = self._from(table)
        if added is None:
            added = gold.minutes_of(self._events(start, end))
        oldest = self._oldest(start)
        since = {} if oldest is None else {"minute": oldest.replace(second=0, microsecond=0)}
        queues = self._lake[QUEUES].read(self._spark)
        rows = gold.minutes_with(table.read(self._spark, **since), added, queues)
        table.put(rows.toArrow(), self.app, end, **since)

    def _errors(self, table: LakeTable, end: int, kinds: frozenset[str]) -> None:
        if not kinds.intersection(gold.FAILURES):
            table.append([], self.app, end)
            return
        start = self._from(table)
        added = gold.errors_of(self._events(start, end))
        oldest = self._oldest(start)
        since = {} if oldest is None else {"hour": oldest.replace(minute=0, second=0, microsecond=0)}
        rows = gold.errors_with(table.read(self._spark, **since), added)
        table.put(rows.toArrow(), self.app, end, **since)

    def close(self) -> None:
        self.log.close()
        self._lock.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(place: LogLocation, skip_lost: bool, part: OffsetRange) -> Iterator[pa.RecordBatch]:
    with closing(place.open()) as log:
        yield from log.read(part, BRONZE.schema.names, skip_lost=skip_lost)
