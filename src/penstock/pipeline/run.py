"""Runs the pipeline: journal to bronze, bronze to silver and gold, in steps of bounded size.

Every table continues from its own position, so the next step finishes one that was interrupted anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from msgspec import Struct

from penstock.errors import Conflict, OffsetTrimmed
from penstock.journal.events import Kind
from penstock.pipeline.lake import gold, silver
from penstock.pipeline.lake.data_files import QUEUES_MAX, NewFile
from penstock.pipeline.lake.files import write_files, write_parts
from penstock.pipeline.lake.lake import Lake, LakeTable, app_of
from penstock.pipeline.lake.masking import DROPPED, Masker, Masks, add_masks
from penstock.pipeline.lake.tables import BRONZE, EVENT_COLUMNS, QUEUE_ERRORS, QUEUE_MINUTES, QUEUES, SILVER
from penstock.pipeline.models.runner import ModelRunner
from penstock.pipeline.models.typed import PUSHED
from penstock.pipeline.retention import apply_retention
from penstock.pipeline.runtime.session import cores_of
from penstock.pipeline.source.log_sources import FolderLocation, LogLocation
from penstock.pipeline.source.offset_ranges import OffsetRange, end_within, is_small, parts_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CONSUMER = "spark:pipeline"
# Journal bytes read in one step.
STEP_BYTES = 256 << 20
# Of gold.queue_minutes; more than this is replaced by Spark tasks and not by the driver.
REPLACED_BYTES_MAX = 64 << 20
# QUEUE_MINUTES follows QUEUES, because it needs the totals of queues at the same offset.
DERIVED = (SILVER, QUEUES, QUEUE_MINUTES, QUEUE_ERRORS)
# An event's timestamp may be slightly earlier than that of its message.
CLOCKS_APART = timedelta(minutes=1)
RETENTION_SECONDS = 3_600.0
KINDS = frozenset(kind.name.lower() for kind in Kind)


class Step(Struct, frozen=True, kw_only=True):
    """Result of one step."""

    start: int
    end: int
    """End of the offsets, from `start`, that all tables now contain."""
    events: int
    lag: int
    """Journal records that are not in the lake yet."""
    lost: int = 0
    """Offsets that the journal had already trimmed."""
    dropped: int = 0
    """Bodies left out because they are not JSON and fields are masked."""
    seconds: float = 0.0


Doing = Callable[[str], None]


class Pipeline:
    """Fills a lake from a journal, given as a folder or a location. Holds the lake's lock until `close`."""

    def __init__(
        self,
        spark: SparkSession,
        journal: Path | LogLocation,
        lake: Lake,
        *,
        fail_on_data_loss: bool = True,
        step_bytes: int = STEP_BYTES,
        masks: Sequence[str] = (),
        keep_other: bool | None = None,
        models: Path | None = None,
        doing: Doing = lambda what: None,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._fail_on_data_loss = fail_on_data_loss
        self._step_bytes = step_bytes
        self._doing = doing
        self._retain_at = 0.0
        self._lock = lake.lock()
        try:
            self._place = FolderLocation(str(journal)) if isinstance(journal, Path) else journal
            self.log = self._place.open()
            self.app = app_of(self.log.uid)
            lake.create()
            lake.check_belongs(self.app)
            self._masks = add_masks(lake[BRONZE], masks, keep_other)
            self.models = ModelRunner(spark, lake, self.app, models)
            self.models.refresh()
        except BaseException:
            self._lock.close()
            raise

    def position(self) -> int:
        """Return the offset at which the next step starts."""
        found = self._lake[BRONZE].position(self.app)
        return self.log.first_offset if found is None else found

    def lags(self) -> bool:
        """Return True if the journal has records that are not in the lake."""
        return self.position() < self.log.next_offset

    def steps(self, until: int | None = None) -> Iterator[Step]:
        """Run steps up to an offset, by default to the current end of the journal."""
        until = self.log.next_offset if until is None else until
        self.models.refresh()
        while self.position() < until or self._derived_lag():
            yield self.step(until)

    def _derived_lag(self) -> bool:
        """Return True if an earlier run ended between bronze and the derived tables."""
        position = self._lake[BRONZE].position(self.app)
        if position is None:
            return False
        return self.models.are_behind(position) or any(
            self._lake[table].position(self.app) != position for table in DERIVED
        )

    def step(self, until: int | None = None) -> Step:
        began = time.monotonic()
        self.models.refresh()
        end = self.log.next_offset
        until = end if until is None else min(until, end)
        start, lost = self._start()
        events, dropped, small = 0, 0, False
        if start < until:
            until = end_within(self.log.segments(), start, until, self._step_bytes)
            small = is_small(self.log.segments(), start, until) and not self._derived_lag()
            events, dropped = self._bronze(start, until, small)
        else:
            until = start
            if lost:
                self._lake[BRONZE].append([], self.app, until)
        self._derive(until, small)
        if until > 0:
            self.log.report(CONSUMER, until - 1, "pipeline")
        self.models.run(partial(self._events, columns=PUSHED), until, small, self._doing)
        for table in self._lake.tables():
            table.tidy()
        self.models.tidy()
        if time.monotonic() >= self._retain_at:
            apply_retention(self._lake, self.app, datetime.now(UTC))
            self._retain_at = time.monotonic() + RETENTION_SECONDS
        return Step(
            start=start,
            end=until,
            events=events,
            lag=self.log.next_offset - until,
            lost=lost,
            dropped=dropped,
            seconds=time.monotonic() - began,
        )

    def _start(self) -> tuple[int, int]:
        start, first, end = self.position(), self.log.first_offset, self.log.next_offset
        if start > end:
            raise Conflict(
                f"the lake is at offset {start}, but its journal ends at {end}",
                hint="if an older backup of the database was restored, use a new --lake",
            )
        if start >= first:
            return start, 0
        if self._fail_on_data_loss:
            error = OffsetTrimmed(self.log.name, start, first)
            error.hint = f"{first - start} records were trimmed; continue without them with --no-fail-on-data-loss"
            raise error
        return first, first - start

    def _bronze(self, start: int, end: int, small: bool) -> tuple[int, int]:
        """Return the number of events, and of bodies that were left out."""
        self._doing("bronze")
        table = self._lake[BRONZE]
        parts = parts_of(self.log.segments(), start, end, cores_of(self._spark))
        read = partial(_read, self._place, not self._fail_on_data_loss, self._masks)
        files = write_parts(self._spark, parts, read, table.folder, BRONZE, small=small)
        table.append(files, self.app, end)
        return sum(file.rows for file in files), self._dropped(files)

    def _dropped(self, files: Sequence[NewFile]) -> int:
        if not self._masks or self._masks.keep_other:
            return 0
        rows = self._lake[BRONZE].batches_of({file.path: file.bytes for file in files}, ["details"])
        return sum(pc.sum(pc.match_substring(each["details"], f'"{DROPPED}":true')).as_py() or 0 for each in rows)

    def _derive(self, end: int, small: bool) -> None:
        self._doing("silver and gold")
        silver_table, _, _, errors = (self._lake[table] for table in DERIVED)
        kinds = self._kinds(self._from(silver_table)) if small else KINDS
        with ThreadPoolExecutor(3) as pool:
            doing = [pool.submit(self._gold, end)]
            if self._todo(silver_table, end):
                doing.append(pool.submit(self._silver, silver_table, end, small, kinds))
            if self._todo(errors, end):
                doing.append(pool.submit(self._errors, errors, end, kinds))
        for each in doing:
            each.result()

    def _kinds(self, start: int) -> frozenset[str]:
        """Return the kinds of the few events since an offset, to skip Spark jobs that would find nothing."""
        return frozenset(self._lake[BRONZE].values("kind", offset=start))

    def _gold(self, end: int) -> None:
        queues, minutes = self._lake[QUEUES], self._lake[QUEUE_MINUTES]
        starts = {self._from(queues), self._from(minutes)}
        added: DataFrame | None = None
        if len(starts) == 1 and self._todo(minutes, end):
            # Except after a crash, both tables are at the same position and share one aggregation.
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

    def _events(
        self,
        start: int,
        end: int,
        queues: Sequence[str] = (),
        *,
        columns: Sequence[str] = EVENT_COLUMNS,
        **least: datetime,
    ) -> DataFrame:
        """Return the events between two offsets; `queues` and `least` skip files, not rows."""
        bronze = self._lake[BRONZE]
        events = bronze.read(self._spark, columns, queues, offset=start, **least)
        first = bronze.least_of("offset", offset=start)
        if first is None or (first >= start and bronze.position(self.app) == end):
            # No file holds other offsets. A literal in the plan would be recompiled at every step.
            return events
        return events.where((events["offset"] >= start) & (events["offset"] < end))

    def _oldest(self, start: int) -> datetime | None:
        """Return the oldest timestamp of the events since an offset."""
        oldest: datetime | None = self._lake[BRONZE].least_of("at", offset=start)
        return oldest

    def _silver(self, table: LakeTable, end: int, small: bool, kinds: frozenset[str]) -> None:
        events = self._events(self._from(table), end)
        files: list[NewFile] = []
        if kinds.intersection(silver.ENDS):
            files += write_files(silver.finished_lives(events), table.folder, SILVER, small=small)
        removals = silver.removal_events(events)
        queues, oldest_ms = silver.removed_queues(removals) if "queue" in kinds else ([], 0)
        if queues:
            since = datetime.fromtimestamp(oldest_ms / 1000, UTC) - CLOCKS_APART
            history = self._events(0, end, queues, at=since)
            # As literals, so that Spark skips row groups without these queues.
            if len(queues) <= QUEUES_MAX:
                history = history.where(history["queue"].isin(queues))
            lives = silver.lives_of_removed_queues(history, removals)
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
        held = self._lake[QUEUES]
        if held.position(self.app) != end:
            raise Conflict(
                f"another pipeline has moved {QUEUES.name} to offset {held.position(self.app)} meanwhile",
                hint="run one pipeline for each lake",
            )
        queues = held.read(self._spark)
        kept = table.read(self._spark, **since)
        rows = gold.minutes_with(kept, added, queues)
        replaced = table.sizes(**since)
        if sum(replaced.values()) > REPLACED_BYTES_MAX:
            # A very late event changes the depth of all minutes since, which may be more than the driver can hold.
            whole = rows.unionByName(gold.minutes_untouched(kept, added)).sort("minute")
            files = write_files(whole, table.folder, QUEUE_MINUTES)
            table.replace_files(replaced, files, at=(self.app, end))
            return
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


def _read(place: LogLocation, skip_lost: bool, masks: Masks, part: OffsetRange) -> Iterator[pa.RecordBatch]:
    with closing(place.open()) as log:
        events = log.read(part, BRONZE.schema.names, skip_lost=skip_lost)
        yield from Masker(masks).mask(events) if masks else events
