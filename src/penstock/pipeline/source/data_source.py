"""`format("penstock")`: reads the journal or a stream, and writes rows into a queue or a stream.

    spark.dataSource.register(PenstockSource)        # not needed where the package is installed
    spark.read.format("penstock").load("/var/lib/penstock")
    spark.read.format("penstock").option("stream", "clicks").schema("offset bigint, data binary").load("/var/lib/…")
    spark.read.format("penstock").option("stream", "clicks").load("http://127.0.0.1:8888")
    spark.read.format("penstock").load("postgresql://penstock@db/queues")
    spark.readStream.format("penstock").option("startingOffsets", "latest").load("/var/lib/penstock")
    frame.write.format("penstock").option("queue", "mail").mode("append").save("/var/lib/penstock")

A schema with fewer columns reads less: without the body, events take half the time.
"""

from __future__ import annotations

import logging
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
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_type
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import Conflict, InvalidInput
from penstock.pipeline.sink.writer import SinkWriter, StreamWriter
from penstock.pipeline.source.log_sources import FolderLog, SourceLog, schema_of
from penstock.pipeline.source.offset_ranges import OffsetRange, parts_of
from penstock.pipeline.source.options import ReadOptions, read_options, write_options

OFFSET, LOST, UID = "offset", "lost", "uid"
Offset = dict[str, Any]


class PenstockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return from_arrow_schema(schema_of(read_options(self.options).stream))

    def reader(self, schema: StructType) -> DataSourceReader:
        return PartitionReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return SinkWriter(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(write_options(self.options), schema, overwrite)


def check_schema(asked: StructType, known: pa.Schema) -> None:
    for field in asked:
        name, kind = field.name, field.dataType
        if name not in known.names:
            raise InvalidInput(f"unknown column {name!r}", field="schema", hint=f"choose from {', '.join(known.names)}")
        proper = known.field(name).type
        if to_arrow_type(kind, timezone="UTC") != proper:
            text = f"column {name!r} is {from_arrow_type(proper).simpleString()}, not {kind.simpleString()}"
            raise InvalidInput(text, field="schema", hint="cast the column after reading")


class Range(InputPartition):
    """A range of a log, pickled as plain values, so that the JVM can read a folder's (`jvm/FolderRange.scala`)."""

    def __init__(self, start: int, end: int, *folder: str | bool) -> None:
        super().__init__(OffsetRange(start, end))
        self._folder = folder

    def __reduce__(self) -> tuple[type[Range], tuple[int | str | bool, ...]]:
        return Range, (self.value.start, self.value.end, *self._folder)


class _ReaderBase:
    """Common parts of batch and streaming reads."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        check_schema(schema, schema_of(options.stream))
        self.columns = list(schema.names)

    def plan(self, log: SourceLog, start: int, end: int) -> list[InputPartition]:
        lost = self.options.lost(log, start)
        if lost:
            # Output of tasks and the driver goes to Spark's log.
            logging.getLogger(__name__).warning("%d records of %s from offset %d were trimmed", lost, log.name, start)
        start += lost
        if start >= end:
            return []
        count = max(self.options.partitions_min, os.cpu_count() or 1)
        parts = parts_of(log.segments(), start, end, min(count, end - start))
        folder = log.descriptor() if isinstance(log, FolderLog) else ()
        return [Range(part.start, part.end, *folder) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # For an empty list of partitions, Spark creates one without a value.
            return
        with closing(self.options.open()) as log:
            yield from log.read(partition.value, self.columns, skip_lost=not self.options.fail_on_data_loss)


class PartitionReader(_ReaderBase, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        with closing(self.options.open()) as log:
            return self.plan(log, self.options.first(log), self.options.last(log))


class StreamReader(_ReaderBase, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reads. Offsets are `{"offset": n, "lost": k, "uid": u}`: everything before n of log u has been read,
    except k records that were already trimmed. Any range can be read again exactly."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.end != "latest":
            hint = "it is for batch reads; trigger(availableNow=True) stops at the end that it finds at its start"
            raise InvalidInput("endingOffsets is not supported for streaming queries", field="endingOffsets", hint=hint)
        self._log: SourceLog | None = None
        self._until: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None}

    @property
    def log(self) -> SourceLog:
        if self._log is None:
            self._log = self.options.open()
        return self._log

    def initialOffset(self) -> Offset:
        return {OFFSET: self.options.first(self.log), LOST: 0, UID: self.log.uid}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self.log.next_offset

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        end = self.log.next_offset if self._until is None else self._until
        uid = self.log.uid
        begin = start[OFFSET] if self._belongs_to_log(start, uid) else 0
        lost = self.options.lost(self.log, begin)
        first = begin + lost
        if isinstance(limit, ReadMaxRows):
            end = min(end, first + limit.max_rows)
        return {OFFSET: max(end, first), LOST: start[LOST] + lost, UID: uid}

    def _belongs_to_log(self, offset: Offset, uid: str) -> bool:
        """Return True if an offset belongs to this log, and not to an earlier one that was deleted or restored."""
        at, known = offset[OFFSET], offset.get(UID, uid)  # Older checkpoints have no uid.
        if known == uid and (at <= self.log.next_offset or at == self.options.start):
            return True
        text = f"{self.log.name!r} was recreated or restored since it was read up to offset {at}"
        if self.options.fail_on_data_loss:
            raise Conflict(
                text, hint="failOnDataLoss=false restarts at its beginning; records that were not read yet are lost"
            )
        logging.getLogger(__name__).warning("%s; reading restarts at its beginning", text)
        return False

    def reportLatestOffset(self) -> Offset:
        return {OFFSET: self.log.next_offset}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        uid = self.log.uid
        if not self._belongs_to_log(end, uid):
            return []
        return self.plan(self.log, start[OFFSET] if self._belongs_to_log(start, uid) else 0, end[OFFSET])

    def commit(self, end: Offset) -> None:
        """Report the position for monitoring; Spark's checkpoint, not this, decides where a query resumes."""
        if self.options.consumer is not None and end[OFFSET] > 0:
            self.log.report(self.options.consumer, end[OFFSET] - 1)

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
