"""SQL over the lake and the live store: `bronze.events`, `silver.messages`, `gold.…`, `live.queues`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.model import QueueInfo
from penstock.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIVE = pa.schema(
    [
        ("queue", pa.string()),
        ("paused", pa.bool_()),
        *((name, pa.int64()) for name in ("ready", "scheduled", "leased", "dead", "archived")),
    ]
)


@contextmanager
def tables_in(spark: SparkSession, lake: Lake, queues: list[QueueInfo]) -> Iterator[None]:
    """The tables by their names, as they are now, for as long as this lasts."""
    # Spark would look for a relative path in its warehouse.
    folder = Path(tempfile.mkdtemp(prefix="sql-", dir=lake.folder.absolute()))
    try:
        for table in lake.tables():
            place = folder / table.table.name
            place.mkdir()
            # Spark knows nothing of Delta here, so it is shown exactly the files that are in the table.
            for number, file in enumerate(table.files()):
                (place / f"{number:08}.parquet").symlink_to(Path(file).absolute())
            _register(spark, table.table.name, table.table.schema, place)
        live = folder / "live.queues"
        live.mkdir()
        rows = [{name: getattr(info, name if name != "queue" else "name") for name in LIVE.names} for info in queues]
        pq.write_table(pa.Table.from_pylist(rows, schema=LIVE), live / "now.parquet")
        _register(spark, "live.queues", LIVE, live)
        yield
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


def _register(spark: SparkSession, name: str, schema: pa.Schema, place: Path) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    database, _, _ = name.partition(".")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    spark.catalog.createTable(name, path=str(place), source="parquet", schema=from_arrow_schema(schema))
