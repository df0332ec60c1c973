"""Cost of a step and of a query as history grows: the same day again and again, up to a hundred times."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from penstock.journal.drainer import journal_folder
from penstock.journal.events import Kind, encode_detail, encode_events
from penstock.log.writer import Log
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.lake.tables import BRONZE
from penstock.pipeline.run import Pipeline

BATCH = 100
BODY_BYTES = 200
QUEUES = 10
START_MS = 1_760_054_400_000  # a midnight
DAY_MS = 86_400_000
MARKS = (1, 10, 100)
HELD = "held"
Row = dict[str, Any]


def fill_days(journal: Path, days: int, events: int) -> list[int]:
    """Write days with the same number of events each; where each day ends. At the end a queue is deleted whose only
    message was pushed on the first day."""
    ends = []
    with Log.create(journal, "journal") as log:
        _append(log, [_push(1, START_MS, QUEUES, HELD, 1)])
        first = 2
        for day in range(days):
            batches = events // (3 * BATCH)
            for number in range(batches):
                now = START_MS + day * DAY_MS + number * (DAY_MS // batches)
                _append(log, _life(first, now, number % QUEUES))
                first += BATCH
            ends.append(log.next_offset)
        now = START_MS + days * DAY_MS
        details = encode_detail(what="removed", waiting=1, leased=0, dead=0, since=START_MS)
        nothing = (0, 0, 0, 0, 0, 0, 0, 0)
        _append(log, [encode_events(Kind.QUEUE, now, QUEUES + 1, HELD.encode(), 1, 1, nothing, details=[details])])
        ends.append(log.next_offset)
    return ends


def _append(log: Log, records: list[bytes]) -> None:
    log.append_encoded(b"".join(records), list(map(len, records)))


def _push(first: int, now: int, number: int, queue: str, count: int) -> bytes:
    text = os.urandom(BODY_BYTES // 2 * count).hex().encode()
    bodies = [text[at : at + BODY_BYTES] for at in range(0, len(text), BODY_BYTES)]
    columns = (range(first, first + count), now, 0, 0, now, 0, 0, 0)
    return encode_events(Kind.PUSHED, now, number + 1, queue.encode(), 1, count, columns, bodies=bodies)


def _life(first: int, now: int, number: int) -> list[bytes]:
    name, ids = b"queue-%d" % number, range(first, first + BATCH)
    leased = (ids, now, now + 7, now + 7, now + 30_007, 1, 0, 0)
    acked = (ids, now, now + 7, now + 7, 0, 1, 0, 0)
    return [
        _push(first, now, number, name.decode(), BATCH),
        encode_events(Kind.LEASED, now + 7, number + 1, name, 1, BATCH, leased),
        encode_events(Kind.ACKED, now + 25, number + 1, name, 1, BATCH, acked),
    ]


def history(spark: SparkSession, folder: Path, events: int) -> Row:
    """A commit a day; what a step after so many days costs, and a query over a day and a queue."""
    ends = fill_days(journal_folder(folder / "penstock.db"), MARKS[-1] + 1, events)
    steps, queries = [], []
    with Pipeline(spark, journal_folder(folder / "penstock.db"), Lake(folder / "lake")) as pipeline:
        for day, end in enumerate(ends[:-1]):
            lake = pipeline._lake
            if day not in MARKS and day + 1 not in MARKS:
                # The next whole step derives the rest from it: this saves a hundred of them.
                pipeline._bronze(pipeline.position(), end, True)
                continue
            with cost(spark, lake) as row:
                row["seconds"] = round(pipeline.step(end).seconds, 2)
            # The step after so many days, so that the first one does not create the tables.
            if day in MARKS:
                steps.append({"days": day, **row, **_log_bytes(lake)})
            if day + 1 in MARKS:
                lake[BRONZE].compact()
                queries += [{"days": day + 1, **row} for row in _queries(spark, lake, day)]
        size = sum(table.size(pipeline.app).bytes for table in pipeline._lake.tables() if table.table is BRONZE)
        with cost(spark, pipeline._lake) as removal:
            removal["seconds"] = round(pipeline.step().seconds, 2)
    return {"events": events, "steps": steps, "queries": queries, "removal": {"bronze_bytes": size, **removal}}


@contextmanager
def cost(spark: SparkSession, lake: Lake) -> Iterator[Row]:
    """Note what is written to the lake, read by Spark, and listed for it; and how many jobs Spark runs."""
    row: Row = {}
    before, read, job = _files(lake.folder), _read_by_spark(spark), _next_job(spark)
    listed = [0]
    whole = LakeTable.sizes

    def counting(self: LakeTable, *arguments: Any, **least: Any) -> dict[str, int]:
        found = whole(self, *arguments, **least)
        listed[0] += len(found)
        return found

    LakeTable.sizes = counting  # type: ignore[method-assign]
    try:
        yield row
    finally:
        LakeTable.sizes = whole  # type: ignore[method-assign]
    after = _files(lake.folder)
    row["written"] = sum(size for path, size in after.items() if path not in before)
    row["new_files"] = len(after.keys() - before.keys())
    row["files_listed"] = listed[0]
    row["read_by_spark"] = _read_by_spark(spark) - read
    row["jobs"] = _next_job(spark) - job


def _files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def _read_by_spark(spark: SparkSession) -> int:
    statistics = spark._jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics()  # type: ignore[union-attr]
    return sum(each.getBytesRead() for each in statistics)


def _next_job(spark: SparkSession) -> int:
    found: int = spark.sparkContext._jsc.sc().dagScheduler().nextJobId()  # type: ignore[union-attr]
    return found


def _log_bytes(lake: Lake) -> Row:
    """Return the size of the newest checkpoint, which has a row for each file."""
    found = sorted((lake[BRONZE].folder / "_delta_log").glob("*.checkpoint.parquet"))
    return {"files": lake[BRONZE].entries().num_rows, "checkpoint": found[-1].stat().st_size if found else 0}


def _queries(spark: SparkSession, lake: Lake, day: int) -> list[Row]:
    """Bytes that each reader reads for one queue on the newest day."""
    since = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=day)
    queue = "queue-3"
    bronze = lake[BRONZE]
    files = bronze.files([queue], at=since)
    wanted = (ds.field("queue") == queue) & (ds.field("at") >= since)
    sql = 'SELECT sum(octet_length(body)) FROM read_parquet($files) WHERE queue = $queue AND "at" >= $at'

    def delta_rs() -> int:
        return int(bronze.delta.to_pyarrow_dataset().to_table(columns=["id", "body"], filter=wanted).num_rows)

    def by_duckdb(paths: list[str]) -> int:
        with duckdb.connect() as db:
            [(total,)] = db.execute(sql, {"files": paths, "queue": queue, "at": since}).fetchall()
        return int(total)

    def by_spark(queues: list[str], **least: datetime) -> int:
        rows = bronze.read(spark, None, queues, **least)
        rows = rows.where((rows["queue"] == queue) & (rows["at"] >= since))
        return int(rows.selectExpr("sum(octet_length(body))").collect()[0][0])

    own: Callable[[], int] = _read_here
    return [
        _query("delta-rs", delta_rs, own),
        _query("DuckDB, files from the table's log", lambda: by_duckdb(files), own),
        _query("DuckDB, all files", lambda: by_duckdb(bronze.files()), own),
        _query("Spark, files from the table's log", lambda: by_spark([queue], at=since), lambda: _read_by_spark(spark)),
        _query("Spark, all files", lambda: by_spark([]), lambda: _read_by_spark(spark)),
    ]


def _query(reader: str, query: Callable[[], int], read: Callable[[], int]) -> Row:
    query()
    before = read()
    query()
    return {"reader": reader, "read": read() - before}


def _read_here() -> int:
    """Return the bytes that this process has read from files."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar"):
            return int(line.split()[1])
    raise RuntimeError("no rchar in /proc/self/io")
