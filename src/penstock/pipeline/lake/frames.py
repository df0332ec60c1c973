"""Reads Parquet files with Spark's own reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Spark must not treat brackets in a folder name as a glob pattern.
NO_GLOBS = "__globPaths__"


def read_files(spark: SparkSession, schema: pa.Schema, files: Sequence[str]) -> DataFrame:
    """Read Parquet files with the whole schema, so that columns missing in older files are null."""
    from pyspark.sql.pandas.types import from_arrow_schema

    shape = from_arrow_schema(schema)
    if not files:
        return _empty(spark, shape)
    return spark.read.schema(shape).option(NO_GLOBS, "false").parquet(*files)


def _empty(spark: SparkSession, shape: StructType) -> DataFrame:
    """Return an empty frame as a plan that Spark recognizes as empty, so that it skips all further work."""
    columns = [f"CAST(NULL AS {field.dataType.simpleString()}) AS `{field.name}`" for field in shape]
    return spark.range(1).where("false").selectExpr(columns)
