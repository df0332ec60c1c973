"""A batch job over a year of the lake: messages, failures and durations by month and queue, with the months in which a
queue became slower first.

    python examples/spark_year.py ./penstock-data/lake 2025 slower.parquet

It does not open files of the lake that contain nothing of that year.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import SILVER
from penstock.pipeline.runtime.session import open_session


def lives_of(spark: SparkSession, lake: Lake, year: int) -> DataFrame:
    """Return finished messages, one row each."""
    start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    lives = lake[SILVER].read(spark, finished_at=start)
    return lives.where((F.col("finished_at") >= F.lit(start)) & (F.col("finished_at") < F.lit(end)))


def months_of(lives: DataFrame) -> DataFrame:
    failed = F.col("outcome").isin("dead", "failed")
    return lives.groupBy("queue", F.date_format("finished_at", "yyyy-MM").alias("month")).agg(
        F.count("*").alias("messages"),
        F.round(F.avg(failed.cast("double")), 4).alias("failed_share"),
        F.percentile_approx("wait_ms", 0.5).alias("wait_p50_ms"),
        F.percentile_approx("total_ms", 0.95).alias("total_p95_ms"),
    )


def slower(months: DataFrame) -> DataFrame:
    """Add the ratio of a queue's p95 duration to that of the previous month; None for its first month."""
    before = F.lag("total_p95_ms").over(Window.partitionBy("queue").orderBy("month"))
    times = F.round(F.col("total_p95_ms") / F.when(before > 0, before), 2)
    return months.withColumn("times_as_long", times).orderBy(F.desc_nulls_last("times_as_long"), "queue", "month")


if __name__ == "__main__":
    folder, year, target = sys.argv[1:]
    session = open_session(Path(folder) / "logs" / "year.log")
    slower(months_of(lives_of(session, Lake(folder), int(year)))).write.mode("overwrite").parquet(target)
