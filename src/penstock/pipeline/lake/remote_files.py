"""Reads Parquet files of an object store or HDFS, with Arrow alone or with Spark.

Spark reads them itself if its class path has a Hadoop connector for the URL. Otherwise its tasks read through Python,
from the same store as the commits, and get no more than a list of files: each machine has its own credentials. A Spark
on this machine reads copies of small files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from penstock.pipeline.lake.frames import read_files
from penstock.pipeline.lake.local_copies import READ_BYTES_MAX, local_copies
from penstock.pipeline.lake.storage import Folder, RemoteFolder, missing_file, store_errors

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

# Hadoop's names of the connectors for our schemes, in the order of preference; EMR has its own for s3.
CONNECTORS = {"s3": ("s3", "s3a"), "gs": ("gs",), "abfss": ("abfss",), "hdfs": ("hdfs",)}
BATCH_ROWS = 16 << 10
_sources = itertools.count()


class FileGroup(Struct, frozen=True):
    """Files that one task reads, with their sizes, which save a request each."""

    folder: Folder
    sizes: dict[str, int]

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        folder = self.folder
        files = None if isinstance(folder, Path) else folder.files(self.sizes)
        for path in self.sizes:
            with store_errors(f"reading {folder}/{path}"), _opened(folder, files, path) as file:
                # Columns that are missing in older files are null.
                there = [name for name in schema.names if name in file.schema_arrow.names]
                for batch in file.iter_batches(BATCH_ROWS, columns=there):
                    yield _shaped(batch, schema)


def _opened(folder: Folder, files: Any, path: str) -> pq.ParquetFile:
    try:
        if isinstance(folder, Path):
            return pq.ParquetFile(folder / path)
        return pq.ParquetFile(files.open_input_file(path), pre_buffer=True)
    except FileNotFoundError as error:
        raise missing_file("the lake", f"{folder}/{path}") from error


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        batch[field.name].cast(field.type) if field.name in batch.schema.names else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def dataset_of(folder: RemoteFolder, sizes: Mapping[str, int], schema: pa.Schema) -> ds.Dataset:
    """Return the files as a dataset of Arrow."""
    import pyarrow.dataset as ds  # Imported here, because it loads pandas, which takes a second.

    files, kind = folder.files(sizes), ds.ParquetFileFormat()
    fragments = [kind.make_fragment(path, files) for path in sizes]
    return ds.FileSystemDataset(fragments, schema, kind, files)


def connector_of(spark: SparkSession, folder: RemoteFolder) -> str | None:
    """Return the scheme under which Spark reads this folder with a connector of its own; None if it has none."""
    from py4j.protocol import Py4JJavaError

    jvm, context = spark.sparkContext._jvm, spark.sparkContext._jsc
    assert jvm is not None
    for scheme in CONNECTORS[folder.scheme]:
        try:
            jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, context.hadoopConfiguration())
        except Py4JJavaError:
            continue
        return scheme
    return None


def read_remote(spark: SparkSession, schema: pa.Schema, folder: RemoteFolder, sizes: Mapping[str, int]) -> DataFrame:
    """Read files with Spark, all of them with this schema."""
    if not sizes:
        return read_files(spark, schema, [])
    scheme = connector_of(spark, folder)
    if scheme is not None:
        base = f"{scheme}:{folder.url.partition(':')[2]}"
        return read_files(spark, schema, [f"{base}/{path}" for path in sizes])
    if are_copied(spark, sizes):
        return read_files(spark, schema, local_copies().of(folder, sizes))
    return spark.read.format(register(spark, schema, folder, sizes)).load()


def runs_here(spark: SparkSession) -> bool:
    """Return True if Spark's tasks run on this machine."""
    return str(spark.sparkContext.master).startswith("local")


def are_copied(spark: SparkSession, sizes: Mapping[str, int]) -> bool:
    """Return True if these files are so small that Spark reads copies on this machine."""
    return runs_here(spark) and sum(sizes.values()) <= READ_BYTES_MAX


def register(spark: SparkSession, schema: pa.Schema, folder: RemoteFolder, sizes: Mapping[str, int]) -> str:
    """Register a data source of exactly these files, and return its name for `format` and for tables."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    shape, source = from_arrow_schema(schema), f"penstock_lake_{next(_sources)}"
    groups = _groups(folder, sizes, spark.sparkContext.defaultParallelism)

    # Classes of their own, because Spark passes no options to the source of a table.
    class LakeFiles(DataSource):
        @classmethod
        def name(cls) -> str:
            return source

        def schema(self) -> StructType:
            return shape

        def reader(self, schema: StructType) -> DataSourceReader:
            return LakeReader()

    class LakeReader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(group) for group in groups]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            # For an empty list of partitions, Spark creates one without a value.
            return iter(()) if partition.value is None else partition.value.batches(schema)

    spark.dataSource.register(LakeFiles)
    return source


def _groups(folder: RemoteFolder, sizes: Mapping[str, int], tasks: int) -> list[FileGroup]:
    """Distribute files over tasks: the largest first, each to the task that has least to read."""
    parts: list[dict[str, int]] = [{} for _ in range(max(1, min(tasks, len(sizes))))]
    for path in sorted(sizes, key=lambda path: -sizes[path]):
        min(parts, key=lambda part: sum(part.values()))[path] = sizes[path]
    return [FileGroup(folder, part) for part in parts if part]
