"""Writes rows in Spark tasks as Parquet files, with the metadata that a table commit needs.

File names are unique and a file counts only once it is committed, so a killed or repeated attempt leaves at most a file
that `vacuum` removes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.lake.data_files import NewFile
from penstock.pipeline.lake.lake import PUT_FILE_BYTES
from penstock.pipeline.lake.storage import Folder, NewObject
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
# A table and its folder.
Output = tuple[Folder, Table]


def write_files(rows: DataFrame, folder: Folder, table: Table, *, small: bool = False) -> list[NewFile]:
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
    folder: Folder,
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


def write_all(rows: DataFrame, folder: Folder, schema: pa.Schema) -> dict[str, int]:
    """Write any data frame as plain Parquet files, one per partition. Return their sizes by name, in order."""

    def write(batches: Iterable[pa.RecordBatch]) -> Batches:
        name = f"part-{uuid.uuid4()}.parquet"
        file, count = NewObject(folder, name), 0
        with pq.ParquetWriter(file.target, schema) as writer:
            for batch in batches:
                writer.write_batch(pa.Table.from_batches([batch]).cast(schema).combine_chunks().to_batches()[0])
                count += batch.num_rows
        yield from _as_batches([NewFile(name, file.close(), count, {}, {})])

    files = _files(rows.mapInArrow(write, "file binary").collect())
    return {file.path: file.bytes for file in files}


def write_split(
    rows: DataFrame | pa.Table, split: Callable[[pa.RecordBatch], Sequence[pa.RecordBatch]], outputs: Sequence[Output]
) -> list[list[NewFile]]:
    """Write the parts into which `split` divides each batch, each to the output at its position.

    Rows of a data frame are written in tasks, those of a table by the driver.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, NewFile]]:
        writers = [_Writers(*output) for output in outputs]
        for batch in batches:
            for number, part in enumerate(split(batch)):
                yield from ((number, file) for file in writers[number].add(part))
        for number, writer in enumerate(writers):
            yield from ((number, file) for file in writer.close())

    def write_in_task(batches: Iterable[pa.RecordBatch]) -> Batches:
        for number, file in write(batches):
            encoded = msgspec.json.encode((number, file))
            yield pa.RecordBatch.from_pylist([{"file": encoded}], schema=_FILE_SCHEMA)

    if isinstance(rows, pa.Table):
        written = list(write(rows.to_batches()))
    else:
        encoded = rows.mapInArrow(write_in_task, "file binary").collect()
        found = (msgspec.json.decode(row[0], type=tuple[int, NewFile]) for row in encoded)
        written = [(number, _with_times(file)) for number, file in found]
    return [[file for number, file in written if number == output] for output in range(len(outputs))]


def write_batches(batches: Iterable[pa.RecordBatch], folder: Folder, table: Table) -> Iterator[NewFile]:
    # Replacing rows rewrites whole files, so those of a table that changes are small.
    writers = _Writers(folder, table, PUT_FILE_BYTES if table.changes else FILE_BYTES)
    for batch in batches:
        yield from writers.add(batch)
    yield from writers.close()


def write_merged(batches: Iterable[pa.RecordBatch], folder: Folder, table: Table, windows: int) -> Iterator[NewFile]:
    """Write the rows of small files; `windows` multiplies the number of rows that are held and sorted together."""
    writers = _Writers(folder, table, FILE_BYTES, windows)
    for batch in batches:
        yield from writers.add(batch)
    yield from writers.close()


class _Writers:
    """Writes batches to a file, and to another one when it is large enough."""

    def __init__(self, folder: Folder, table: Table, file_bytes: int = FILE_BYTES, windows: int = 1) -> None:
        self._folder, self._table, self._file_bytes, self._windows = folder, table, file_bytes, windows
        self._batch_rows = CHANGING_BATCH_ROWS if table.changes else WINDOW_ROWS
        self._writer: _Writer | None = None

    def add(self, batch: pa.RecordBatch) -> Iterator[NewFile]:
        schema = self._table.schema
        for start in range(0, batch.num_rows, self._batch_rows):
            if self._writer is None:
                self._writer = _Writer(self._folder, self._table, self._windows)
            rows = pa.Table.from_batches([batch.slice(start, self._batch_rows)])
            self._writer.write(rows.select(schema.names).cast(schema))
            if self._writer.bytes > self._file_bytes:
                yield from self.close()

    def close(self) -> Iterator[NewFile]:
        if self._writer is not None:
            yield self._writer.close()
            self._writer = None


class _Writer:
    def __init__(self, folder: Folder, table: Table, windows: int) -> None:
        self._name = f"part-{uuid.uuid4()}.parquet"
        self._file = NewObject(folder, self._name)
        self._ranged = table.ranged
        self._clustered = table.clustered
        self._window_rows, self._window_bytes = WINDOW_ROWS * windows, WINDOW_BYTES * windows
        if table.changes:
            self._window_bytes = PUT_FILE_BYTES
        self._writer = pq.ParquetWriter(
            self._file.target,
            table.schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[field.name for field in table.schema if field.name in _REPEATING],
            column_encoding={"uuid": "DELTA_BYTE_ARRAY"} if _has_uuids(table.schema) else None,
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
        return NewFile(self._name, self._file.close(), self._rows, self._least, self._greatest, self._nulls)


def _has_uuids(schema: pa.Schema) -> bool:
    # A model's column of that name may have another type.
    return "uuid" in schema.names and bool(pa.types.is_string(schema.field("uuid").type))


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
