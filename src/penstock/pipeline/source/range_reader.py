"""Plans the parallel reading of a range of a log, and reads its parts: what batch and streaming reads share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.pipeline.source.log_sources import FolderLog, SourceLog, schema_of
from penstock.pipeline.source.offset_ranges import OffsetRange, parts_of
from penstock.pipeline.source.options import ReadOptions


class Range(InputPartition):
    """A range of a log, pickled as plain values, so that the JVM can read a folder's (`jvm/FolderRange.scala`)."""

    def __init__(self, start: int, end: int, *folder: str | bool) -> None:
        super().__init__(OffsetRange(start, end))
        self._folder = folder

    def __reduce__(self) -> tuple[type[Range], tuple[int | str | bool, ...]]:
        return Range, (self.value.start, self.value.end, *self._folder)


class RangeReader:
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        check_schema(schema, schema_of(options.stream))
        self.columns = list(schema.names)

    def plan(self, log: SourceLog, start: int, end: int) -> list[InputPartition]:
        lost = self.options.lost(log, start)
        if lost:
            # Output of tasks and the driver goes to Spark's log.
            logging.getLogger(__name__).warning("%d records of %s from offset %d were trimmed", lost, log.name, start)
        start, end = self.narrowed(log, start + lost, end)
        if start >= end:
            return []
        count = max(self.options.partitions_min, os.cpu_count() or 1)
        parts = parts_of(log.segments(), start, end, min(count, end - start))
        folder = log.descriptor() if isinstance(log, FolderLog) else ()
        return [Range(part.start, part.end, *folder) for part in parts]

    def narrowed(self, log: SourceLog, start: int, end: int) -> tuple[int, int]:
        """Return the part of a range that has to be read."""
        return start, end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # For an empty list of partitions, Spark creates one without a value, or with Spark 4.0 none.
        if partition is None or partition.value is None:
            return
        with closing(self.options.open()) as log:
            yield from log.read(partition.value, self.columns, skip_lost=not self.options.fail_on_data_loss)


def check_schema(asked: StructType, known: pa.Schema) -> None:
    for field in asked:
        name, kind = field.name, field.dataType
        if name not in known.names:
            raise InvalidInput(f"unknown column {name!r}", field="schema", hint=f"choose from {', '.join(known.names)}")
        proper = from_arrow_type(known.field(name).type)
        if kind != proper:
            text = f"column {name!r} is {proper.simpleString()}, not {kind.simpleString()}"
            raise InvalidInput(text, field="schema", hint="cast the column after reading")
