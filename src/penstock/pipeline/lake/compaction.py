"""Merges the small files of a table.

Files of one day are merged with each other alone, so that a reader of one day skips the others. Merged files are sorted
within large windows, so that a reader of one queue skips most row groups. A group of files is merged in memory of a few
windows, however large the table is, and a file is merged only until it is large. Files of a table whose rows are
replaced stay small, because whole files are rewritten, and are not kept apart by day.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Conflict
from penstock.pipeline.lake.files import write_merged
from penstock.pipeline.lake.lake import PUT_FILE_BYTES, LakeTable
from penstock.pipeline.lake.tables import Table

# Files below this size are merged, into files of up to four times as much.
SMALL_FILE_BYTES = 16 << 20
SMALL_CHANGING_BYTES = PUT_FILE_BYTES // 4
GROWTH = 4
WINDOWS = 4


def compact(table: LakeTable) -> dict[str, int]:
    """Replace small files by few large ones, with the same rows. Each group of files is a commit of its own."""
    removed = added = 0
    for sizes in list(_groups(table)):
        files = list(write_merged(table.batches_of(sizes), table.folder, table.table, windows=WINDOWS))
        try:
            table.replace_files(sizes, files, changes_data=False)
        except Conflict:
            break  # Another process compacts this table. The next vacuum removes these files.
        removed, added = removed + len(sizes), added + len(files)
    return {"removed": removed, "added": added}


def _groups(table: LakeTable) -> Iterator[dict[str, int]]:
    """Yield groups of two or more small files, oldest first."""
    limit = SMALL_CHANGING_BYTES if table.table.changes else SMALL_FILE_BYTES
    entries = table.entries()
    small = entries.filter(pc.less(entries["size_bytes"], limit))
    oldest = next((f"min.{name}" for name in table.table.ranged if f"min.{name}" in small.column_names), "path")
    small = small.sort_by(oldest)
    for part in _parts(small, table.table):
        yield from _grouped(part, GROWTH * limit)


def _parts(small: pa.Table, table: Table) -> Iterator[pa.Table]:
    """Divide files by those whose rows belong together."""
    newest = f"max.{table.ranged[-1]}" if table.ranged else ""
    if table.changes or newest not in small.column_names:
        yield small
        return
    # Rows without bodies stay apart, so that retention need not read them again.
    without = pa.chunked_array([pa.repeat(False, small.num_rows)])
    for name in table.emptied:
        if f"null_count.{name}" in small.column_names:
            without = pc.fill_null(pc.equal(small[f"null_count.{name}"], small["num_records"]), False)
    # The newest row decides: the oldest may be an event that came very late.
    days = pc.floor_temporal(small[newest], unit="day").fill_null(datetime.fromtimestamp(0, UTC))
    for day in days.unique():
        of_day = pc.equal(days, day)
        yield small.filter(pc.and_(of_day, without))
        yield small.filter(pc.and_(of_day, pc.invert(without)))


def _grouped(small: pa.Table, most: int) -> Iterator[dict[str, int]]:
    group: dict[str, int] = {}
    for path, size in zip(small["path"].to_pylist(), small["size_bytes"].to_pylist(), strict=True):
        if sum(group.values()) + size > most and len(group) > 1:
            yield group
            group = {}
        group[path] = size
    if len(group) > 1:
        yield group
