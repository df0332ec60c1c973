"""SQL models: order, incremental runs that equal full ones, and errors that name file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.models import manage
from penstock.pipeline.models.definitions import Definitions
from penstock.pipeline.models.results import load
from penstock.pipeline.models.sql_files import parse
from penstock.pipeline.run import Pipeline
from penstock.pipeline.verify import verify_models
from tests.spark.models import add, bodies, push, rows, run, write
from tests.spark.support import Work

pytestmark = pytest.mark.spark
# Named against their order, so that only ref() can give it.
MODELS = {
    "a_top": "SELECT customer, total FROM {{ ref('b_totals') }} WHERE total > 0 -- the best",
    "b_totals": """-- materialized: incremental, key: customer
-- expect: not_null(customer) stop
SELECT customer, count(*) AS orders, sum(CAST(amount AS DECIMAL(18, 2))) AS total
FROM {{ ref("orders") }} WHERE abs(amount) < 1000 AND customer IN (SELECT customer FROM {{ new('orders') }})
GROUP BY customer;
""",
    "c_large": """-- materialized: incremental
SELECT offset, number, customer FROM {{ new('orders') }} WHERE amount > 1""",
    "d_events": "SELECT kind, count(*) AS events FROM {{ source('bronze', 'events') }} GROUP BY kind",
}


def start(spark: Any, work: Work, lake: Lake, folder: Path, **models: str) -> None:
    """A lake with the typed model and these."""
    push(work, *bodies(60, seed=0))
    run(spark, work, lake)
    add(work, lake)
    run(spark, work, lake, models=write(folder, **models))


def everything(lake: Lake) -> list[list[dict[str, Any]]]:
    return [rows(lake, name) for name in MODELS]


def test_models_run_in_their_order_and_increments_equal_a_rebuild(
    spark: Any, work: Work, lake: Lake, tmp_path: Path
) -> None:
    start(spark, work, lake, tmp_path / "models", **MODELS)
    for seed in (1, 2):
        push(work, *bodies(60, seed=seed))
        run(spark, work, lake)
    found = everything(lake)
    assert all(found)
    typed = rows(lake, "orders")
    assert sum(row["orders"] for row in found[1]) == sum(
        row["amount"] is not None and abs(row["amount"]) < 1000 for row in typed
    )
    assert len(found[2]) == sum((row["amount"] or 0) > 1 for row in typed)
    assert all(verdict.good for verdict in verify_models(spark, lake))
    with Pipeline(spark, work.drained(), lake) as pipeline:
        manage.new_generation(lake, "orders")
        list(pipeline.steps())
    assert everything(lake)[:3] == found[:3]
    assert Definitions(lake).get("b_totals").generation == 2  # What reads a rebuilt model is rebuilt.


class Killed(Exception):
    pass


def test_a_run_that_is_killed_after_any_commit_of_a_model_is_finished_by_the_next(
    spark: Any, work: Work, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(spark, work, lake, tmp_path / "models", **MODELS)
    sync, left = LakeTable._sync, ""

    def dying(self: LakeTable) -> None:
        sync(self)
        if self.table.name == left:
            raise Killed

    monkeypatch.setattr(LakeTable, "_sync", dying)
    for seed, name in enumerate(("orders", "b_totals", "c_large"), 1):
        push(work, *bodies(30, seed=seed))
        left = f"model.{name}"
        with pytest.raises(Killed):
            run(spark, work, Lake(lake.folder))
    left = ""
    run(spark, work, Lake(lake.folder))
    assert all(verdict.good for verdict in verify_models(spark, Lake(lake.folder)))


def test_a_changed_query_is_computed_anew(spark: Any, work: Work, lake: Lake, tmp_path: Path) -> None:
    start(spark, work, lake, tmp_path, c_large=MODELS["c_large"])
    folder = write(tmp_path, c_large="-- materialized: incremental\nSELECT customer FROM {{ new('orders') }}")
    run(spark, work, lake, models=folder)
    assert len(rows(lake, "c_large")) == len(rows(lake, "orders"))
    assert set(rows(lake, "c_large")[0]) == {"customer"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT 1 AS a,\n  FROM FROM x", "bad.sql, line 2"),
        ("SELECT customer,\n  nothing FROM {{ ref('orders') }}", "bad.sql, line 2.*nothing"),
        ("SELECT\n CAST(customer AS INT) AS n FROM {{ ref('orders') }}", "bad.sql, line 2.*CAST_INVALID_INPUT"),
        ("SELECT * FROM silver.missing", r"bad.sql, line 1.*silver.*ref\('model'\)"),
        ("DELETE FROM {{ ref('orders') }}", "bad.sql, line 1"),
        ("SELECT 1 AS a, 2 AS A", "two columns are named 'a'"),
        ("SELECT NULL AS a", "the type null, which Delta tables do not have"),
        ("-- materialized: incremental, key: a\nSELECT 1 AS b", "the key 'a' is not a column"),
        ("-- expect: not_null(a)\nSELECT 1 AS b", "there is no column 'a'"),
    ],
)
def test_a_wrong_query_names_file_and_line_and_other_models_run(
    spark: Any, work: Work, lake: Lake, tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(InvalidInput, match=f"(?s){reason}"):
        start(spark, work, lake, tmp_path, bad=text, good="SELECT 1 AS a")
    assert rows(lake, "good") == [{"a": 1}]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT 1\nFROM {{ config('x') }}", "bad.sql, line 2: only"),
        ("SELECT 1\n\nFROM {{ ref(orders) }}", "bad.sql, line 3: cannot read"),
        ("SELECT 1 FROM {{ source('silver', 'nothing') }}", "line 1: there is no table silver.nothing"),
        ("SELECT 1 FROM {{ new('gold', 'queues') }}", "line 1: new.. cannot read gold.queues"),
        ("SELECT 1 FROM {{ new('gold.queues') }}", "line 1: 'gold.queues' cannot be the name of a model"),
        ("-- materialized: view\nSELECT 1", "line 1: cannot read 'view'"),
        ("-- a comment\n-- expect: nothing(a)\nSELECT 1", "line 2: 'nothing.a.' is not an expectation"),
        ("-- expect: not_null(a) quarantine\nSELECT 1", "line 1: a SQL model has no quarantine table"),
    ],
)
def test_a_wrong_file_names_file_and_line(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse("bad", text)


def test_a_model_may_be_named_like_a_table_of_the_lake() -> None:
    text = (
        "SELECT * FROM {{ ref('silver_messages') }}, {{ source('silver', 'messages') }}, {{ new('silver_messages') }}"
    )
    assert len({each.view for each in parse("both", text).inputs}) == 3


def test_unknown_inputs_circles_and_names_that_are_taken_are_refused(
    spark: Any, work: Work, lake: Lake, tmp_path: Path
) -> None:
    one, two = "SELECT * FROM {{ ref('two') }}", "SELECT * FROM {{ ref('one') }}"
    with pytest.raises(Conflict, match="circle"):
        start(spark, work, lake, tmp_path / "circle", one=one, two=two)
    assert list(Definitions(lake).all()) == ["orders"]
    run(spark, work, lake, models=write(tmp_path / "line", one="SELECT 1 AS a", two=two))
    with pytest.raises(Conflict, match="circle"):
        run(spark, work, lake, models=write(tmp_path / "closed", one=one))
    with pytest.raises(Conflict, match="'two' reads 'one'"):
        manage.remove(lake, "one")
    assert rows(lake, "two") == [{"a": 1}]
    with pytest.raises(Conflict, match="already a typed model"):
        run(spark, work, lake, models=write(tmp_path / "taken", orders="SELECT 1 AS a"))
    other = Work(tmp_path / "other")
    other.push("a")
    with pytest.raises(NotFound, match=r"one\.sql: model 'two' does not exist"):
        run(spark, other, Lake(other.data / "lake"), models=write(tmp_path / "unknown", one=one))
    other.close_all()


def test_expectations_of_a_query_warn_or_stop(spark: Any, work: Work, lake: Lake, tmp_path: Path) -> None:
    text = "-- expect: between(amount, 0, 1)\nSELECT amount FROM {{ ref('orders') }}"
    start(spark, work, lake, tmp_path, amounts=text)
    [found] = load(lake)
    outside = [row for row in rows(lake, "amounts") if row["amount"] is not None and not 0 <= row["amount"] <= 1]
    assert (found["model"], found["passed"], found["failed"]) == ("amounts", False, len(outside))
    with pytest.raises(Conflict, match="nothing was committed"):
        run(spark, work, lake, models=write(tmp_path, amounts=text.replace("1)", "1) stop")))
    assert len(rows(lake, "amounts")) == len(rows(lake, "orders"))  # Those of before.
