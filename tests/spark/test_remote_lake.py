"""A lake in an object store: the same tables, the same commands, and no lock but the commits."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from pyarrow.fs import FileSelector

from penstock.errors import CannotOpen, Conflict, StoreError
from penstock.pipeline.lake import remote_files
from penstock.pipeline.lake.files import write_batches
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.storage import RemoteFolder
from penstock.pipeline.lake.tables import BRONZE, QUEUE_MINUTES, QUEUES, SILVER, TABLES
from penstock.pipeline.run import Pipeline
from penstock.pipeline.source import offset_ranges
from tests.integration.serving import running
from tests.object_store import ObjectStore
from tests.s3_proxy import ProxyProcess
from tests.spark.readers import digests_by_delta_rs, digests_by_duckdb
from tests.spark.support import Work, check_lake, rows_of
from tests.spark.test_lake import put

pytestmark = pytest.mark.spark
APP = "penstock:a"


def run(spark: Any, work: Work, lake: Lake, **how: Any) -> int:
    with Pipeline(spark, work.drained(), lake, **how) as pipeline:
        return sum(1 for _ in pipeline.steps())


def test_a_lake_on_s3_says_what_the_journal_says(spark: Any, work: Work, remote_lake: Lake) -> None:
    for seed in range(2):
        work.some(120, seed=seed)
        assert run(spark, work, Lake(remote_lake.folder)) == 1
    check_lake(work, remote_lake)
    assert digests_by_duckdb(remote_lake) == digests_by_delta_rs(remote_lake)


def test_tasks_read_and_write_s3_through_python(
    spark: Any, work: Work, remote_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_ranges, "SMALL_BYTES", 0)
    monkeypatch.setattr(remote_files, "READ_BYTES_MAX", 0)
    work.some(120)
    run(spark, work, remote_lake)
    check_lake(work, remote_lake)


def test_every_command_works_on_s3(
    command: Callable[..., Result], work: Work, remote_lake: Lake, tmp_path: Path
) -> None:
    def told(*arguments: str) -> Any:
        done = command(*arguments, "--data", str(work.data), "--lake", str(remote_lake.folder), "--json")
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    missing = command("status", "--data", str(work.data), "--lake", str(remote_lake.folder))
    assert f"there is no lake in {remote_lake.folder}" in missing.output
    work.some(60)
    work.make("news", max_attempts=1)
    work.bury("lost", queue="news", error="no such user")
    [first] = told("run", "--once")
    assert first["lag"] == 0
    assert told("run", "--once")[0]["events"] == 0
    [tables] = told("status")
    assert [row["lag"] for row in tables] == [0] * len(TABLES)
    [counted] = told(
        "sql", "SELECT (SELECT count(*) FROM bronze.events) AS events, count(*) AS queues FROM live.queues"
    )
    assert counted == {"events": first["events"], "queues": len(work.list_queues())}
    told("report", "--file", str(tmp_path / "report.html"))
    assert "no such user" in (tmp_path / "report.html").read_text()
    [compacted] = told("compact", "--vacuum-hours", "0")
    assert [row["table"] for row in compacted] == list(TABLES)
    for pushed in (1, 0):
        [answer] = told("replay", "--where", "queue = 'news' AND outcome = 'dead'", "--to", "again")
        assert (answer["matched"], answer["pushed"]) == (1, pushed)
    assert [message.payload for message in work.lease("again", 10)] == [b"lost"]
    [verdicts] = told("verify")
    assert all(not row["missing"] and not row["unexpected"] for row in verdicts)
    left = {each.path.partition("/")[0] for each in listed(remote_lake)}
    assert left == {"bronze", "silver", "gold", "staging"}


def listed(lake: Lake) -> list[Any]:
    assert isinstance(lake.folder, RemoteFolder)
    found: list[Any] = lake.folder.files().get_file_info(FileSelector("", recursive=True))
    return found


def test_a_cluster_keeps_live_tables_and_long_answers_in_the_store_only_for_the_query(
    command: Callable[..., Result], work: Work, remote_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.pipeline import sql

    work.some(60)
    flags = ("--data", str(work.data), "--lake", str(remote_lake.folder))
    assert command("run", *flags).exit_code == 0
    monkeypatch.setattr(sql, "runs_here", lambda spark: False)
    monkeypatch.setattr(remote_files, "runs_here", lambda spark: False)
    monkeypatch.setattr(sql, "ROWS_HELD", 10)
    file = tmp_path / "rows.parquet"
    query = "SELECT e.offset, e.body, l.ready FROM bronze.events e JOIN live.queues l USING (queue) ORDER BY e.offset"
    done = command("sql", query, "--parquet", str(file), *flags)
    assert done.exit_code == 0, done.output
    held = {info.name for info in work.list_queues()}
    expected = [row["offset"] for row in rows_of(remote_lake, BRONZE) if row["queue"] in held]
    assert len(expected) > 10
    assert pq.read_table(file)["offset"].to_pylist() == expected
    assert not [each.path for each in listed(remote_lake) if each.path.startswith("sql-") and each.size]


def test_a_server_shows_the_lake_on_s3(spark: Any, work: Work, remote_lake: Lake) -> None:
    work.some(120)
    run(spark, work, remote_lake)
    pushed = sum(row["pushed"] for row in rows_of(remote_lake, QUEUES))
    with running(work.data, metrics_days=1, lake=str(remote_lake.folder)) as server, server.client() as client:
        view = client.get("/pipeline").json
        found = client.get("/api/v1/analytics/queues?from=2023-11-14T00:00:00Z&to=2023-11-20T00:00:00Z").json
    assert (view["exists"], view["running"], view["lake"]) == (True, None, str(remote_lake.folder))
    assert {each["table"] for each in view["tables"]} == set(TABLES)
    live = {info.name for info in work.list_queues()}
    expected = sum(row["pushed"] for row in rows_of(remote_lake, QUEUES) if row["queue"] in live)
    assert 0 < sum(each["stats"]["total"] for each in found["queues"]) == expected <= pushed


def test_of_two_pipelines_one_wins_and_nothing_is_doubled(spark: Any, work: Work, remote_lake: Lake) -> None:
    work.some(60)
    run(spark, work, remote_lake)
    work.some(60, seed=1)
    journal = work.drained()
    one, other = (Pipeline(spark, journal, Lake(remote_lake.folder)) for _ in range(2))
    with one, other:
        assert other.position() == one.position()
        assert sum(1 for _ in one.steps()) == 1
        with pytest.raises(Conflict, match=r"another process has written to bronze\.events .* was not made"):
            other.step()
    check_lake(work, remote_lake)
    assert run(spark, work, Lake(remote_lake.folder)) == 0


def test_a_run_killed_between_bronze_and_silver_is_finished_by_the_next(
    spark: Any, work: Work, remote_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.some(60)
    with Pipeline(spark, work.drained(), Lake(remote_lake.folder)) as pipeline:
        monkeypatch.setattr(pipeline, "_derive", killed)
        with pytest.raises(Killed):
            pipeline.step()
    assert Lake(remote_lake.folder)[SILVER].position(pipeline.app) is None
    run(spark, work, remote_lake)
    check_lake(work, remote_lake)


class Killed(Exception):
    pass


def killed(*_: object) -> None:
    raise Killed


def test_a_compaction_meanwhile_costs_no_pipeline_its_commit(bucket: Any) -> None:
    lake = Lake(bucket)
    lake.create()
    for position in (1, 2):
        put(lake[QUEUE_MINUTES], position, [position])
    there = Lake(bucket)[QUEUE_MINUTES]
    assert there.position(APP) == 2
    assert lake[QUEUE_MINUTES].compact()["added"] == 1
    put(there, 3, [1, 3])
    assert there.dataset().to_table().num_rows == 3


def test_a_commit_whose_answer_was_lost_counts_as_made(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(bucket)
    lake.create()
    table = lake[QUEUES]
    make = table.delta.create_write_transaction

    def twice(*arguments: Any, **named: Any) -> None:
        make(*arguments, **named)
        Lake(bucket)[QUEUES].delta.create_write_transaction(*arguments, **named)

    monkeypatch.setattr(table.delta, "create_write_transaction", twice)
    table.append([], APP, 5)
    assert table.refresh().position(APP) == 5


def test_a_vacuum_leaves_what_another_pipeline_has_not_committed_yet(bucket: Any) -> None:
    lake = Lake(bucket)
    lake.create()
    life = pa.RecordBatch.from_pylist([dict.fromkeys(SILVER.schema.names) | {"offset": 1}], SILVER.schema)
    files = list(write_batches([life], lake[SILVER].folder, SILVER))
    assert Lake(bucket)[SILVER].vacuum(0) == 0
    lake[SILVER].append(files, APP, 1)
    assert lake[SILVER].values("offset") == {1}


def test_requests_do_not_grow_with_history(
    bucket: Any, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(ProxyProcess(object_store.port)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        Lake(bucket).create()
        costs = []
        for first in (1, 11, 21):  # From checkpoint to checkpoint.
            before = proxy.counts()[0].total()
            for position in range(first, first + 10):
                put(Lake(bucket)[QUEUE_MINUTES], position, [1])
            costs.append(proxy.counts()[0].total() - before)
    assert costs[2] <= 1.1 * costs[1]


def test_failed_slow_and_truncated_answers_change_nothing(
    bucket: Any, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(ProxyProcess(object_store.port, faults=0.05, seed=3)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        position = 0
        while position < 8:
            try:
                table = Lake(bucket)[QUEUE_MINUTES]
                if position == 0:
                    table.create()
                position = table.position(APP) or 0
                put(table, position + 1, [position])
                position += 1
            except (StoreError, Conflict):
                continue
        injected = proxy.counts()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store.environment["AWS_ENDPOINT_URL"])
    found = Lake(bucket)[QUEUE_MINUTES].dataset().to_table()
    assert found.num_rows == 8 == len(set(found["minute"].to_pylist()))
    assert injected.total() > 3


def test_a_missing_file_and_a_store_that_is_gone_are_errors_without_secrets(
    bucket: Any, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(bucket)
    lake.create()
    put(lake[QUEUE_MINUTES], 1, [1])
    [file] = lake[QUEUE_MINUTES].sizes()
    (bucket / "gold" / "queue_minutes").files().delete_file(file)
    with pytest.raises(CannotOpen, match=file):
        lake[QUEUE_MINUTES].values("queue")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(StoreError, match=r"opening gold\.queues in s3://") as error:
        Lake(bucket)[QUEUES].refresh()
    assert not any(
        word in str(error.value) for word in ("wrong-secret", object_store.environment["AWS_SECRET_ACCESS_KEY"])
    )
