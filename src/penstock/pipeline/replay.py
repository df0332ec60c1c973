"""Stages rows of the lake or of files for a queue; `sink.Batch` then pushes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.errors import InvalidInput
from penstock.pipeline.sink.rows import QUEUE_COLUMNS, check_columns
from penstock.pipeline.sink.staging import Staged, stage
from penstock.pipeline.sink.staging_area import area_of
from penstock.pipeline.source.options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".ndjson": "json", ".jsonl": "json"}
PACKED = (".gz", ".bz2")
# Convert rows to JSON without loss: by default Spark omits nulls and microseconds.
WITH_NULLS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]",
}
# Set for a body that was too large for the journal, which stores an empty one instead.
_BODY_BYTES = "get_json_object(details, '$.body_bytes')"
_UNREADABLE = "{"
_RESULT_SCHEMA = pa.schema(
    [("file", pa.string()), ("rows", pa.int64()), ("digest", pa.string()), ("wrong", pa.string())]
)


def run_name(*parts: str) -> str:
    """Return the same name for the same request, so that a repeated command resumes or finds that it is done."""
    return "replay-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def absolute(pattern: str) -> str:
    """Return an absolute pattern, so that the same files have the same name in every working directory."""
    return pattern if ":/" in pattern else str(Path(pattern).absolute())


def pushed_messages(events: DataFrame, where: str) -> DataFrame:
    """Return messages as they were pushed, if the push or the message's outcome matches the condition."""
    from pyspark.sql import functions as F

    headers = F.from_json(F.get_json_object("details", "$.headers"), "map<string, string>")
    pushed = events.where(f"kind = 'pushed' AND body IS NOT NULL AND {_BODY_BYTES} IS NULL")
    return pushed.where(where).select(
        F.col("body").alias("payload"), "content", "priority", headers.alias("headers"), "queue", "id"
    )


def count_too_large(events: DataFrame, lives: DataFrame, where: str) -> int:
    """Count the matching messages whose bodies were too large for the journal."""
    large = events.where(f"kind = 'pushed' AND {_BODY_BYTES} IS NOT NULL")
    return 0 if large.isEmpty() else with_lives(large, lives).where(where).count()


