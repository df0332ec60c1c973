"""A user's own models: typed tables with exact quarantine, the same after crashes and after a full rebuild."""

from __future__ import annotations

import copy
from contextlib import closing
from typing import Any

import pytest

from penstock.errors import Conflict, InvalidInput, InvalidName, NotFound
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.lake.tables import BRONZE
from penstock.pipeline.models import manage
from penstock.pipeline.models.results import load
from penstock.pipeline.run import Pipeline
from penstock.pipeline.source import offset_ranges
from penstock.pipeline.verify import verify_models
from tests.spark.models import ORDERS, add, bodies, fits, push, rows, run
from tests.spark.support import Work, rows_of

pytestmark = pytest.mark.spark
PAYLOAD = ("payload_id", "customer", "amount", "paid", "address", "tags")


def schema(**properties: Any) -> dict[str, Any]:
    """ORDERS with more or other properties."""
    found = copy.deepcopy(ORDERS)
    found["properties"] |= properties
    return found


def check(spark: Any, lake: Lake) -> None:
    """Every push is in one of the two tables, as the plain rules say."""
    pushed = [row for row in rows_of(lake, BRONZE) if row["kind"] == "pushed" and row["queue"] == "orders"]
    good = {(row["offset"], row["number"]): row for row in rows(lake, "orders")}
    bad = {(row["offset"], row["number"]): row for row in rows(lake, "orders", 1)}
    assert len(good) + len(bad) == len(pushed) == len(rows(lake, "orders")) + len(rows(lake, "orders", 1))
    for each in pushed:
        place, expected = (each["offset"], each["number"]), fits(each["body"])
        if expected is None:
            assert bad[place]["body"] == each["body"]
            assert bad[place]["reason"]
        else:
            assert {name: good[place][name] for name in PAYLOAD} == expected
            assert all(good[place][name] == each[name] for name in ("id", "uuid", "pushed_at"))
    assert all(verdict.good for verdict in verify_models(spark, lake))


