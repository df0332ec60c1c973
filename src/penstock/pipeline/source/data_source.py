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

from collections.abc import Sequence
from contextlib import closing

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.pipeline.sink.writer import SinkWriter, StreamWriter
from penstock.pipeline.source.log_sources import schema_of
from penstock.pipeline.source.options import read_options, write_options
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
        return from_arrow_schema(schema_of(read_options(self.options).stream))

    def reader(self, schema: StructType) -> DataSourceReader:
        return PartitionReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NewestStreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return SinkWriter(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(write_options(self.options), schema, overwrite)


class PartitionReader(RangeReader, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        with closing(self.options.open()) as log:
            return self.plan(log, self.options.first(log), self.options.last(log))
