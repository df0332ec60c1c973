"""Drops what the lake has held for long enough: first bodies, then rows.

The limits are a property of bronze.events, so that every run applies them. A file goes once all its rows are too old,
without reading it; one that also has newer rows is split when its oldest rows are a day over the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.errors import Conflict, InvalidInput
from penstock.pipeline.lake.files import write_batches
from penstock.pipeline.lake.lake import TIDY, Lake, LakeTable
from penstock.pipeline.lake.tables import BRONZE, QUEUE_ERRORS, QUEUE_MINUTES, QUEUES, SILVER, Table
from penstock.pipeline.models.catalog import tables_of_model
from penstock.pipeline.models.definitions import Definitions

PROPERTY = "penstock.retention"
# Time before which rows were dropped, in milliseconds, in the table's own properties.
TRIMMED = "penstock.trimmed"
# The same for bodies, in the properties of bronze.events.
EMPTIED = "penstock.emptied"
BODIES = "bronze.bodies"
KEPT = {BODIES: BRONZE, "bronze": BRONZE, "silver": SILVER, "gold.errors": QUEUE_ERRORS}
SPLIT_AFTER = timedelta(days=1)
# Tables computed from bronze, which keeps what they have not read.
READERS = (SILVER, QUEUES, QUEUE_MINUTES, QUEUE_ERRORS)
# Above every offset, so that no row waits for a model.
NO_MODELS = 1 << 62


class Dropped(Struct, frozen=True, kw_only=True):
    """What was dropped from a table."""

    what: str
    files: int
    """Files removed or rewritten."""
    rows: int
    """Rows removed, or whose body was removed."""


def stored_retention(lake: Lake) -> dict[str, int]:
    """Return the retention of each part, in milliseconds. Parts that are not there are kept forever."""
    text = lake[BRONZE].properties().get(PROPERTY)
    return {} if text is None else msgspec.json.decode(text, type=dict[str, int])


def retain(lake: Lake, changes: Mapping[str, int | None]) -> dict[str, int]:
    """Change the retention of some parts, None for forever, and return that of all."""
    for name in changes:
        if name not in KEPT:
            raise InvalidInput(f"no retention for {name!r}", field="table", hint=f"use one of {', '.join(KEPT)}")
    known = stored_retention(lake)
    found = {name: ms for name, ms in {**known, **changes}.items() if ms is not None}
    if BODIES in found and found[BODIES] >= found.get("bronze", found[BODIES] + 1):
        raise InvalidInput(
            "bronze.bodies is not shorter than bronze", field=BODIES, hint="bodies are dropped before their rows"
        )
    if found != known:
        lake[BRONZE].set_property(PROPERTY, msgspec.json.encode(found).decode())
    return found


def trimmed_before(table: LakeTable) -> datetime | None:
    """Return the time before which retention has dropped rows of a table; None if it has all."""
    return _time_in(table, TRIMMED)


def dropped_before(lake: Lake) -> datetime | None:
    """Return the time before which retention has dropped anything that a model reads; None if it is all there."""
    times = [trimmed_before(lake[table]) for table in KEPT.values()] + [_time_in(lake[BRONZE], EMPTIED)]
    return max((time for time in times if time is not None), default=None)


def _time_in(table: LakeTable, name: str) -> datetime | None:
    text = table.properties().get(name)
    return None if text is None else datetime.fromtimestamp(int(text) / 1000, UTC)


def _advance(table: LakeTable, name: str, before: datetime) -> None:
    """Store the time before rows are dropped, so that nobody expects rows that are gone."""
    known = _time_in(table, name)
    if known is None or known < before:
        table.set_property(name, str(int(before.timestamp() * 1000)))


def apply_retention(lake: Lake, app: str, now: datetime) -> list[Dropped]:
    """Drop what is older than its retention, except what a derived table or a model has not read."""
    limits = stored_retention(lake)
    if not limits:
        return []
    of_models = _read_by_models(lake, app)
    done = []
    # Rows first: their bodies need not be removed before.
    for name in sorted(limits, key=lambda name: name == BODIES):
        table = lake[KEPT[name]]
        read_up_to = of_models
        if table.table is BRONZE:
            read_up_to = min(of_models, *(lake[reader].position(app) or 0 for reader in READERS))
        before = now - timedelta(milliseconds=limits[name])
        entries = _old(table, before, app, read_up_to)
        drop = _drop_bodies if name == BODIES else _drop_rows
        try:
            done.append(drop(table, name, entries, before))
        except Conflict:
            continue  # A compaction beside this pipeline has replaced these files. The next time drops their rows.
        if done[-1].files:
            table.vacuum(TIDY[1])
    return done


def _read_by_models(lake: Lake, app: str) -> int:
    """Return the offset up to which every model has read. A new one has read nothing."""
    tables = [table for each in Definitions(lake).all().values() for table in tables_of_model(lake, each)]
    return min((table.position(app) or 0 if table.exists() else 0 for table in tables), default=NO_MODELS)


def _drop_rows(table: LakeTable, name: str, entries: Sequence[dict[str, Any]], before: datetime) -> Dropped:
    if not entries:
        return Dropped(what=name, files=0, rows=0)
    _advance(table, TRIMMED, before)
    rows = 0
    for entry in entries:
        kept = []
        if _newest(entry, table.table) >= before:
            kept = list(write_batches(_part(table, entry, before, old=False), table.folder, table.table))
        table.replace_files([entry["path"]], kept)
        rows += entry["num_records"] - sum(file.rows for file in kept)
    return Dropped(what=name, files=len(entries), rows=rows)


def _drop_bodies(table: LakeTable, name: str, entries: Sequence[dict[str, Any]], before: datetime) -> Dropped:
    [column] = table.table.emptied
    entries = [entry for entry in entries if entry.get(f"null_count.{column}") != entry["num_records"]]
    if entries:
        _advance(table, EMPTIED, before)
    rows = 0
    for entry in entries:
        emptied = (_without(batch, column) for batch in _part(table, entry, before, old=True))
        files = list(write_batches(emptied, table.folder, table.table))
        rows += sum(file.rows for file in files)
        # Into files of their own, so that they are not read for this again.
        if _newest(entry, table.table) >= before:
            files += write_batches(_part(table, entry, before, old=False), table.folder, table.table)
        table.replace_files([entry["path"]], files)
    return Dropped(what=name, files=len(entries), rows=rows)


def _old(table: LakeTable, before: datetime, app: str, read_up_to: int) -> list[dict[str, Any]]:
    """Return the files whose rows are all older, or some by far, and that every reader has read."""
    time = table.table.ranged[-1]
    found: list[dict[str, Any]] = []
    if "offset" not in table.table.ranged and read_up_to < (table.position(app) or 0):
        return found  # Nobody knows which rows a model has not read.
    for entry in table.entries().to_pylist():
        newest, oldest = entry.get(f"max.{time}"), entry.get(f"min.{time}")
        if newest is None or (newest >= before and oldest >= before - SPLIT_AFTER):
            continue
        if "offset" in table.table.ranged and entry["max.offset"] >= read_up_to:
            continue
        found.append(entry)
    return found


def _newest(entry: dict[str, Any], table: Table) -> datetime:
    found: datetime = entry[f"max.{table.ranged[-1]}"]
    return found


def _part(table: LakeTable, entry: dict[str, Any], before: datetime, *, old: bool) -> Iterator[pa.RecordBatch]:
    limit = pa.scalar(before, pa.timestamp("us", tz="UTC"))
    for batch in table.batches_of({entry["path"]: entry["size_bytes"]}):
        is_old = pc.fill_null(pc.less(batch[table.table.ranged[-1]], limit), True)
        yield batch.filter(is_old if old else pc.invert(is_old))


def _without(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    place = batch.schema.get_field_index(column)
    field = batch.schema.field(column)
    return batch.set_column(place, field, pa.nulls(batch.num_rows, field.type))
