"""What the files of a table come to when rows are put in the place of others, again and again. Without Spark."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from penstock.errors import Conflict
from penstock.pipeline import lake as lakes
from penstock.pipeline.files import write_batches
from penstock.pipeline.lake import Lake, LakeTable
from penstock.pipeline.tables import LATENCIES, QUEUE_MINUTES, QUEUES, SILVER

START = datetime(2026, 1, 1, tzinfo=UTC)
APP = "penstock:a"


def minute(number: int) -> datetime:
    return START + timedelta(minutes=number)


def put(table: LakeTable, position: int, minutes: Iterable[int]) -> None:
    """Rows of these minutes, in any order, with sketches as large as those of some hundred messages."""
    numbers = list(minutes)
    since = minute(min(numbers))
    random.Random(position).shuffle(numbers)
    nothing = dict.fromkeys(QUEUE_MINUTES.schema.names, 0) | {"queue": "q"}
    sketches = [{f"{latency}_sketch": os.urandom(1_000) for latency in LATENCIES} for _ in numbers]
    rows = [nothing | {"minute": minute(number)} | each for number, each in zip(numbers, sketches, strict=True)]
    table.put(pa.Table.from_pylist(rows, QUEUE_MINUTES.schema), APP, position, minute=since)


def test_minutes_long_past_are_not_written_again(lake: Lake) -> None:
    lake.create()
    # As an earlier release made it: all in one file.
    lake[QUEUE_MINUTES].delta.alter.set_table_properties({"delta.targetFileSize": str(100 << 20)})
    put(lake[QUEUE_MINUTES], 1, range(2_000))
    assert len(lake[QUEUE_MINUTES].files()) == 1
    upgraded = Lake(lake.folder)
    upgraded.create()
    table = upgraded[QUEUE_MINUTES]
    put(table, 2, [1_999])
    for step in range(3, 8):
        before = set(table.files())
        put(table, step, range(1_996 + step, 1_998 + step))
        assert len(before) > 1
        assert len(before - set(table.files())) == 1
    assert sorted(table.delta.to_pyarrow_table()["minute"].to_pylist()) == [minute(each) for each in range(2_005)]


def test_small_files_become_few_and_replaced_ones_go_as_it_runs(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lakes, "TIDY", (10, 0))
    monkeypatch.setattr(lakes, "TIDY_CHANGING", (5, 0))
    lake.create()
    minutes, lives = lake[QUEUE_MINUTES], lake[SILVER]
    for step in range(1, 30):
        put(minutes, step, [1])
        life = dict.fromkeys(SILVER.schema.names) | {"offset": step, "finished_at": minute(step)}
        batch = pa.RecordBatch.from_pylist([life], SILVER.schema)
        lives.append(list(write_batches([batch], lives.folder, SILVER)), APP, step)
        for table in (minutes, lives):
            table.tidy()
    for table, rows, files in ((minutes, 1, 5), (lives, 29, 10)):
        assert table.position(APP) == 29
        assert table.delta.to_pyarrow_table().num_rows == rows
        assert len(list(table.folder.glob("*.parquet"))) <= files


def test_a_lake_whose_events_are_behind_what_was_made_of_them_is_refused(lake: Lake) -> None:
    lake.create()
    lake[QUEUES].append([], APP, 7)
    with pytest.raises(Conflict, match="ahead of"):
        lake.check_belongs(APP)
