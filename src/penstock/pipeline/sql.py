"""SQL over the lake and the live store: `bronze.events`, `silver.messages`, `gold.…`, `live.…`."""

from __future__ import annotations

import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import CannotOpen, StoreError
from penstock.pipeline.lake.files import write_all
from penstock.pipeline.lake.frames import NO_GLOBS
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.lake.live_tables import LiveTables
from penstock.pipeline.lake.local_copies import local_copies
from penstock.pipeline.lake.remote_files import FileGroup, are_copied, register, runs_here
from penstock.pipeline.lake.storage import Folder, RemoteFolder, remove_objects, write_object
from penstock.pipeline.lake.tables import LIVE, Table
from penstock.pipeline.models.catalog import tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Folders of what a query holds, in the lake.
QUERY_FOLDERS = "sql-"
ROWS_HELD = 10_000
BATCH_ROWS = 4_096
# Prefixes of Spark's classes for statements that only describe tables.
ABOUT_TABLES = ("Show", "Describe")


def is_question(spark: SparkSession, query: str) -> bool:
    """Return True for SELECT, SHOW and DESCRIBE, as Spark's own parser reads the text.

    No statement in Spark's query grammar changes data. Others, such as EXPLAIN or EXECUTE IMMEDIATE, may be partly
    executed during analysis.
    """
    from pyspark.errors import ParseException

    parser = spark._jsparkSession.sessionState().sqlParser()
    try:
        parser.parseQuery(query.rstrip("; \t\r\n"))
    except ParseException:
        statement: str = parser.parsePlan(query).getClass().getSimpleName()  # Raises for text that is not SQL.
        return statement.startswith(ABOUT_TABLES)
    return True


@contextmanager
def tables_for(query: str, spark: SparkSession, lake: Lake, live: LiveTables) -> Iterator[Folder]:
    """Register a snapshot of the tables that a query names, or of all if it names none, within the context.

    Yields a temporary folder.
    """
    text = re.sub(r"\s*\.\s*", ".", query.lower().replace("`", ""))
    known = {table.table.name: table for table in tables_of(lake)}
    # Registering a table takes a third of a second in a new JVM.
    every = {*known, *LIVE}
    named = {name for name in every if name in text}
    if not named:
        # A query without a known table can only list tables, so skip the live data.
        named, live = every, LiveTables(None)
    folder = _workspace(spark, lake)
    try:
        for name in named & known.keys():
            _register_table(spark, known[name], folder)
        for name in named & LIVE.keys():
            _register_live(spark, LIVE[name], live, folder)
        yield folder
    finally:
        _remove(folder)


def _workspace(spark: SparkSession, lake: Lake) -> Folder:
    if isinstance(lake.folder, Path):
        # Spark resolves relative paths in its warehouse.
        return Path(tempfile.mkdtemp(prefix=QUERY_FOLDERS, dir=lake.folder.absolute()))
    if runs_here(spark):
        return Path(tempfile.mkdtemp(prefix="penstock-sql-"))
    return lake.folder / f"{QUERY_FOLDERS}{uuid.uuid4().hex[:12]}"


def _remove(folder: Folder) -> None:
    if isinstance(folder, RemoteFolder):
        with suppress(StoreError):
            remove_objects(folder)
    else:
        with suppress(OSError):
            shutil.rmtree(folder)


def _register_table(spark: SparkSession, table: LakeTable, folder: Folder) -> None:
    name = table.table.name
    if isinstance(table.folder, Path):
        files = table.files()
    else:
        sizes = table.sizes()
        if not are_copied(spark, sizes):
            _register_remote(spark, table.table, table.folder, sizes)
            return
        files = local_copies().of(table.folder, sizes)
    assert isinstance(folder, Path)
    place = folder / name
    place.mkdir()
    # Spark runs without Delta here, so link exactly the files of the table's current version.
    for number, file in enumerate(files):
        (place / f"{number:08}.parquet").symlink_to(Path(file).absolute())
    _register(spark, name, table.table.schema, place)
    # Spark lists the folder once, here, and skips broken links. A file that is removed later makes the query fail.
    if len(spark.table(name).inputFiles()) != len(files):
        table.files()
        raise CannotOpen(f"a file of {name} was replaced meanwhile", hint="run the query again")


def _register_live(spark: SparkSession, table: Table, live: LiveTables, folder: Folder) -> None:
    if isinstance(folder, Path):
        place = folder / table.name
        place.mkdir()
        live.write(table, place / "now.parquet")
        _register(spark, table.name, table.schema, place)
        return
    with tempfile.TemporaryDirectory(prefix="penstock-") as local:
        file = Path(local) / "now.parquet"
        live.write(table, file)
        content = file.read_bytes()
    write_object(folder, table.name, content)
    _register_remote(spark, table, folder, {table.name: len(content)})


def answer(frame: DataFrame, folder: Folder) -> pa.RecordBatchReader:
    """Return all rows in order; results of more than a few thousand rows are streamed through files."""
    few = frame.limit(ROWS_HELD + 1).toArrow()
    if few.num_rows <= ROWS_HELD:
        return few.to_reader()
    if isinstance(folder, RemoteFolder):
        files = write_all(frame, folder, few.schema)
        return pa.RecordBatchReader.from_batches(few.schema, FileGroup(folder, files).batches(few.schema))
    place = folder / "answer"
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    frame.write.parquet(str(place))
    return pa.RecordBatchReader.from_batches(few.schema, _batches_in(place, few.schema))


def _batches_in(place: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for file in sorted(place.glob("part-*.parquet")):  # Files are numbered by partition, and partitions are in order.
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches(BATCH_ROWS):
                yield from pa.Table.from_batches([batch]).cast(schema).to_batches()


def _register(spark: SparkSession, name: str, schema: pa.Schema, place: Path) -> None:
    _create(spark, name, schema, "parquet", path=str(place))


def _register_remote(spark: SparkSession, table: Table, folder: RemoteFolder, sizes: dict[str, int]) -> None:
    # Always through Python: a table of Spark's is one whole folder, and links to the files that count are impossible.
    _create(spark, table.name, table.schema, register(spark, table.schema, folder, sizes))


def _create(spark: SparkSession, name: str, schema: pa.Schema, source: str, **where: str) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    database, _, _ = name.partition(".")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    shape = from_arrow_schema(schema)
    spark.catalog.createTable(name, source=source, schema=shape, **where, **{NO_GLOBS: "false"})
