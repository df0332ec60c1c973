"""SQL over the lake and the live store: `bronze.events`, `silver.messages`, `gold.…`, `live.queues`."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.model import QueueInfo
from penstock.pipeline.lake import NO_GLOBS, Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIVE = pa.schema(
    [
        ("queue", pa.string()),
        ("paused", pa.bool_()),
        *((name, pa.int64()) for name in ("ready", "scheduled", "leased", "dead", "archived")),
    ]
)


LIVE_QUEUES = "live.queues"


@contextmanager
def tables_for(query: str, spark: SparkSession, lake: Lake, queues: Callable[[], list[QueueInfo]]) -> Iterator[None]:
    """The tables that a query names, as they are now, for as long as this lasts; all of them, if it names none."""
    text = re.sub(r"\s*\.\s*", ".", query.lower().replace("`", ""))
    known = {table.table.name: table for table in lake.tables()}
    # To make a table known costs a Java that has just started a third of a second.
    named = {name for name in (*known, LIVE_QUEUES) if name in text} or {*known, LIVE_QUEUES}
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
        if LIVE_QUEUES in named:
            live = folder / LIVE_QUEUES
            live.mkdir()
            pq.write_table(_live(queues()), live / "now.parquet")
            _register(spark, LIVE_QUEUES, LIVE, live)
        yield
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


def _live(queues: list[QueueInfo]) -> pa.Table:
    rows = [{name: getattr(each, name if name != "queue" else "name") for name in LIVE.names} for each in queues]
    return pa.Table.from_pylist(rows, schema=LIVE)


def _register(spark: SparkSession, name: str, schema: pa.Schema, place: Path) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    database, _, _ = name.partition(".")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    shape, options = from_arrow_schema(schema), {NO_GLOBS: "false"}
    spark.catalog.createTable(name, path=str(place), source="parquet", schema=shape, **options)
