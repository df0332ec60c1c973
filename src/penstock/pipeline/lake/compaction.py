"""Merges the small files of a table to which rows are only added.

Files of one day are merged with each other alone, so that a reader of one day skips the others. Merged files are sorted
within large windows, so that a reader of one queue skips most row groups. A group of files is merged in memory of a few
windows, however large the table is, and a file is merged only until it is large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.lake.files import write_batches

if TYPE_CHECKING:
    from penstock.pipeline.lake.lake import LakeTable

# Files below this size are merged, into files of up to four times as much.
SMALL_FILE_BYTES = 16 << 20
GROUP_BYTES = 4 * SMALL_FILE_BYTES
WINDOWS = 4


def compact(table: LakeTable) -> dict[str, int]:
    """Replace small files by few large ones, with the same rows. Each group of files is a commit of its own."""
    removed = added = 0
    for paths in list(_groups(table)):
        files = list(write_batches(rows_of(table, paths), table.folder, table.table, windows=WINDOWS))
        table.replace(paths, files, changes_data=False)
        removed, added = removed + len(paths), added + len(files)
    return {"removed": removed, "added": added}


def _groups(table: LakeTable) -> Iterator[list[str]]:
    """Yield groups of two or more small files of one day, oldest first."""
    entries = table.entries()
    newest = f"max.{table.table.ranged[-1]}"
    if newest not in entries.column_names:
        return  # The table is empty.
    small = entries.filter(pc.less(entries["size_bytes"], SMALL_FILE_BYTES)).sort_by("min.offset")
    # Rows without bodies stay apart, so that retention need not read them again.
    without = pa.chunked_array([pa.repeat(False, small.num_rows)])
    for name in table.table.emptied:
        if f"null_count.{name}" in small.column_names:
            without = pc.fill_null(pc.equal(small[f"null_count.{name}"], small["num_records"]), False)
    # The newest row decides: the oldest may be an event that came very late.
    days = pc.floor_temporal(small[newest], unit="day").fill_null(datetime.fromtimestamp(0, UTC))
    for day in days.unique():
        of_day = pc.equal(days, day)
        yield from _grouped(small.filter(pc.and_(of_day, without)))
        yield from _grouped(small.filter(pc.and_(of_day, pc.invert(without))))


def _grouped(small: pa.Table) -> Iterator[list[str]]:
    group: list[str] = []
    filled = 0
    for path, size in zip(small["path"].to_pylist(), small["size_bytes"].to_pylist(), strict=True):
        if filled + size > GROUP_BYTES and len(group) > 1:
            yield group
            group, filled = [], 0
        group.append(path)
        filled += size
    if len(group) > 1:
        yield group


def rows_of(table: LakeTable, paths: Sequence[str], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some files; columns that are missing in older ones are null."""
    schema = table.table.schema if columns is None else pa.schema([table.table.schema.field(name) for name in columns])
    for path in paths:
        with pq.ParquetFile(table.folder / path) as file:
            for batch in file.iter_batches(columns=schema.names):
                yield _whole(batch, schema)


def _whole(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        batch[field.name].cast(field.type) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
