"""Writes rows in Spark tasks as Parquet files, with the metadata that a table commit needs.

File names are unique and a file counts only once it is committed, so a killed or repeated attempt leaves at most a file
that `vacuum` removes.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.lake.lake import PUT_FILE_BYTES, NewFile
from penstock.pipeline.lake.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Rows are sorted within a window, and cut into row groups so small that a queue's rows fill some of them alone.
ROW_GROUP_ROWS = 32 << 10
WINDOW_ROWS = 256 << 10
WINDOW_BYTES = 64 << 20
FILE_BYTES = 512 << 20
CHANGING_BATCH_ROWS = 1_000
_FILE_SCHEMA = pa.schema([("file", pa.binary())])
Batches = Iterator[pa.RecordBatch]


def write_files(rows: DataFrame, folder: Path, table: Table, *, small: bool = False) -> list[NewFile]:
    """Write a data frame as files of a table. A `small` one is written by the driver, without Python workers."""
    if small:
        return list(write_batches(rows.toArrow().to_batches(), folder, table))

    def write(batches: Iterable[pa.RecordBatch]) -> Batches:
        yield from _as_batches(write_batches(batches, folder, table))

    return _files(rows.mapInArrow(write, "file binary").collect())


def write_parts(
    spark: SparkSession,
    parts: Sequence[Any],
    read: Callable[[Any], Batches],
    folder: Path,
    table: Table,
    *,
    small: bool = False,
) -> list[NewFile]:
    """Write what `read` returns for each part, one task per part. Rows never pass through the JVM."""
    if small:
        return list(write_batches(chain.from_iterable(map(read, parts)), folder, table))
    if not parts:
        return []

    def write(batches: Iterable[pa.RecordBatch]) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _as_batches(write_batches(read(parts[number]), folder, table))

    tasks = spark.range(0, len(parts), 1, len(parts))
    return _files(tasks.mapInArrow(write, "file binary").collect())


def write_batches(
    batches: Iterable[pa.RecordBatch], folder: Path, table: Table, *, windows: int = 1
) -> Iterator[NewFile]:
    """Write rows as files; `windows` multiplies the number of rows that are held and sorted together."""
    writer: _Writer | None = None
    # Replacing rows rewrites whole files, so those of a table that changes are small.
    file_bytes = PUT_FILE_BYTES if table.changes else FILE_BYTES
    batch_rows = CHANGING_BATCH_ROWS if table.changes else WINDOW_ROWS
    for batch in _slices(batches, batch_rows):
        if writer is None:
            writer = _Writer(folder, table, windows)
        writer.write(pa.Table.from_batches([batch]).select(table.schema.names).cast(table.schema))
        if writer.bytes > file_bytes:
            yield writer.close()
            writer = None
    if writer is not None:
        yield writer.close()


def _slices(batches: Iterable[pa.RecordBatch], rows: int) -> Batches:
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


class _Writer:
    def __init__(self, folder: Path, table: Table, windows: int) -> None:
        self._name = f"part-{uuid.uuid4()}.parquet"
        self._path = folder / self._name
        self._ranged = table.ranged
        self._clustered = table.clustered
        self._window_rows, self._window_bytes = WINDOW_ROWS * windows, WINDOW_BYTES * windows
        if table.changes:
            self._window_bytes = PUT_FILE_BYTES
        self._writer = pq.ParquetWriter(
            self._path,
            table.schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[field.name for field in table.schema if field.name in _REPEATING],
            column_encoding={"uuid": "DELTA_BYTE_ARRAY"} if "uuid" in table.schema.names else None,
            write_statistics=list(table.ranged) or False,
        )
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = self.bytes = 0
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}
        self._nulls = dict.fromkeys(table.emptied, 0)

    def write(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows
        for name in self._ranged:
            found = pc.min_max(rows[name]).as_py()
            self._least[name] = _least(self._least.get(name), found["min"])
            self._greatest[name] = _greatest(self._greatest.get(name), found["max"])
        for name in self._nulls:
            self._nulls[name] += rows[name].null_count
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= self._window_rows or self._waiting_bytes >= self._window_bytes:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._writer.write_table(_sorted(rows, self._clustered), row_group_size=ROW_GROUP_ROWS)
        self.bytes += self._waiting_bytes
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> NewFile:
        self._flush()
        self._writer.close()
        fd = os.open(self._path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            os.fdatasync(fd)
        finally:
            os.close(fd)
        return NewFile(self._name, size, self._rows, self._least, self._greatest, self._nulls)


def _sorted(rows: pa.Table, column: str | None) -> pa.Table:
    """Sort by a column with few values, and keep the order of rows with the same one."""
    if column is None:
        return rows
    values = rows[column].combine_chunks().dictionary_encode()
    if len(values.dictionary) < 2:
        return rows
    ranks = pc.rank(values.dictionary).to_numpy()
    codes = ranks[values.indices.fill_null(0).to_numpy()]
    # Several times as fast as Arrow's own sort, which is not stable and would need the offset as well.
    narrow = codes.astype(np.uint16 if len(values.dictionary) < 1 << 16 else np.uint32)
    return rows.take(pa.array(np.argsort(narrow, kind="stable")))


_REPEATING = frozenset(
    ("kind", "queue", "queue_id", "number", "outcome", "marks", "attempts", "priority", "content", "reason")
)


def _least(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else min(one, other)


def _greatest(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else max(one, other)


def _as_batches(files: Iterable[NewFile]) -> Batches:
    for file in files:
        yield pa.RecordBatch.from_pylist([{"file": msgspec.json.encode(file)}], schema=_FILE_SCHEMA)


def _files(rows: Sequence[Any]) -> list[NewFile]:
    return [_with_times(msgspec.json.decode(row[0], type=NewFile)) for row in rows]


def _with_times(file: NewFile) -> NewFile:
    return msgspec.structs.replace(file, least=_parsed(file.least), greatest=_parsed(file.greatest))


def _parsed(values: dict[str, Any]) -> dict[str, Any]:
    """Parse timestamps, which are the only strings but for the queue."""
    return {
        name: datetime.fromisoformat(value) if isinstance(value, str) and name != "queue" else value
        for name, value in values.items()
    }
