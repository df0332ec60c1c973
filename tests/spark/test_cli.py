"""`penstock pipeline` as typed: a lake from nothing, asked, reported and kept tidy."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.command_line import PENSTOCK, clean_environment
from tests.spark.support import Work

pytestmark = pytest.mark.spark


def pipeline(work: Work, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [PENSTOCK, "pipeline", *arguments, "--data", str(work.data)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=clean_environment())


def test_a_lake_is_filled_asked_and_reported_on(work: Work, tmp_path: Path) -> None:
    work.some(200)
    ran = pipeline(work, "run", "--once", "--json", "--master", "local[1]")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith("Spark's own log: ")
    assert len(ran.stderr.splitlines()) == 1
    told = json.loads(ran.stdout)
    status = json.loads(pipeline(work, "status", "--json").stdout)
    assert [row["lag"] for row in status] == [0, 0, 0, 0, 0]
    assert status[0]["rows"] == told["events"] > 200

    query = "SELECT queue, ready, pushed FROM gold.queues JOIN live.queues USING (queue) ORDER BY queue"
    asked = pipeline(work, "sql", query, "--json", "--master", "local[1]")
    assert asked.returncode == 0, asked.stderr
    rows = [json.loads(line) for line in asked.stdout.splitlines()]
    expected = [info for info in work.store.list_queues() if info.totals.pushed]
    assert [(row["queue"], row["ready"]) for row in rows] == [(info.name, info.ready) for info in expected]

    page = tmp_path / "report.html"
    assert pipeline(work, "report", "--file", str(page)).returncode == 0
    assert "<svg" in page.read_text()
    assert "http" not in page.read_text()

    compacted = pipeline(work, "compact", "--vacuum-hours", "0", "--json")
    assert compacted.returncode == 0, compacted.stderr
    after = json.loads(pipeline(work, "status", "--json").stdout)
    assert [row["rows"] for row in after] == [row["rows"] for row in status]


def test_a_lake_that_is_not_there_is_named(work: Work) -> None:
    asked = pipeline(work, "status")
    assert asked.returncode == 1
    assert "there is no lake" in asked.stderr
