"""Changes under a lake: recreated queues, late events, added columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from penstock import LiteQueue
from penstock.core.commands import Drop
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import BRONZE, QUEUE_MINUTES, QUEUES, SILVER, STATES, Table
from penstock.pipeline.run import Pipeline
from penstock.pipeline.verify import verify
from tests.conformance.support import MINUTE_MS
from tests.conformance.test_admin import fill
from tests.spark.support import Work, arrow_of, check_held, check_lake, rows_of

pytestmark = pytest.mark.spark


def run(spark: Any, work: Work, lake: Lake) -> None:
    with Pipeline(spark, work.drained(), lake) as pipeline:
        list(pipeline.steps())


def test_a_removed_queue_costs_no_history_older_than_its_messages(spark: Any, work: Work, lake: Lake) -> None:
    work.push("old", queue="other")
    work.ack(*work.lease("other"))
    run(spark, work, lake)
    [old] = map(Path, lake[BRONZE].files())
    aside = old.rename(old.with_name("aside"))
    work.clock.advance(600_000)
    work.make("empty")
    work.push("late", queue="q")
    run(spark, work, lake)
    for queue in ("empty", "q"):
        work.do(Drop(queue=queue, force=True))
    run(spark, work, lake)
    aside.rename(old)
    assert [(life["outcome"], life["queue"]) for life in rows_of(lake, SILVER)] == [
        ("acked", "other"),
        ("removed", "q"),
    ]
    assert all(verdict.good for verdict in verify(spark, lake))


def test_a_queue_that_is_removed_and_made_again_is_one_with_all_its_history(spark: Any, work: Work, lake: Lake) -> None:
    work.push("a", "b")
    work.ack(work.lease_one())
    work.clock.advance(2 * MINUTE_MS)
    run(spark, work, lake)
    work.do(Drop(queue="q", force=True))
    work.clock.advance(2 * MINUTE_MS)
    run(spark, work, lake)
    [row] = rows_of(lake, QUEUES)
    assert (row["pushed"], row["waiting_now"]) == (2, 0)
    work.push("c")
    work.clock.advance(2 * MINUTE_MS)
    work.ack(work.lease_one())
    run(spark, work, lake)
    [row] = rows_of(lake, QUEUES)
    assert (row["pushed"], row["acked"], row["waiting_now"]) == (3, 2, 0)
    lives = [(life["outcome"], life["queue"]) for life in rows_of(lake, SILVER)]
    assert lives == [("acked", "q"), ("removed", "q"), ("acked", "q")]
    check_lake(work, lake)


def test_a_queue_that_was_out_of_the_journal_comes_back_with_what_it_holds(spark: Any, work: Work, lake: Lake) -> None:
    fill(work)
    work.make(journal="off")
    work.clock.advance(2 * MINUTE_MS)
    run(spark, work, lake)
    check_held(work, lake)
    for _ in range(3):
        work.push("untold")
    work.lease("q", 2)
    work.clock.advance(2 * MINUTE_MS)
    work.make(journal="full")
    work.push("told")
    work.ack(*work.lease("q", 2))
    run(spark, work, lake)
    check_held(work, lake)
    work.make(journal="off")
    work.push("untold")
    work.do(Drop(queue="q", force=True))
    run(spark, work, lake)
    check_held(work, lake)
    assert all(verdict.good for verdict in verify(spark, lake))


def test_a_file_that_was_full_before_it_had_a_journal_has_its_depth_in_gold(spark: Any, work: Work, lake: Lake) -> None:
    work.switch_journal(False)
    with LiteQueue(work.path, clock=work.clock) as program:
        for number in range(5):
            program.put(b"untold %d" % number)
        popped, _ = program.pop(timeout=600), program.pop(timeout=600)
        assert popped is not None
        work.clock.advance(MINUTE_MS)
        work.switch_journal(True)
        program.put(b"told")
        program.ack(popped)
        work.clock.advance(2 * MINUTE_MS)
        run(spark, work, lake)
        [row] = rows_of(lake, QUEUES)
        assert [row[f"{state}_now"] for state in STATES] == [4, 1, 0]
        check_held(work, lake)
        [life] = rows_of(lake, SILVER)
        assert (life["outcome"], life["total_ms"]) == ("acked", MINUTE_MS)
        program.put(b"told too")
    work.do(Drop(queue="default", force=True))
    run(spark, work, lake)
    check_held(work, lake)
    assert [life["outcome"] for life in rows_of(lake, SILVER)] == ["acked", "removed", "removed"]
    assert all(verdict.good for verdict in verify(spark, lake))


def test_an_event_that_comes_late_corrects_every_minute_after_it(spark: Any, work: Work, lake: Lake) -> None:
    work.push("a")
    work.clock.advance(5 * MINUTE_MS)
    work.push("b")
    run(spark, work, lake)
    # As by a machine whose clock is behind.
    work.clock.advance(-3 * MINUTE_MS)
    work.push("late")
    work.clock.advance(10 * MINUTE_MS)
    run(spark, work, lake)
    assert [row["depth"] for row in rows_of(lake, QUEUE_MINUTES)] == [1, 2, 3]
    check_lake(work, lake)


def older(lake: Lake, table: Table, *missing: str) -> None:
    """As an earlier release made it, without some columns."""
    rows = arrow_of(lake, table).drop_columns(list(missing))
    write_deltalake(lake[table].folder, rows, mode="overwrite", schema_mode="overwrite")


def test_a_column_that_is_new_does_not_break_files_that_lack_it(spark: Any, work: Work, lake: Lake) -> None:
    work.some(60)
    run(spark, work, lake)
    before = {table.name: rows_of(lake, table) for table in (BRONZE, QUEUE_MINUTES)}
    totals = [name for name in QUEUE_MINUTES.schema.names if name.startswith("total_")]
    older(lake, BRONZE, "content")
    older(lake, QUEUE_MINUTES, *totals)
    work.clock.advance(10 * MINUTE_MS)
    work.some(60, seed=1)
    upgraded = Lake(lake.folder)
    run(spark, work, upgraded)
    check_lake(work, upgraded)
    bronze = rows_of(upgraded, BRONZE)
    assert [{**row, "content": None} for row in before[BRONZE.name]] == bronze[: len(before[BRONZE.name])]
    assert {row["content"] for row in bronze[len(before[BRONZE.name]) :]} >= {"bytes", None}
    newest = max(row["minute"] for row in before[QUEUE_MINUTES.name])
    told = [row["total_p50_ms"] for row in rows_of(upgraded, QUEUE_MINUTES) if row["minute"] > newest and row["acked"]]
    assert told
    assert None not in told
    assert [verdict.table for verdict in verify(spark, upgraded) if not verdict.good] in ([], [QUEUE_MINUTES.name])