def with_lives(events: DataFrame, lives: DataFrame) -> DataFrame:
    """Return pushes joined with the outcome of each message's last life, if it has ended."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    last = Window.partitionBy("id").orderBy(F.desc("offset"))
    ended = lives.withColumn("rank", F.row_number().over(last)).where("rank = 1")
    ended = ended.select("id", "outcome", "finished_at", "reason", "errors", "wait_ms", "service_ms", "total_ms")
    return events.where("kind = 'pushed'").join(ended, "id", "left")


def rows_of_files(spark: SparkSession, pattern: str) -> DataFrame:
    """Read files. Columns of the sink are used as such; other rows become JSON payloads, and JSON lines stay as is."""
    from py4j.protocol import Py4JJavaError

    path = Path(pattern)
    suffix = (path.with_suffix("") if path.suffix.lower() in PACKED else path).suffix.lower()
    if suffix not in FORMATS:
        raise InvalidInput(f"unknown file type of {pattern}", field="file", hint=f"use one of {', '.join(FORMATS)}")
    # By default Spark reads malformed rows in part, or adds a column for them.
    reader = spark.read.format(FORMATS[suffix]).option("mode", "FAILFAST")
    if suffix == ".csv":
        reader = reader.options(header="true", escape='"', multiLine="true")
    documents: DataFrame | None = None

    def read() -> DataFrame:
        return reader.load(pattern) if documents is None else reader.json(documents.rdd.map(lambda row: row.value))

    try:
        try:
            frame = read()
        except Py4JJavaError:
            if suffix != ".json":
                raise
            documents = _documents_in(spark.read.text(pattern, wholetext=True))
            frame = read()
    except Py4JJavaError as error:
        raise InvalidInput(
            f"cannot read a row of {pattern}", field="file", hint="nothing was pushed; fix the file and try again"
        ) from error
    if "payload" in frame.columns and all(name in QUEUE_COLUMNS for name in frame.columns):
        as_json = frame.schema["payload"].dataType.typeName() not in ("string", "binary")
        if FORMATS[suffix] == "json":
            # Read objects as text, because Spark would give each the fields of all rows.
            reader = reader.schema(_with_texts(frame.schema, "payload", "headers"))
            frame = read()
        return _messages_of(frame, as_json=as_json)
    from pyspark.sql import functions as F

    if documents is not None:
        return documents.select(F.col("value").cast("binary").alias("payload"), F.lit("json").alias("content"))
    if FORMATS[suffix] == "json":
        lines = spark.read.text(pattern)
        if lines.columns == ["value"]:  # There are no partition columns from folder names.
            return _lines_of(lines)
    columns = [F.col("`" + name.replace("`", "``") + "`") for name in frame.columns]
    whole = F.to_json(F.struct(*columns), WITH_NULLS)
    return frame.select(whole.alias("payload"), F.lit("json").alias("content"))


def _documents_in(files: DataFrame) -> DataFrame:
    """Return the rows of files that each hold one multi-line JSON document, a list or a single object."""

    def split(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch["value"].to_pylist():
                try:
                    found = msgspec.json.decode(text.removeprefix("\ufeff"), type=list[msgspec.Raw] | dict[str, Any])
                    rows = [bytes(row).decode() for row in found] if isinstance(found, list) else [text]
                except msgspec.DecodeError:
                    rows = [_UNREADABLE]  # Spark would read the first document and skip the rest.
                yield pa.RecordBatch.from_pydict({"value": rows})

    return files.mapInArrow(split, "value string")


def _with_texts(schema: StructType, *names: str) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(each.name, StringType()) if each.name in names else each for each in schema])


def _lines_of(lines: DataFrame) -> DataFrame:
    """Return JSON lines unparsed: Spark would unify number types and fields over rows. A list is several rows."""
    from pyspark.sql import functions as F

    line = F.trim("value")
    listed = F.from_json(line, "array<string>", {"mode": "FAILFAST"})
    each = F.explode(F.when(line.startswith("["), listed).otherwise(F.array(line)))
    rows = lines.where(line != "").select(each.alias("row"))
    return rows.select(F.col("row").cast("binary").alias("payload"), F.lit("json").alias("content"))


def _messages_of(frame: DataFrame, *, as_json: bool) -> DataFrame:
    """Return rows with the sink's columns; tasks convert numbers and headers that are text."""
    from pyspark.sql import functions as F

    if "key" in frame.columns:
        frame = frame.withColumn("key", F.col("key").cast("string"))
    if not as_json:
        return frame
    if frame.schema["payload"].dataType.typeName() != "string":
        # Spark converts only structs and lists to JSON, so wrap the value and cut the brackets off.
        listed = F.to_json(F.array("payload"), WITH_NULLS)
        text = F.when(F.col("payload").isNotNull(), F.substring(listed, F.lit(2), F.length(listed) - 2))
        frame = frame.withColumn("payload", text)
    return frame.withColumn("content", F.lit("json"))


def stage_frame(frame: DataFrame, options: WriteOptions) -> list[Staged]:
    """Stage all rows in partition order, the order in which Spark collects."""
    check_columns(frame.columns)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        results: dict[str, Any] = {}
        try:
            results = msgspec.structs.asdict(stage(batches, options))
        except InvalidInput as error:
            results["wrong"] = str(error)  # Spark would retry a raised error and print a stack trace.
        yield pa.RecordBatch.from_pylist([results], schema=_RESULT_SCHEMA)

    results = frame.mapInArrow(write, "file string, rows bigint, digest string, wrong string").collect()
    wrong = [row.wrong for row in results if row.wrong]
    if wrong:
        area_of(options.staging).remove(row.file for row in results if row.file)
        raise InvalidInput(f"nothing was pushed: {wrong[0]}", field="rows")
    return [Staged(row.file, row.rows, row.digest) for row in results]
