"""Which files and row groups a reader of one queue, or of one day, touches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.core.commands import Drop
from penstock.pipeline import run as pipeline_run
from penstock.pipeline.lake import compaction
from penstock.pipeline.lake import files as lake_files
from penstock.pipeline.lake.files import write_batches
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.lake.tables import BRONZE, QUEUE_MINUTES, SILVER
from penstock.pipeline.run import Pipeline
from penstock.pipeline.verify import verify
from tests.spark.support import Work, check_lake, rows_of

pytestmark = pytest.mark.spark
START = datetime(2026, 1, 1, tzinfo=UTC)
APP = "penstock:a"
ROWS = 400


def run(spark: Any, work: Work, lake: Lake) -> None:
    with Pipeline(spark, work.drained(), lake) as pipeline:
        list(pipeline.steps())


def append(table: LakeTable, day: int, part: int, queues: int = 4) -> None:
    """A step's events, of all queues by turns."""
    first = (day * 10 + part) * ROWS
    at = START + timedelta(days=day, hours=part)
    nothing = dict.fromkeys(BRONZE.schema.names) | {"kind": "pushed", "number": 0}
    rows = [
        nothing | {"offset": first + number, "at": at, "queue": f"q{number % queues}", "id": first + number}
        for number in range(ROWS)
    ]
    batch = pa.RecordBatch.from_pylist(rows, BRONZE.schema)
    table.append(list(write_batches([batch], table.folder, BRONZE)), APP, first + ROWS)


def groups_of(paths: list[str], queue: str) -> tuple[int, int]:
    """How many row groups may hold a queue, and how many there are."""
    may = every = 0
    for path in paths:
        about = pq.ParquetFile(path).metadata
        place = BRONZE.schema.get_field_index("queue")
        for number in range(about.num_row_groups):
            found = about.row_group(number).column(place).statistics
            may += found.min <= queue <= found.max
            every += 1
    return may, every


def test_a_reader_of_one_queue_and_day_skips_the_rest(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_files, "ROW_GROUP_ROWS", ROWS)
    lake.create()
    bronze = lake[BRONZE]
    for day in range(3):
        for part in range(4):
            append(bronze, day, part)
        # The files of a day are merged while those of earlier days are large already.
        newest = bronze.entries(at=START + timedelta(days=day))["size_bytes"].to_pylist()
        monkeypatch.setattr(compaction, "SMALL_FILE_BYTES", max(newest) + 1)
        assert compaction.compact(bronze) == {"removed": 4, "added": 1}
    files = bronze.files()
    assert len(files) == 3
    assert groups_of(files, "q1") == (3, 12)
    since = START + timedelta(days=2)
    assert len(bronze.files(["q1"], at=since)) == 1
    assert bronze.files(["other"]) == []
    # The statistics are in the table's log, where delta-rs and DuckDB's readers find them.
    dataset = bronze.delta.to_pyarrow_dataset()
    wanted = (ds.field("queue") == "q1") & (ds.field("at") >= since)
    assert len(list(dataset.get_fragments(wanted))) == 1
    assert dataset.to_table(filter=wanted).num_rows == ROWS
    with duckdb.connect() as db:
        [(count,)] = db.execute(
            "SELECT count(*) FROM read_parquet($files) WHERE queue = 'q1'", {"files": files}
        ).fetchall()
    assert count == 3 * ROWS


def test_compaction_keeps_every_row_and_large_files(lake: Lake) -> None:
    lake.create()
    bronze = lake[BRONZE]
    for part in range(5):
        append(bronze, 0, part)
    before = rows_of(lake, BRONZE)
    assert compaction.compact(bronze) == {"removed": 5, "added": 1}
    assert compaction.compact(bronze) == {"removed": 0, "added": 0}
    assert rows_of(lake, BRONZE) == before
    assert bronze.position(APP) == 5 * ROWS


def test_the_removal_of_a_queue_reads_only_files_with_that_queue(
    spark: Any, work: Work, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.push("held", queue="tmp")
    work.push("gone", queue="tmp")
    run(spark, work, lake)
    for part in range(4):
        work.push(*(f"{part} {number}" for number in range(5)), queue="work")
        run(spark, work, lake)
    work.ack(*work.lease("tmp"))
    run(spark, work, lake)
    read: list[int] = []
    whole = LakeTable.sizes

    def noting(self: LakeTable, queues: Any = (), **least: Any) -> dict[str, int]:
        found = whole(self, queues, **least)
        if queues:
            read.append(len(found))
        return found

    monkeypatch.setattr(LakeTable, "sizes", noting)
    work.do(Drop(queue="tmp", force=True))
    run(spark, work, lake)
    # The pushes, the ack and the removal itself.
    assert read == [3]
    assert len(lake[BRONZE].files()) == 7
    assert [row["outcome"] for row in rows_of(lake, SILVER)] == ["acked", "removed"]
    monkeypatch.undo()
    check_lake(work, lake)


def test_a_very_late_event_is_added_without_collecting_the_minutes_since(
    spark: Any, work: Work, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.some(200)
    run(spark, work, lake)
    now = work.clock.now
    work.clock.set(5_000)
    work.push("late", queue="mail")
    work.clock.set(now)
    work.some(20, seed=1)
    monkeypatch.setattr(pipeline_run, "REPLACED_BYTES_MAX", 0)
    monkeypatch.setattr(LakeTable, "put", only(QUEUE_MINUTES, LakeTable.put))
    run(spark, work, lake)
    assert min(row["minute"] for row in rows_of(lake, QUEUE_MINUTES)).year == 1970
    check_lake(work, lake)
    assert all(verdict.good for verdict in verify(spark, Lake(lake.folder)))
    monkeypatch.undo()
    work.some(20, seed=2)
    run(spark, work, lake)
    check_lake(work, lake)


def only(table: Any, put: Any) -> Any:
    """Put, but never rows of this table, which the driver would have to hold."""

    def allowed(self: LakeTable, *arguments: Any, **least: Any) -> None:
        assert self.table is not table
        put(self, *arguments, **least)

    return allowed


def test_files_of_a_table_that_changes_stay_small(lake: Lake) -> None:
    lake.create()
    table = lake[QUEUE_MINUTES]
    nothing = dict.fromkeys(QUEUE_MINUTES.schema.names, 0) | {"queue": "q", "wait_sketch": bytes(1_000)}
    nothing |= {"service_sketch": b"", "total_sketch": b""}
    rows = [nothing | {"minute": START + timedelta(minutes=number)} for number in range(5_000)]
    batch = pa.RecordBatch.from_pylist(rows, QUEUE_MINUTES.schema)
    files = list(write_batches([batch], table.folder, QUEUE_MINUTES))
    assert len(files) > 2
    assert sum(file.rows for file in files) == len(rows)
