"""Filters reduce what is read, and never change what a query returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from penstock.log.streams import FileStreams
from penstock.pipeline.runtime import jar
from tests.integration.serving import running
from tests.spark.support import PostgresWork, Work, register

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
NOW = 1_700_000_000_000
JOURNAL_FILTERS = (
    "kind IN ('acked', 'leased') AND queue = 'mail'",
    "queue IN ('mail', 'q', NULL) AND offset >= 20 AND offset < 40",
    "queue > 'mail' OR queue <=> 'nobody'",
    "offset IN (3, 30, 31) AND kind <> 'leased'",
    "at >= '2023-11-14T22:15:00Z' AND at < '2023-11-14T22:20:00Z' AND number = 0",
)
STREAM_FILTERS = (
    "timestamp = timestamp_millis(1700000000030)",
    "timestamp > timestamp_millis(1700000000030) AND timestamp <= timestamp_micros(1700000000060001)",
    "timestamp IN (timestamp_millis(1700000000000), timestamp_millis(1700000000070))",
    "offset <= 5 AND data = cast('5' AS binary)",
)


@pytest.fixture(params=["java", "python"])
def frame_of(request: pytest.FixtureRequest, spark: Any) -> Iterator[Callable[..., Any]]:
    """Returns a new frame each time. Python keeps the plan of a frame's first query, so its frames opt in."""
    register(spark)
    options = {} if request.param == "java" else {"pushFilters": "true"}
    if request.param == "python":
        spark.conf.set(PUSHDOWN, "true")
        spark.conf.set(jar.RULES_LEFT_OUT, jar.RULE)
    yield lambda where, **more: spark.read.format("penstock").options(**options, **more).load(where)
    spark.conf.unset(PUSHDOWN)
    spark.conf.unset(jar.RULES_LEFT_OUT)


def check(frame_of: Callable[..., Any], filters: tuple[str, ...], where: str, **options: str) -> None:
    """Filters have the result that they have on rows which were read before."""
    whole = frame_of(where, **options).localCheckpoint()
    found = rows_of([frame_of(where, **options).where(condition) for condition in filters])
    assert found == rows_of([whole.where(condition) for condition in filters])
    assert all(any(row[0] == place for row in found) for place in range(len(filters)))


def rows_of(frames: list[Any]) -> list[tuple[Any, ...]]:
    marked = [frame.selectExpr(f"{place} AS place", "*") for place, frame in enumerate(frames)]
    return sorted((tuple(row) for row in reduce(lambda one, other: one.union(other), marked).collect()), key=repr)


def test_filters_of_a_folders_journal_change_no_result(frame_of: Callable[..., Any], work: Work) -> None:
    work.some(150)
    work.drained()
    check(frame_of, JOURNAL_FILTERS, work.where)


def stream(folder: Path) -> str:
    """Write ten records in each of eight appends, ten milliseconds apart."""
    now = NOW
    with closing(FileStreams(folder / "penstock.db.streams", clock=lambda: now)) as streams:
        streams.create("s")
        for _ in range(8):
            streams.append("s", [b"%d" % number for number in range(10)])
            now += 10
    return str(folder)


def test_filters_of_a_stream_change_no_result(frame_of: Callable[..., Any], tmp_path: Path) -> None:
    check(frame_of, STREAM_FILTERS, stream(tmp_path), stream="s")


def tasks_of(frame: Any) -> int:
    return int(frame._jdf.queryExecution().toRdd().getNumPartitions())


def test_filters_on_offsets_and_times_narrow_what_is_read(frame_of: Callable[..., Any], tmp_path: Path) -> None:
    where, options = stream(tmp_path), {"stream": "s", "minPartitions": "80"}
    assert tasks_of(frame_of(where, **options)) == 80
    assert tasks_of(frame_of(where, **options).where("offset = 5")) == 1
    assert tasks_of(frame_of(where, **options).where("offset >= 10 AND offset < 15")) == 5
    assert tasks_of(frame_of(where, **options).where("timestamp >= timestamp_millis(1700000000060)")) == 20
    assert tasks_of(frame_of(where, **options).where("timestamp = timestamp_millis(1700000000020)")) == 10


def test_queries_of_one_frame_do_not_share_their_filters(spark: Any, tmp_path: Path) -> None:
    register(spark)
    frame = spark.read.format("penstock").option("stream", "s").load(stream(tmp_path))
    assert frame.where("offset < 3").count() == 3
    assert frame.count() == 80
    assert frame.where("offset < 3").union(frame.where("offset >= 70")).count() == 13


def test_a_session_that_enables_push_down_does_not_mix_up_queries_without_the_jar(spark: Any, tmp_path: Path) -> None:
    register(spark)
    spark.conf.set(PUSHDOWN, "true")
    spark.conf.set(jar.RULES_LEFT_OUT, jar.RULE)
    try:
        frame = spark.read.format("penstock").option("stream", "s").load(stream(tmp_path))
        assert [frame.where("offset < 3").count(), frame.count()] == [3, 80]
    finally:
        spark.conf.unset(PUSHDOWN)
        spark.conf.unset(jar.RULES_LEFT_OUT)


@pytest.mark.parametrize("frame_of", ["python"], indirect=True)
def test_filters_of_a_databases_journal_change_no_result(frame_of: Callable[..., Any]) -> None:
    database = PostgresWork()
    try:
        database.some(60)
        database.drained()
        check(frame_of, JOURNAL_FILTERS[:2], database.where)
    finally:
        database.close_all()


@pytest.mark.parametrize("frame_of", ["python"], indirect=True)
def test_filters_of_a_servers_stream_change_no_result(frame_of: Callable[..., Any], tmp_path: Path) -> None:
    stream(tmp_path)
    with running(tmp_path) as server:
        check(frame_of, STREAM_FILTERS[:2], f"http://127.0.0.1:{server.port}", stream="s")
