"""`penstock pipeline model`, `tables` and `run --metrics-file`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import Result
from prometheus_client.parser import text_string_to_metric_families

from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.metrics import METRICS
from tests.integration.serving import running
from tests.spark.models import ORDERS, push, rows, write
from tests.spark.support import Work

pytestmark = pytest.mark.spark
Command = Callable[..., Result]


def ok(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_models_are_added_shown_queried_rebuilt_and_removed(
    work: Work, lake: Lake, command: Command, tmp_path: Path
) -> None:
    where = ("--data", str(work.data), "--json")
    push(work, b'{"id":1,"customer":"a","amount":2}', b'{"id":2}', b'{"id":3,"customer":"b","amount":1.5}')
    ok(command("run", *where))
    schema = tmp_path / "orders.json"
    schema.write_text(json.dumps(ORDERS | {"expectations": ["between(amount, 0, 1.5)"]}))
    added = ok(command("model", "add", "orders", "--queue", "orders", "--schema", str(schema), *where))
    assert added["columns"]["payload_id"] == "int64"
    folder = write(tmp_path / "models", totals="SELECT sum(amount) AS total FROM {{ ref('orders') }}")
    metrics = tmp_path / "penstock.prom"
    ok(command("run", "--models", str(folder), "--metrics-file", str(metrics), *where))
    found = {each["model"]: each for each in ok(command("model", "list", *where))}
    assert (found["orders"]["rows"], found["orders"]["quarantined"], found["totals"]["rows"]) == (2, 1, 1)
    assert ok(command("model", "show", "orders", *where))["schema"]["required"] == ["id", "customer"]
    assert "sum(amount)" in command("model", "show", "totals", *where[:2]).stdout
    assert json.loads(command("sql", "SELECT total FROM model.totals", *where).stdout) == {"total": 3.5}
    status = {each["table"]: each for each in ok(command("status", *where))}
    assert status["model.orders"]["lag"] == 0
    [check] = status["model.orders"]["expectations"]
    assert (check["passed"], check["failed"]) == (False, 1)
    assert "between(amount, 0, 1.5)" in command("status", *where[:2]).stdout
    assert {each["table"] for each in ok(command("verify", *where))} >= {"model.orders", "model.totals"}
    check_metrics(metrics)
    ok(command("model", "rebuild", "orders", "--schema", str(schema), *where))
    assert [row["payload_id"] for row in rows(lake, "orders")] == [1, 3]
    assert "reads 'orders'" in command("model", "remove", "orders", *where).stderr
    for name in ("totals", "orders"):
        ok(command("model", "remove", name, *where))
    assert ok(command("model", "list", *where)) == []
    with running(work.data) as server, server.client() as client:
        assert client.get("/pipeline").json["expectations"] == []


def check_metrics(file: Path) -> None:
    families = {family.name: family for family in text_string_to_metric_families(file.read_text())}
    assert {metric.name.removesuffix("_total") for metric in METRICS} == set(families)
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert values["penstock_pipeline_lag_records",] == values["penstock_pipeline_errors_total",] == 0
    assert values["penstock_pipeline_table_rows", "model.orders"] == 2
    assert values["penstock_pipeline_quarantined_rows", "orders"] == 1
    assert values["penstock_pipeline_expectation_failed", "orders", "between(amount, 0, 1.5)", "warn"] == 1


def test_a_failed_step_is_counted(work: Work, command: Command, tmp_path: Path) -> None:
    work.push("a")
    folder, metrics = write(tmp_path / "models", bad="SELECT nothing"), tmp_path / "penstock.prom"
    failed = command("run", "--models", str(folder), "--metrics-file", str(metrics), "--data", str(work.data))
    assert failed.exit_code == 2
    assert "bad.sql, line 1" in failed.stderr
    assert "penstock_pipeline_failing 1\n" in metrics.read_text()


def test_a_schema_is_inferred_from_messages(work: Work, lake: Lake, command: Command) -> None:
    where = ("--data", str(work.data), "--json")
    push(
        work,
        b'{"id":1,"amount":2,"at":"2026-01-31T12:00:00Z","tags":["a"],"to":{"city":"B"},"mixed":1,"none":null}',
        b'{"id":2,"amount":2.5,"at":"2026-01-31T12:00:00+01:00","tags":[null],"to":{},"mixed":"x"}',
        b'{"id":3,"mixed":"y","list":[{"a":1}]}',
        b"no JSON",
    )
    ok(command("run", *where))
    found = ok(command("model", "add", "orders", "--queue", "orders", "--infer", "100", *where))
    assert found["schema"]["properties"] == {
        "id": {"type": "integer"},
        "amount": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": ["string", "null"]}},
        "to": {"type": "object", "properties": {"city": {"type": "string"}}},
        "mixed": {"type": "string"},
    }
    ok(command("run", *where))
    assert [row["payload_id"] for row in rows(lake, "orders")] == [2, 3]
    assert [row["field"] for row in rows(lake, "orders", 1)] == ["$.mixed", None]


def test_statements_register_every_table_with_its_comments(work: Work, lake: Lake, command: Command) -> None:
    work.push("a")
    where = ("--data", str(work.data))
    ok(command("run", *where, "--json"))
    spark_ddl = command("tables", "--ddl", *where).stdout
    names = [table.table.name for table in lake.tables()]
    for name in names:
        database, table = name.split(".")
        assert f"CREATE TABLE IF NOT EXISTS `{database}`.`{table}` USING delta" in spark_ddl
        assert f"LOCATION '{lake.folder / database / table}'" in spark_ddl
    columns = json.loads(lake.tables()[0].delta.schema().to_json())["fields"]
    assert {"comment": "deliveries so far"} in [column["metadata"] for column in columns]
    views = command("tables", "--ddl", "--format", "duckdb", *where).stdout.splitlines()
    with duckdb.connect() as db:
        for statement in views[1:]:  # Without the extension, which is not on PyPI: the tables are read by delta-rs.
            for table in lake.tables():
                here = f"delta_scan('{table.folder}')"
                if here in statement:
                    name = table.table.name.replace(".", "_")
                    db.register(name, table.delta.to_pyarrow_dataset())
                    statement = statement.replace(here, name)
            db.execute(statement)
        found = db.execute("SELECT count(*) FROM bronze.events").fetchone()
        query = "SELECT comment FROM duckdb_columns() WHERE table_name = 'events' AND column_name = 'attempts'"
        assert found is not None
        assert found[0] > 0
        assert db.execute(query).fetchone() == ("deliveries so far",)
