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
from pyspark.sql.types import StructType

from penstock.pipeline.sink.writer import SinkWriter, StreamWriter
from penstock.pipeline.source.columns import spark_schema
from penstock.pipeline.source.filters import RowFilters
from penstock.pipeline.source.log_sources import SourceLog, schema_of
from penstock.pipeline.source.options import ReadOptions, read_options, write_options
from penstock.pipeline.source.range_reader import RangeReader
from penstock.pipeline.source.stream_reader import StreamReader

try:
    from penstock.pipeline.source.limited_stream_reader import LimitedStreamReader
except ImportError:  # PySpark 4.0 and 4.1
    NewestStreamReader: type[StreamReader] = StreamReader
else:
    NewestStreamReader = LimitedStreamReader


class PenstockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return spark_schema(read_options(self.options).stream)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        return (FilteringReader if options.pushes_filters else PartitionReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NewestStreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return SinkWriter(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(write_options(self.options), schema, overwrite)


class PartitionReader(RangeReader, DataSourceReader):
    """Batch reads."""

    def partitions(self) -> Sequence[InputPartition]:
        with closing(self.options.open()) as log:
            return self.plan(log, self.options.first(log), self.options.last(log))


class FilteringReader(PartitionReader):
    """Batch reads to which Spark passes a query's filters.

    Spark plans a DataFrame's read once for all queries, with the filters of the first, so this is not the default. The
    extension for Spark's JVM plans every query for itself.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._filters = RowFilters(schema_of(options.stream))

    def pushFilters(self, filters: Sequence[Any]) -> Sequence[Any]:
        self._filters.add(filters)
        return filters

    def narrowed(self, log: SourceLog, start: int, end: int) -> tuple[int, int]:
        return self._filters.narrowed(log, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return map(self._filters.rows, super().read(partition))
