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

from penstock.pipeline.lake import NO_GLOBS, Lake
from penstock.pipeline.live import Live
from penstock.pipeline.tables import LIVE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def tables_for(query: str, spark: SparkSession, lake: Lake, live: Live) -> Iterator[None]:
    """The tables that a query names, as they are now, for as long as this lasts; all of them, if it names none."""
    text = re.sub(r"\s*\.\s*", ".", query.lower().replace("`", ""))
    known = {table.table.name: table for table in lake.tables()}
    # To make a table known costs a Java that has just started a third of a second.
    every = {*known, *LIVE}
    named = {name for name in every if name in text}
    if not named:
        named, live = every, Live(None)  # Only what there is to ask can be wanted.
    # Spark would look for a relative path in its warehouse.
    folder = Path(tempfile.mkdtemp(prefix="sql-", dir=lake.folder.absolute()))
    try:
        for name in named & known.keys():
            table = known[name]
            place = folder / name
            place.mkdir()
            # Spark knows nothing of Delta here, so it is shown exactly the files that are in the table.
            for number, file in enumerate(table.files()):
                (place / f"{number:08}.parquet").symlink_to(Path(file).absolute())
            _register(spark, name, table.table.schema, place)
        for name in named & LIVE.keys():
            place = folder / name
            place.mkdir()
            live.write(LIVE[name], place / "now.parquet")
            _register(spark, name, LIVE[name].schema, place)
        yield
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


def _register(spark: SparkSession, name: str, schema: pa.Schema, place: Path) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    database, _, _ = name.partition(".")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    shape, options = from_arrow_schema(schema), {NO_GLOBS: "false"}
    spark.catalog.createTable(name, path=str(place), source="parquet", schema=shape, **options)
