"""The examples run, on small data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples import spark_alerts
from penstock.pipeline.lake import Lake
from penstock.pipeline.run import Pipeline
from tests.spark.support import Work

pytestmark = pytest.mark.spark


def test_each_dead_letter_becomes_one_alert_for_its_owner(spark: Any, work: Work, tmp_path: Path) -> None:
    owners = spark.createDataFrame([("mail", "ann"), ("shop", "bob")], "queue string, owner string")
    for text in ("one", "two"):
        work.make("mail", max_attempts=1)
        work.bury(text, queue="mail", error=f"{text} failed")
        work.push("fine", queue="shop")
        work.drained()
        query = spark_alerts.start(spark, str(work.data), owners, str(tmp_path / "checkpoint"), once=True)
        query.awaitTermination()
    found = [json.loads(message.payload) for message in work.lease("alerts", 10)]
    assert [(each["owner"], each["first_error"]) for each in found] == [("ann", "one failed"), ("ann", "two failed")]


def test_every_cell_of_the_notebook_runs(spark: Any, work: Work, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    work.some(200)
    with Pipeline(spark, work.drained(), lake) as pipeline:
        for _ in pipeline.steps():
            pass
    monkeypatch.setenv("LAKE", str(lake.folder))
    book = json.loads((Path(spark_alerts.__file__).parent / "lake.ipynb").read_text("utf-8"))
    names: dict[str, Any] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), names)
    assert names["outcomes"]["messages"].sum() > 0
    assert names["throughput"].startswith("<svg")
    assert names["depth"].startswith("<svg")
    assert len(names["failing"]) > 0