@pytest.mark.parametrize("small_bytes", [offset_ranges.SMALL_BYTES, 0], ids=["driver", "tasks"])
def test_every_message_is_a_typed_row_or_in_quarantine(
    spark: Any, work: Work, lake: Lake, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr(offset_ranges, "SMALL_BYTES", small_bytes)
    push(work, *bodies(200, seed=1))
    push(work, b'{"id":1,"customer":"other queue"}', queue="other")
    run(spark, work, lake)
    add(work, lake)
    assert run(spark, work, lake) == 1  # The messages of before.
    for seed in (2, 3):
        push(work, *bodies(100, seed=seed))
        run(spark, work, lake)
    check(spark, lake)


class Killed(Exception):
    pass


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of tables: the pipeline is killed after its next commit to one of them."""
    names: list[str] = []
    sync = LakeTable._sync

    def dying(self: LakeTable) -> None:
        sync(self)
        if self.table.name in names:
            raise Killed

    monkeypatch.setattr(LakeTable, "_sync", dying)
    return names


def test_tables_are_the_same_after_kills_at_every_commit_and_after_a_rebuild(
    spark: Any, work: Work, lake: Lake, kill_at: list[str]
) -> None:
    commits = ("model.expectations", "model.orders_quarantine", "model.orders")
    push(work, *bodies(40, seed=0))
    run(spark, work, lake)
    add(work, lake, ORDERS | {"expectations": ["not_null(amount) warn"]})
    for seed, name in enumerate((BRONZE.name, *commits), 1):
        push(work, *bodies(40, seed=seed))
        kill_at[:] = [name]
        with pytest.raises(Killed):
            run(spark, work, Lake(lake.folder))
    kill_at.clear()
    run(spark, work, Lake(lake.folder))
    check(spark, Lake(lake.folder))
    before = [rows(lake, "orders", part) for part in (0, 1)]
    for name in commits:
        with Pipeline(spark, work.journal, Lake(lake.folder)) as pipeline:
            manage.new_generation(Lake(lake.folder), "orders")
            kill_at[:] = [name]
            with pytest.raises(Killed):
                pipeline.step()
        # Readers find all rows, of this generation or of the one before.
        assert [rows(lake, "orders", part) for part in (0, 1)] == before
        kill_at.clear()
        run(spark, work, Lake(lake.folder))
        assert [rows(lake, "orders", part) for part in (0, 1)] == before


def test_a_new_optional_property_is_null_for_earlier_messages(spark: Any, work: Work, lake: Lake) -> None:
    push(work, b'{"id":1,"customer":"a","channel":"web"}')
    run(spark, work, lake)
    add(work, lake)
    run(spark, work, lake)
    add(work, lake, schema(channel={"type": "string"}))
    push(work, b'{"id":2,"customer":"a","channel":"web"}', b'{"id":3,"customer":"a","channel":5}')
    run(spark, work, lake)
    assert [(row["payload_id"], row["channel"]) for row in rows(lake, "orders")] == [(1, None), (2, "web")]
    assert [(row["field"], row["body"]) for row in rows(lake, "orders", 1)] == [
        ("$.channel", b'{"id":3,"customer":"a","channel":5}')
    ]
    assert all(verdict.good for verdict in verify_models(spark, lake))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": {"type": "number"}}, r"\$\.id: its type changed from integer to number"),
        ({"paid": {"type": "string"}}, "its type changed"),
        ({"address": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "string"}}}}, "new"),
    ],
)
def test_an_incompatible_schema_needs_a_rebuild(
    spark: Any, work: Work, lake: Lake, change: dict[str, Any], reason: str
) -> None:
    push(work, b'{"id":1,"customer":"a","paid":"yes"}', b'{"id":1.5,"customer":"a"}')
    run(spark, work, lake)
    add(work, lake)
    run(spark, work, lake)
    with pytest.raises(Conflict, match=f"{reason}.*model rebuild"):
        add(work, lake, schema(**change))
    with Pipeline(spark, work.journal, lake) as pipeline:
        manage.new_generation(lake, "orders", schema(**change))
        list(pipeline.steps())
    if "id" in change:
        assert [row["payload_id"] for row in rows(lake, "orders")] == [1.5]
    assert len(rows(lake, "orders")) + len(rows(lake, "orders", 1)) == 2
    assert all(verdict.good for verdict in verify_models(spark, Lake(lake.folder)))


def test_a_running_pipeline_finds_new_models_but_keeps_its_schemas(spark: Any, work: Work, lake: Lake) -> None:
    push(work, b'{"id":1,"customer":"a"}')
    with Pipeline(spark, work.drained(), lake) as pipeline:
        list(pipeline.steps())
        add(work, Lake(lake.folder))
        push(work, b'{"id":2,"customer":"a"}')
        work.drained()
        list(pipeline.steps())
        assert [row["payload_id"] for row in rows(lake, "orders")] == [1, 2]
        with pytest.raises(Exception, match="another process"):
            add(work, Lake(lake.folder), schema(channel={"type": "string"}))


def test_a_removed_model_leaves_no_rows_and_its_name_can_be_used_again(spark: Any, work: Work, lake: Lake) -> None:
    push(work, *bodies(20, seed=1))
    run(spark, work, lake)
    add(work, lake)
    run(spark, work, lake)
    folder = lake.folder / "model" / "orders"
    manage.remove(Lake(lake.folder), "orders")
    assert not list(folder.glob("*.parquet"))
    with pytest.raises(NotFound):
        manage.remove(lake, "orders")
    add(work, lake, {"type": "object", "properties": {"customer": {"type": "string"}}})
    run(spark, work, lake)
    assert set(rows(lake, "orders")[0]) == {"offset", "number", "id", "uuid", "pushed_at", "customer"}
    assert all(verdict.good for verdict in verify_models(spark, lake))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ([], "must be a JSON object"),
        ({"type": "array", "items": {"type": "string"}}, "expected an object"),
        ({"type": "object", "properties": {}}, "needs properties"),
        (schema(x={"type": "string", "pattern": "a+"}), r"\$\.x: unsupported keyword 'pattern'"),
        (schema(x={"type": ["string", "integer"]}), "unsupported type"),
        (schema(Customer={"type": "string"}), "would both be column"),
        (
            schema(x={"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            "arrays of",
        ),
        (ORDERS | {"required": ["nothing"]}, "not among the properties"),
        (ORDERS | {"expectations": ["between(amount, 1)"]}, "number of arguments"),
        (ORDERS | {"expectations": ["between(amount, 'a', 'b')"]}, "not of type double"),
        (ORDERS | {"expectations": ["not_null(nothing)"]}, "no column"),
        (ORDERS | {"expectations": ["unique(customer) quarantine"]}, "cannot quarantine"),
        (ORDERS | {"expectations": ["fresh(customer, 1h)"]}, "not a time"),
    ],
)
def test_a_schema_that_cannot_be_a_table_is_refused(work: Work, lake: Lake, wrong: Any, reason: str) -> None:
    work.drained()
    with pytest.raises(InvalidInput, match=reason):
        add(work, lake, wrong)


@pytest.mark.parametrize("name", ["Orders", "a-b", "a.b", "", "x" * 64, "expectations", "a_quarantine", "1a"])
def test_a_name_that_is_no_table_is_refused(work: Work, lake: Lake, name: str) -> None:
    work.drained()
    with pytest.raises(InvalidName):
        add(work, lake, name=name)


def test_expectations_warn_quarantine_or_stop(spark: Any, work: Work, lake: Lake) -> None:
    checks = ["not_null(amount)", "between(amount, 0, 10) quarantine"]
    more = ["unique(payload_id) stop", "fresh(pushed_at, 1h)"]
    push(work, b'{"id":1,"customer":"a"}', b'{"id":2,"customer":"a","amount":11}')
    push(work, b'{"id":3,"customer":"a","amount":10}')
    run(spark, work, lake)
    add(work, lake, ORDERS | {"expectations": checks + more})
    run(spark, work, lake)
    assert [row["payload_id"] for row in rows(lake, "orders")] == [1, 3]
    assert [row["reason"] for row in rows(lake, "orders", 1)] == ["expectation between(amount, 0, 10)"]
    found = {row["expectation"]: row["failed"] for row in load(lake)}
    # The store's clock stands long ago.
    assert found == {
        "not_null(amount)": 1,
        "between(amount, 0, 10)": 1,
        "unique(payload_id)": 0,
        "fresh(pushed_at, 1h)": 1,
    }
    push(work, b'{"id":3,"customer":"b","amount":1}')
    with pytest.raises(Conflict, match=r"unique\(payload_id\) failed"):
        run(spark, work, lake)
    assert [row["payload_id"] for row in rows(lake, "orders")] == [1, 3]
    assert {row["expectation"]: row["passed"] for row in load(lake)}["unique(payload_id)"] is False
    assert rows_of(lake, BRONZE)[-1]["kind"] == "pushed"  # Other tables go on.
    add(work, lake, ORDERS | {"expectations": checks})
    run(spark, work, lake)
    assert [row["payload_id"] for row in rows(lake, "orders")] == [1, 3, 3]
    assert {row["expectation"] for row in load(lake)} == {"not_null(amount)", "between(amount, 0, 10)"}
    assert all(verdict.good for verdict in verify_models(spark, lake))


def test_a_locked_lake_is_not_changed(work: Work, lake: Lake) -> None:
    work.drained()
    add(work, lake)
    with closing(lake.lock()), pytest.raises(Exception, match="another process"):
        manage.remove(lake, "orders")
