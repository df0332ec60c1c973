"""SQL over the lake and the live store: `bronze.events`, `silver.messages`, `gold.…`, `live.…`."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import CannotOpen
from penstock.pipeline.lake.lake import NO_GLOBS, Lake
from penstock.pipeline.lake.live_tables import LiveTables
from penstock.pipeline.lake.tables import LIVE
from penstock.pipeline.models.catalog import tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
def tables_for(query: str, spark: SparkSession, lake: Lake, live: LiveTables) -> Iterator[Path]:
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
    # Spark resolves relative paths in its warehouse.
    folder = Path(tempfile.mkdtemp(prefix="sql-", dir=lake.folder.absolute()))
    try:
        for name in named & known.keys():
            table = known[name]
            place = folder / name
            place.mkdir()
            # Spark runs without Delta here, so link exactly the files of the table's current version.
            files = table.files()
            for number, file in enumerate(files):
                (place / f"{number:08}.parquet").symlink_to(Path(file).absolute())
            _register(spark, name, table.table.schema, place)
            # Spark lists the folder once, here, and skips broken links. A file that is removed later makes the query
            # fail.
            if len(spark.table(name).inputFiles()) != len(files):
                table.files()
                raise CannotOpen(f"a file of {name} was replaced meanwhile", hint="run the query again")
        for name in named & LIVE.keys():
            place = folder / name
            place.mkdir()
            live.write(LIVE[name], place / "now.parquet")
            _register(spark, name, LIVE[name].schema, place)
        yield folder
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


def answer(frame: DataFrame, folder: Path) -> pa.RecordBatchReader:
    """Return all rows in order; results of more than a few thousand rows are streamed through files."""
    few = frame.limit(ROWS_HELD + 1).toArrow()
    if few.num_rows <= ROWS_HELD:
        return few.to_reader()
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
    from pyspark.sql.pandas.types import from_arrow_schema

    database, _, _ = name.partition(".")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    shape, options = from_arrow_schema(schema), {NO_GLOBS: "false"}
    spark.catalog.createTable(name, path=str(place), source="parquet", schema=shape, **options)
