"""The files of a table after many replacements of rows; without Spark."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import CannotOpen, Conflict, InvalidInput
from penstock.pipeline.lake import lake as lakes
from penstock.pipeline.lake.files import write_batches
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.lake.tables import LATENCIES, QUEUE_MINUTES, QUEUES, SILVER
from penstock.pipeline.report.report import report
from penstock.pipeline.source.options import write_options
from tests.integration.command_line import PENSTOCK, clean_environment

START = datetime(2026, 1, 1, tzinfo=UTC)
APP = "penstock:a"
REMOTE = (
    ("s3a://bucket/lake/", "s3://bucket/lake"),
    ("hdfs://name:8020/lake", "hdfs://name:8020/lake"),
    ("gs://bucket", "gs://bucket"),
    ("abfs://box@account.dfs.core.windows.net/lake", "abfss://box@account.dfs.core.windows.net/lake"),
)
REFUSED = (
    "file://host/lake",
    "ftp://host/lake",
    "s3:///lake",
    "s3://key:secret@bucket/lake",
    "s3://secret@bucket/lake",
    "s3://bucket/lake?token=secret",
    "abfss://box:secret@account.dfs.core.windows.net/lake",
)


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


def test_a_missing_file_is_an_error_that_names_it_for_every_reader(lake: Lake) -> None:
    lake.create()
    table = lake[QUEUE_MINUTES]
    put(table, 1, [1])
    [file] = table.files()
    Path(file).unlink()
    readers: list[Callable[[], object]] = [
        table.files,
        table.dataset,
        lambda: table.size(APP),
        lambda: report(lake, None, None, None),
    ]
    for read in readers:
        with pytest.raises(CannotOpen, match=file):
            read()


@pytest.mark.parametrize(("url", "folder"), REMOTE)
def test_a_lake_may_be_in_any_object_store(url: str, folder: str, tmp_path: Path) -> None:
    assert str(Lake(url).folder) == folder
    assert str(write_options({"url": str(tmp_path), "queue": "q", "staging": url}).staging) == folder


@pytest.mark.parametrize("url", REFUSED)
def test_a_url_that_is_no_folder_or_holds_a_secret_is_refused_without_showing_it(url: str, tmp_path: Path) -> None:
    for refused in (lambda: Lake(url), lambda: write_options({"url": str(tmp_path), "queue": "q", "staging": url})):
        with pytest.raises(InvalidInput) as error:
            refused()
        assert "secret" not in str(error.value)


@pytest.mark.parametrize("command", [["pipeline", "run"], ["pipeline", "status"], ["serve", "--port", "0"]])
def test_no_command_makes_a_folder_of_a_lakes_url_or_shows_its_password(command: list[str], tmp_path: Path) -> None:
    ran = subprocess.run(
        [PENSTOCK, *command, "--data", "data", "--lake", "s3a://user:secret@bucket/lake"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not (tmp_path / "s3a:").exists()
    assert ran.returncode != 0
    assert "lake must be a URL without credentials" in ran.stderr
    assert "secret" not in ran.stderr


def test_a_lake_may_be_written_as_a_file_url(tmp_path: Path) -> None:
    assert Lake(f"file://{tmp_path}/lake").folder == tmp_path / "lake"
