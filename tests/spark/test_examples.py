"""The examples run, on small data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from examples import spark_alerts, spark_join, spark_sessions, spark_year
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.run import Pipeline
from tests.conformance.support import MINUTE_MS
from tests.spark.support import Work, sends_rows

pytestmark = pytest.mark.spark

NOTEBOOK = Path(__file__).parents[2] / "examples" / "lake.ipynb"
HOUR_MS = 60 * MINUTE_MS


@sends_rows
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


@sends_rows
def test_orders_become_sessions_and_the_large_ones_on_trial_alerts(spark: Any, work: Work, tmp_path: Path) -> None:
    customers = spark.createDataFrame([("ann", "trial"), ("bob", "paid")], "customer string, plan string")

    def order(customer: str, amount: float) -> None:
        work.push(json.dumps({"customer": customer, "amount": amount}), queue="orders")
        work.clock.advance(10 * MINUTE_MS)

    def run() -> None:
        work.drained()
        query = spark_sessions.start(spark, str(work.data), customers, str(tmp_path / "checkpoint"), once=True)
        query.awaitTermination()

    order("ann", 600.0)
    order("bob", 5_000.0)
    run()
    order("ann", 500.0)  # Of the session that began in the run before.
    order("nobody", 9_000.0)
    work.clock.advance(2 * HOUR_MS)
    order("ann", 100.0)
    run()
    work.clock.advance(2 * HOUR_MS)
    order("bob", 1.0)
    run()
    found = [json.loads(message.payload) for message in work.lease("alerts", 10)]
    assert [(each["customer"], each["orders"], each["amount"]) for each in found] == [("ann", 2, 1_100.0)]


def test_orders_are_joined_with_payments_of_another_queue_once(spark: Any, work: Work, tmp_path: Path) -> None:
    def push(queue: str, order: str) -> None:
        work.push(json.dumps({"order": order, "amount": 5.0}), queue=queue)
        work.clock.advance(10 * MINUTE_MS)

    def run() -> None:
        work.drained()
        spark_join.start(spark, str(work.data), str(tmp_path), once=True).awaitTermination()

    push("orders", "paid")
    push("orders", "forgotten")
    run()
    push("payments", "paid")  # Its order was read in the run before.
    for _ in range(2):
        work.clock.advance(2 * HOUR_MS)
        push("payments", "forgotten")  # Too late.
        push("orders", "new")
        run()
    paid = spark.read.parquet(str(tmp_path / "paid")).collect()
    assert [row.order for row in paid] == ["paid"]
    reminders = [json.loads(message.payload)["order"] for message in work.lease("reminders", 10)]
    assert reminders == ["forgotten", "new"]


def test_a_year_of_messages_is_told_by_month(spark: Any, work: Work, lake: Lake) -> None:
    for month, service_ms in enumerate((100, 100, 400)):
        for queue in ("mail", "news"):
            work.push("a", "b", queue=queue)
            leased = work.lease(queue, 2)
            work.clock.advance(service_ms if queue == "mail" else 50)
            work.ack(*leased)
        work.clock.advance((31 if month else 20) * 24 * HOUR_MS)
    with Pipeline(spark, work.drained(), lake) as pipeline:
        assert list(pipeline.steps())
    lives = spark_year.lives_of(spark, lake, 2023)
    found = spark_year.slower(spark_year.months_of(lives)).collect()
    assert [(row.queue, row.month, row.messages, row.times_as_long) for row in found] == [
        ("mail", "2023-12", 2, 1.0),
        ("news", "2023-12", 2, 1.0),
        ("mail", "2023-11", 2, None),
        ("news", "2023-11", 2, None),
    ]
    assert spark_year.lives_of(spark, lake, 2024).count() == 4


@pytest.mark.filterwarnings("ignore")  # What Jupyter's own packages say to each other.
def test_the_notebook_runs_with_no_spark(
    spark: Any, work: Work, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.some(150)
    with Pipeline(spark, work.drained(), lake) as pipeline:
        assert list(pipeline.steps())
    monkeypatch.setenv("PENSTOCK_LAKE", str(lake.folder))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    assert (shown.count("<svg"), shown.count('class="grid"')) == (2, 1)
    assert not any(cell.get("outputs") for cell in nbformat.read(NOTEBOOK, as_version=4).cells)
