"""The examples run, on small data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples import spark_alerts
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
