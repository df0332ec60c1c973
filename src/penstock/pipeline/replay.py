"""Rows of the lake, or of files, staged for a queue; `sink.Batch` then pushes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import InvalidInput
from penstock.pipeline.staging import stage
from penstock.pipeline.targets import QUEUE_COLUMNS, check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".ndjson": "json", ".jsonl": "json"}


def run_name(*parts: str) -> str:
    """The same for the same request: asked again, it goes on, or finds that it is done."""
    return "replay-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def pushed_messages(events: DataFrame, where: str) -> DataFrame:
    """Messages as they were pushed: those whose push, or a life of theirs, fits the condition."""
    from pyspark.sql import functions as F

    headers = F.from_json(F.get_json_object("details", "$.headers"), "map<string, string>")
    pushed = events.where("kind = 'pushed' AND body IS NOT NULL")
    return pushed.where(where).select(
        F.col("body").alias("payload"), "content", "priority", headers.alias("headers"), "queue", "id"
    )


def with_lives(events: DataFrame, lives: DataFrame) -> DataFrame:
    """Pushes with what became of them: the columns of the last life of each, where it has one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    last = Window.partitionBy("id").orderBy(F.desc("offset"))
    ended = lives.withColumn("rank", F.row_number().over(last)).where("rank = 1")
    ended = ended.select("id", "outcome", "finished_at", "reason", "errors", "wait_ms", "service_ms", "total_ms")
    return events.where("kind = 'pushed'").join(ended, "id", "left")


def rows_of_files(spark: SparkSession, pattern: str) -> DataFrame:
    """Columns as the sink takes them; any others become a JSON payload."""
    suffix = Path(pattern).suffix.lower()
    if suffix not in FORMATS:
        raise InvalidInput(f"{pattern} is of no known kind", field="file", hint=f"one of {', '.join(FORMATS)}")
    reader = spark.read.option("header", "true") if suffix == ".csv" else spark.read
    frame = reader.format(FORMATS[suffix]).load(pattern)
    if "payload" in frame.columns and all(name in QUEUE_COLUMNS for name in frame.columns):
        return frame
    from pyspark.sql import functions as F

    whole = F.to_json(F.struct(*(F.col(f"`{name}`") for name in frame.columns)), {"ignoreNullFields": "false"})
    return frame.select(whole.alias("payload"), F.lit("json").alias("content"))


def stage_frame(frame: DataFrame, folder: Path) -> tuple[list[str], int]:
    check_columns(frame.columns)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        file, rows = stage(batches, folder)
        yield pa.RecordBatch.from_pydict({"file": pa.array([file], pa.string()), "rows": pa.array([rows], pa.int64())})

    told = frame.mapInArrow(write, "file string, rows bigint").collect()
    return [row.file for row in told if row.file], sum(row.rows for row in told)
