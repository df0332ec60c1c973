"""Drops what the lake has held for long enough: first bodies, then rows.

The limits are a property of bronze.events, so that every run applies them. A file goes once all its rows are too old,
without reading it; one that also has newer rows is split when its oldest rows are a day over the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.errors import InvalidInput
from penstock.pipeline.lake.compaction import rows_of
from penstock.pipeline.lake.files import write_batches
from penstock.pipeline.lake.lake import TIDY, Lake, LakeTable
from penstock.pipeline.lake.tables import BRONZE, QUEUE_ERRORS, QUEUE_MINUTES, QUEUES, SILVER, Table

PROPERTY = "penstock.retention"
# Time before which rows were dropped, in milliseconds, in the table's own properties.
TRIMMED = "penstock.trimmed"
BODIES = "bronze.bodies"
KEPT = {BODIES: BRONZE, "bronze": BRONZE, "silver": SILVER, "gold.errors": QUEUE_ERRORS}
SPLIT_AFTER = timedelta(days=1)
# Tables computed from bronze, which keeps what they have not read.
READERS = (SILVER, QUEUES, QUEUE_MINUTES, QUEUE_ERRORS)


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
    text = table.properties().get(TRIMMED)
    return None if text is None else datetime.fromtimestamp(int(text) / 1000, UTC)


def apply_retention(lake: Lake, app: str, now: datetime) -> list[Dropped]:
    """Drop what is older than its retention, except events that a derived table has not read."""
    limits = stored_retention(lake)
    if not limits:
        return []
    read_up_to = min(lake[table].position(app) or 0 for table in READERS)
    done = []
    # Rows first: their bodies need not be removed before.
    for name in sorted(limits, key=lambda name: name == BODIES):
        table = lake[KEPT[name]]
        before = now - timedelta(milliseconds=limits[name])
        done.append(
            _drop_bodies(table, before, read_up_to) if name == BODIES else _drop_rows(table, name, before, read_up_to)
        )
        if done[-1].files:
            table.vacuum(TIDY[1])
    return done


def _drop_rows(table: LakeTable, name: str, before: datetime, read_up_to: int) -> Dropped:
    entries = _old(table, before, read_up_to)
    if not entries:
        return Dropped(what=name, files=0, rows=0)
    # Written first, so that nobody expects rows that are gone.
    known = trimmed_before(table)
    if known is None or known < before:
        table.set_property(TRIMMED, str(int(before.timestamp() * 1000)))
    rows = 0
    for entry in entries:
        kept = []
        if _newest(entry, table.table) >= before:
            kept = list(write_batches(_part(table, entry, before, old=False), table.folder, table.table))
        table.replace([entry["path"]], kept)
        rows += entry["num_records"] - sum(file.rows for file in kept)
    return Dropped(what=name, files=len(entries), rows=rows)


def _drop_bodies(table: LakeTable, before: datetime, read_up_to: int) -> Dropped:
    [column] = table.table.emptied
    entries = [
        entry for entry in _old(table, before, read_up_to) if entry.get(f"null_count.{column}") != entry["num_records"]
    ]
    rows = 0
    for entry in entries:
        emptied = (_without(batch, column) for batch in _part(table, entry, before, old=True))
        files = list(write_batches(emptied, table.folder, table.table))
        rows += sum(file.rows for file in files)
        # Into files of their own, so that they are not read for this again.
        if _newest(entry, table.table) >= before:
            files += write_batches(_part(table, entry, before, old=False), table.folder, table.table)
        table.replace([entry["path"]], files)
    return Dropped(what=BODIES, files=len(entries), rows=rows)


def _old(table: LakeTable, before: datetime, read_up_to: int) -> list[dict[str, Any]]:
    """Return the files whose rows are all older, or some by far, and that every derived table has read."""
    time = table.table.ranged[-1]
    found = []
    for entry in table.entries().to_pylist():
        newest, oldest = entry.get(f"max.{time}"), entry.get(f"min.{time}")
        if newest is None or (newest >= before and oldest >= before - SPLIT_AFTER):
            continue
        if table.table is BRONZE and entry["max.offset"] >= read_up_to:
            continue
        found.append(entry)
    return found


def _newest(entry: dict[str, Any], table: Table) -> datetime:
    found: datetime = entry[f"max.{table.ranged[-1]}"]
    return found


def _part(table: LakeTable, entry: dict[str, Any], before: datetime, *, old: bool) -> Iterator[pa.RecordBatch]:
    limit = pa.scalar(before, pa.timestamp("us", tz="UTC"))
    for batch in rows_of(table, [entry["path"]]):
        is_old = pc.fill_null(pc.less(batch[table.table.ranged[-1]], limit), True)
        yield batch.filter(is_old if old else pc.invert(is_old))


def _without(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    place = batch.schema.get_field_index(column)
    field = batch.schema.field(column)
    return batch.set_column(place, field, pa.nulls(batch.num_rows, field.type))
