"""`penstock pipeline` as typed: a lake from nothing, asked, reported, kept tidy and replayed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command_line import PENSTOCK, clean_environment
from tests.spark.support import Work

pytestmark = pytest.mark.spark


def pipeline(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [PENSTOCK, "pipeline", *arguments, "--data", str(data)]
    return subprocess.run(command, capture_output=True, text=True, env=clean_environment())


def told(data: Path, *arguments: str) -> list[Any]:
    ran = pipeline(data, *arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    work = Work(tmp_path_factory.mktemp("filled") / "data")
    work.some(200)
    work.make("news", max_attempts=1)
    work.bury("lost", queue="news", error="no such user")
    ran = pipeline(work.data, "run", "--once", "--json", "--master", "local[1]")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith("Spark's own log: ")
    assert len(ran.stderr.splitlines()) == 1
    assert json.loads(ran.stdout)["events"] > 200
    yield work
    work.close_all()


def test_every_table_has_come_to_the_journals_end_and_stays_so_when_compacted(filled: Work) -> None:
    [before] = told(filled.data, "status")
    assert [row["lag"] for row in before] == [0, 0, 0, 0, 0]
    told(filled.data, "compact", "--vacuum-hours", "0")
    [after] = told(filled.data, "status")
    assert [row["rows"] for row in after] == [row["rows"] for row in before]


def test_sql_joins_the_lake_with_the_live_store(filled: Work) -> None:
    query = "SELECT queue, ready, pushed FROM gold.queues JOIN live.queues USING (queue) ORDER BY queue"
    rows = told(filled.data, "sql", query, "--master", "local[1]")
    expected = [info for info in filled.store.list_queues() if info.totals.pushed]
    assert [(row["queue"], row["ready"]) for row in rows] == [(info.name, info.ready) for info in expected]


def test_a_report_needs_nothing_from_outside(filled: Work, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    told(filled.data, "report", "--file", str(page))
    assert "<svg" in page.read_text()
    assert "http" not in page.read_text()


def test_dead_letters_are_replayed_once(filled: Work) -> None:
    where = "queue = 'news' AND outcome = 'dead'"
    for pushed in (1, 0):
        [answer] = told(filled.data, "replay", "--where", where, "--to", "again", "--master", "local[1]")
        assert (answer["matched"], answer["pushed"]) == (1, pushed)
    assert [message.payload for message in filled.lease("again", 10)] == [b"lost"]


def test_a_lake_that_is_not_there_is_named(work: Work) -> None:
    asked = pipeline(work.data, "status")
    assert asked.returncode == 1
    assert "there is no lake" in asked.stderr


def test_a_folder_without_queues_is_refused_before_spark_starts(tmp_path: Path) -> None:
    ran = pipeline(tmp_path, "run")
    assert ran.returncode == 1
    assert "there is no file" in ran.stderr
    assert not list(tmp_path.iterdir())
