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
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.lake.lake import NewFile
from penstock.pipeline.lake.storage import Folder, NewObject
from penstock.pipeline.lake.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_GROUP_ROWS = 256 << 10
ROW_GROUP_BYTES = 64 << 20
FILE_BYTES = 512 << 20
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
    writers = _Writers(folder, table)
    for batch in batches:
        yield from writers.add(batch)
    yield from writers.close()


class _Writers:
    """Writes batches to a file, and to another one when it is large enough."""

    def __init__(self, folder: Folder, table: Table) -> None:
        self._folder = folder
        self._table = table
        self._writer: _Writer | None = None

    def add(self, batch: pa.RecordBatch) -> Iterator[NewFile]:
        if batch.num_rows == 0:
            return
        if self._writer is None:
            self._writer = _Writer(self._folder, self._table)
        schema = self._table.schema
        self._writer.write(pa.Table.from_batches([batch]).select(schema.names).cast(schema))
        if self._writer.bytes > FILE_BYTES:
            yield from self.close()

    def close(self) -> Iterator[NewFile]:
        if self._writer is not None:
            yield self._writer.close()
            self._writer = None


class _Writer:
    def __init__(self, folder: Folder, table: Table) -> None:
        self._name = f"part-{uuid.uuid4()}.parquet"
        self._file = NewObject(folder, self._name)
        self._ranged = table.ranged
        self._writer = pq.ParquetWriter(
            self._file.target,
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

    def write(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows
        for name in self._ranged:
            found = pc.min_max(rows[name]).as_py()
            self._least[name] = _least(self._least.get(name), found["min"])
            self._greatest[name] = _greatest(self._greatest.get(name), found["max"])
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=self._waiting_rows)
        self.bytes += self._waiting_bytes
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> NewFile:
        self._flush()
        self._writer.close()
        return NewFile(self._name, self._file.close(), self._rows, self._least, self._greatest)


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
    """Parse timestamps, which are the only strings."""
    return {name: datetime.fromisoformat(value) if isinstance(value, str) else value for name, value in values.items()}
