"""Two pipelines on one object store, which has no lock: the one that is overtaken doubles nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Conflict
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import BRONZE, QUEUES
from penstock.pipeline.models.catalog import model_tables
from penstock.pipeline.run import Pipeline
from tests.spark.support import Work, rows_of

pytestmark = pytest.mark.spark


def run_all(pipeline: Pipeline) -> None:
    with pipeline:
        list(pipeline.steps())


def pushed(lake: Lake) -> int:
    return sum(row["pushed"] for row in rows_of(Lake(lake.folder), QUEUES))


def test_an_overtaken_pipeline_does_not_move_gold_back(spark: Any, work: Work, remote_lake: Lake) -> None:
    work.some(60)
    slow = Pipeline(spark, work.drained(), Lake(remote_lake.folder))
    list(slow.steps())
    position = slow.position()
    work.some(60, seed=1)
    run_all(Pipeline(spark, work.drained(), Lake(remote_lake.folder)))
    before = pushed(remote_lake)
    slow._lake[QUEUES].refresh()  # As a compaction does.
    with slow, pytest.raises(Conflict, match="another process has written"):
        list(slow.steps(position))
    run_all(Pipeline(spark, work.drained(), Lake(remote_lake.folder)))
    assert pushed(remote_lake) == before


def test_an_overtaken_pipeline_adds_no_row_to_a_model_twice(
    spark: Any, work: Work, remote_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    query = "-- materialized: incremental\nSELECT offset, number FROM {{ new('bronze', 'events') }}"
    (models / "seen.sql").write_text(query)
    work.some(60)
    slow = Pipeline(spark, work.drained(), Lake(remote_lake.folder), models=models)
    run_models = slow.models.run

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(slow.models, "run", run_models)
        work.some(60, seed=1)
        run_all(Pipeline(spark, work.drained(), Lake(remote_lake.folder)))
        run_models(*arguments)

    monkeypatch.setattr(slow.models, "run", overtaken)
    with slow, suppress(Conflict):
        list(slow.steps())
    run_all(Pipeline(spark, work.drained(), Lake(remote_lake.folder), models=models))
    lake = Lake(remote_lake.folder)
    (table,) = (each for each in model_tables(lake) if each.table.name == "model.seen")
    rows = [(row["offset"], row["number"]) for row in table.dataset().to_table().to_pylist()]
    assert sorted(rows) == sorted((row["offset"], row["number"]) for row in rows_of(lake, BRONZE))
