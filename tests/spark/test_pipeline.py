"""From the journal to the lake: every event once, and correct aggregates."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from penstock.errors import Conflict, OffsetTrimmed, StoreBusy
from penstock.journal.reader import JournalReader
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.lake.tables import BRONZE, QUEUE_ERRORS, QUEUE_MINUTES, QUEUES, SILVER, Table
from penstock.pipeline.run import CONSUMER, Pipeline
from penstock.pipeline.source import offset_ranges
from penstock.pipeline.verify import verify
from tests.documentation import ROOT
from tests.integration.serving import running
from tests.spark.support import Work, check_lake, rows_of

pytestmark = pytest.mark.spark


def run(spark: Any, work: Work, lake: Lake, **how: Any) -> int:
    with Pipeline(spark, work.drained(), lake, **how) as pipeline:
        return sum(1 for _ in pipeline.steps())


@pytest.mark.parametrize("small_bytes", [offset_ranges.SMALL_BYTES, 0], ids=["driver", "tasks"])
def test_the_lake_says_what_the_journal_says_in_one_step_or_in_many(
    spark: Any, work: Work, lake: Lake, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr(offset_ranges, "SMALL_BYTES", small_bytes)
    work.some(300)
    assert run(spark, work, lake) == 1
    work.some(300, seed=1)
    assert run(spark, work, lake, step_bytes=40_000) > 1
    check_lake(work, lake)
    assert all(verdict.good for verdict in verify(spark, lake))


def test_what_was_changed_in_any_table_is_found(spark: Any, work: Work, lake: Lake) -> None:
    work.some(100)
    run(spark, work, lake)
    changed = ((SILVER, "total_ms"), (QUEUES, "pushed"), (QUEUE_MINUTES, "service_p95_ms"), (QUEUE_ERRORS, "nacked"))
    for table, column in changed:
        lake[table].delta.update(updates={column: f"{column} + 1"}, predicate=f"{column} IS NOT NULL")
    found = verify(spark, Lake(lake.folder))
    assert [verdict.table for verdict in found if not verdict.good] == [table.name for table, _ in changed]


class Killed(Exception):
    pass


def test_a_run_that_is_cut_short_after_any_commit_is_finished_by_the_next(
    spark: Any, work: Work, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = LakeTable._sync
    left = 0

    def dying(self: LakeTable) -> None:
        nonlocal left
        sync(self)
        left -= 1
        if left == 0:
            raise Killed

    monkeypatch.setattr(LakeTable, "_sync", dying)
    for commits in (1, 2, 3, 4):
        work.some(60, seed=commits)
        left = commits
        with pytest.raises(Killed):
            run(spark, work, Lake(lake.folder))
        work.some(60, seed=10 + commits)
    left = 0
    run(spark, work, lake)
    check_lake(work, lake)


def test_a_second_pipeline_must_wait_for_the_first(spark: Any, work: Work, lake: Lake) -> None:
    work.push("a")
    with Pipeline(spark, work.drained(), lake), pytest.raises(StoreBusy):
        Pipeline(spark, work.journal, Lake(lake.folder))


def test_a_lake_takes_no_other_journal(spark: Any, work: Work, lake: Lake, tmp_path: Any) -> None:
    work.push("a")
    run(spark, work, lake)
    other = Work(tmp_path / "other")
    other.push("b")
    with pytest.raises(Conflict, match="another journal"):
        run(spark, other, lake)
    other.close_all()


def test_its_position_shows_as_a_consumer_of_the_journal(spark: Any, work: Work, lake: Lake) -> None:
    work.push("a", "b")
    run(spark, work, lake)
    reader = JournalReader(work.journal)
    [found] = reader.consumers()
    assert (found.name, found.offset, found.kind) == (CONSUMER, reader.next_offset() - 1, "pipeline")


def test_the_dashboard_tells_how_fresh_tables_are_and_whether_it_runs(spark: Any, work: Work, lake: Lake) -> None:
    work.some(100)
    run(spark, work, lake)
    with Pipeline(spark, work.journal, lake) as pipeline:
        end = pipeline.log.next_offset
        with running(work.data) as server, server.client() as client:
            busy = client.get("/pipeline").json
    with running(work.data) as server, server.client() as client:
        found = client.get("/pipeline").json
    assert (busy["exists"], busy["running"], found["running"]) == (True, True, False)
    tables = {each["table"]: each for each in found["tables"]}
    assert tables.keys() == {table.table.name for table in lake.tables()}
    assert tables[BRONZE.name]["rows"] == len(rows_of(lake, BRONZE)) > 0
    assert tables[BRONZE.name]["newest_ms"] is not None
    # What the servers wrote since is not in it yet.
    assert {each["lag"] for each in tables.values()} == {found["next"] - end}
    assert CONSUMER in {reader["consumer"] for reader in found["readers"]}


def test_errors_that_differ_only_in_numbers_and_names_are_one(spark: Any, work: Work, lake: Lake) -> None:
    work.make("q", max_attempts=9)
    for text in ("no user 17", "no user 4711", "host 'a' refused", "host 'bee' refused", "0xdeadbeef at 12:30"):
        work.push(text)
        work.nack(*work.lease("q"), error=text)
    run(spark, work, lake)
    found = {row["pattern"]: row["nacked"] for row in rows_of(lake, QUEUE_ERRORS)}
    assert found == {"no user <n>": 2, "host <text> refused": 2, "<n> at <n>:<n>": 1}


def test_an_acked_dead_letter_counts_in_gold_alone_and_both_tables_say_so(spark: Any, work: Work, lake: Lake) -> None:
    work.make("q", max_attempts=1)
    work.push("a")
    work.nack(*work.lease("q"), error="bad")
    work.ack(*work.lease("q.dlq"))
    run(spark, work, lake)
    assert [row["outcome"] for row in rows_of(lake, SILVER)] == ["dead"]
    for table in (QUEUES, QUEUE_MINUTES):
        assert [row["acked"] for row in rows_of(lake, table)] == [1]
        assert "`acked` includes dead letters" in catalogued(table)
    assert "it is counted as `acked` in gold" in catalogued(SILVER)


def catalogued(table: Table) -> str:
    """Return what the reference says of a table."""
    return (ROOT / "docs/reference/lake.md").read_text().split(f"## {table.name}\n", 1)[1].split("\n## ", 1)[0]


def test_small_files_become_few_and_nothing_else_changes(spark: Any, work: Work, lake: Lake) -> None:
    for part in range(3):
        work.some(40, seed=part)
        run(spark, work, lake)
    before = rows_of(lake, BRONZE)
    assert lake[BRONZE].compact()["added"] == 1
    lake[BRONZE].vacuum(hours=0)
    assert rows_of(lake, BRONZE) == before
    assert len(list(lake[BRONZE].folder.glob("*.parquet"))) == 1
    work.some(40, seed=9)
    run(spark, work, lake)
    check_lake(work, lake)


def test_what_the_journal_no_longer_has_is_named_or_counted(spark: Any, work: Work, lake: Lake) -> None:
    work.push("a")
    run(spark, work, lake)
    work.push("b")
    work.forget_all_but_new()
    work.push("c")
    with pytest.raises(OffsetTrimmed, match="offset 2"):
        run(spark, work, lake)
    with Pipeline(spark, work.drained(), lake, fail_on_data_loss=False) as pipeline:
        assert [step.lost for step in pipeline.steps()] == [1]
    assert [row["pushed"] for row in rows_of(lake, QUEUES)] == [2]


def test_a_run_ends_though_nothing_of_the_journal_is_left(spark: Any, work: Work, lake: Lake) -> None:
    work.push("a")
    run(spark, work, lake)
    work.push("b")
    work.forget_all_but_new()
    with Pipeline(spark, work.drained(), lake, fail_on_data_loss=False) as pipeline:
        assert [step.lost for step in islice(pipeline.steps(), 3)] == [1]
    work.push("c")
    run(spark, work, lake)
    assert [row["pushed"] for row in rows_of(lake, QUEUES)] == [2]
