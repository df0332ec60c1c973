"""`format("penstock")`: the journal, or a stream, for Spark; and rows of Spark into a queue.

    spark.dataSource.register(PenstockSource)        # not needed where the package is installed
    spark.read.format("penstock").load("/var/lib/penstock")
    spark.read.format("penstock").option("stream", "clicks").schema("offset bigint, data binary").load("/var/lib/…")
    spark.read.format("penstock").option("stream", "clicks").load("http://127.0.0.1:8888")
    spark.readStream.format("penstock").option("startingOffsets", "latest").load("/var/lib/penstock")
    frame.write.format("penstock").option("queue", "mail").mode("append").save("/var/lib/penstock")

A schema with fewer columns reads fewer: without the body, events take half the time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.journal.arrow import SCHEMA as EVENTS
from penstock.log.arrow import SCHEMA as RECORDS
from penstock.pipeline.logs import AnyLog
from penstock.pipeline.options import ReadOptions, read_options, write_options
from penstock.pipeline.sink import QueueStreamWriter, QueueWriter

OFFSET = "offset"


class PenstockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return from_arrow_schema(_schema_of(read_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return QueueWriter(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return QueueStreamWriter(write_options(self.options), schema, overwrite)


class _Reading:
    """What a batch and a stream have in common."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        known = _schema_of(options)
        unknown = [name for name in schema.names if name not in known.names]
        if unknown:
            raise InvalidInput(f"there is no column {unknown[0]!r}", field="schema", hint=", ".join(known.names))
        self.columns = list(schema.names)

    def plan(self, log: AnyLog, start: int, end: int) -> list[InputPartition]:
        if start >= end:
            return []
        count = max(self.options.partitions_min, os.cpu_count() or 1)
        return [InputPartition(part) for part in log.parts(start, end, min(count, end - start))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with closing(self.options.open()) as log:
            yield from log.read(partition.value, self.columns, not self.options.fail_on_data_loss)


class Reader(_Reading, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        with closing(self.options.open()) as log:
            return self.plan(log, self.options.first(log), self.options.last(log))


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{"offset": n}`: everything before n has been read. Any range can be read again, exactly."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._log: AnyLog | None = None
        self._until: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None}

    @property
    def log(self) -> AnyLog:
        if self._log is None:
            self._log = self.options.open()
        return self._log

    def initialOffset(self) -> dict[str, int]:
        return {OFFSET: self.options.first(self.log)}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self.log.next_offset

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        end = self.log.next_offset if self._until is None else self._until
        if isinstance(limit, ReadMaxRows):
            end = min(end, start[OFFSET] + limit.max_rows)
        return {OFFSET: max(end, start[OFFSET])}

    def reportLatestOffset(self) -> dict[str, int]:
        return {OFFSET: self.log.next_offset}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self.plan(self.log, self.options.checked(self.log, start[OFFSET]), end[OFFSET])

    def commit(self, end: dict[str, int]) -> None:
        """Only a report: what is not yet in a checkpoint is read again, and must still be there."""
        if self.options.consumer is not None and end[OFFSET] > 0:
            self.log.report(self.options.consumer, end[OFFSET] - 1)

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()


def _schema_of(options: ReadOptions) -> pa.Schema:
    return EVENTS if options.stream is None else RECORDS
