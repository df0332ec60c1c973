"""Analytics beyond the retention of the roll-ups continue seamlessly from the lake."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from penstock.broker.broker import Broker
from penstock.core.commands import Sweep
from penstock.core.model import RollUp, Totals, Window
from penstock.errors import CannotOpen
from penstock.journal.reader import JournalReader
from penstock.pipeline.lake.gold_history import GoldHistory
from penstock.pipeline.lake.lake import Lake, app_of
from penstock.pipeline.lake.sketches import weighted
from penstock.pipeline.lake.tables import QUEUE_MINUTES
from penstock.pipeline.run import Pipeline
from penstock.pipeline.source.log_sources import location_of
from penstock.server.dashboard.overview import OverviewApi
from penstock.server.metrics_history import DAY_MINUTES, History
from tests.conformance.support import MINUTE_MS, START_MS
from tests.integration.serving import running
from tests.spark.support import Work, arrow_of, rows_of, sends_rows

pytestmark = pytest.mark.spark

T = TypeVar("T")
QUEUES = ("mail", "shop/orders/paid")
FIRST = START_MS // MINUTE_MS
HOUR_MS = 60 * MINUTE_MS
DAYS = 3


def days_of_work(work: Work, days: int) -> None:
    """Something every hour or so; what the sweeper writes down, it writes at once."""
    chance = random.Random(7)
    for queue in QUEUES:
        work.make(queue, max_attempts=2, backoff="fixed", backoff_ms=1_000)
    for _ in range(24 * days):
        queue = chance.choice(QUEUES)
        work.push(*(f"{number}" for number in range(chance.randint(1, 5))), queue=queue)
        work.clock.advance(chance.randint(1, 2_000))
        if leased := work.lease(queue, chance.randint(1, 4)):
            work.clock.advance(chance.randint(1, 500))
            failed = [message for message in leased if chance.random() < 0.2]
            if len(failed) < len(leased):
                work.ack(*(message for message in leased if message not in failed))
            if failed:
                work.nack(*failed, error="no")
        work.do(Sweep(minutes_kept=1 << 30))
        work.clock.set((work.clock() // HOUR_MS + 1) * HOUR_MS)


def history(work: Work, folder: Path, days_kept: int) -> tuple[Broker, History]:
    broker = Broker(work.open_another(), clock=work.clock)
    reader = JournalReader(work.journal)
    return broker, History(broker, days_kept=days_kept, lake=folder, uid=lambda: reader.uid)


def arguments(work: Work, folder: Path, days_kept: int, ask: Callable[[History], Awaitable[T]]) -> T:
    async def run() -> T:
        broker, found = history(work, folder, days_kept)
        try:
            return await ask(found)
        finally:
            await broker.close()

    return asyncio.run(run())


def shown(roll_ups: list[RollUp]) -> list[Any]:
    """Gold does not tell what is ready from what is scheduled, nor of archives."""

    def depth(held: Any) -> tuple[int, int, int]:
        return held.ready + held.scheduled, held.leased, held.dead

    return [
        (
            each.info.name,
            depth(each.before),
            [(span.minute, span.happened, depth(span.depth)) for span in each.spans if span.happened != Totals()],
        )
        for each in roll_ups
    ]


@pytest.fixture(scope="module")
def kept(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A data folder with its lake, which each test has a copy of, and the time to which it goes."""
    work = Work(tmp_path_factory.mktemp("kept") / "data")
    days_of_work(work, DAYS)
    with Pipeline(spark, work.drained(), Lake(work.data / "lake")) as pipeline:
        assert list(pipeline.steps())
    work.close_all()
    return work.data, work.clock()


@pytest.fixture
def three_days(kept: tuple[Path, int], tmp_path: Path) -> Iterator[Work]:
    data, now_ms = kept
    copy = Work(shutil.copytree(data, tmp_path / "data"))
    copy.clock.set(now_ms)
    yield copy
    copy.close_all()


@pytest.fixture
def lake(three_days: Work) -> Lake:
    return Lake(three_days.data / "lake")


def test_what_was_forgotten_by_the_store_is_told_by_the_lake_just_as_it_was(
    three_days: Work, lake: Lake, tmp_path: Path
) -> None:
    work, nowhere = three_days, tmp_path / "nowhere"
    now = work.clock() // MINUTE_MS
    cutover = now - DAY_MINUTES + 2
    windows = [
        Window(FIRST - 5, now + 1, 60),
        Window(FIRST, now + 1, 1 << 40),
        Window(FIRST + 7, now + 1, 1_000),
        Window(FIRST + 100, cutover - 100, 180),
        Window(cutover - 61, cutover + 61, 1),
    ]

    async def everything(found: History) -> list[Any]:
        answers: list[Any] = []
        for window in windows:
            answers.append(shown(await found.roll_ups(window, prefix="", after=None, limit=100)))
            answers.append(await found.completed(window))
            answers.append(await found.latencies(window, after=None, limit=100))
        return answers

    before = arguments(work, nowhere, 1_000, everything)
    work.do(Sweep(minutes_kept=DAY_MINUTES))
    work.do(Sweep(minutes_kept=DAY_MINUTES))
    assert arguments(work, nowhere, 1, everything) != before
    assert arguments(work, lake.folder, 1, everything) == before


def test_an_answer_says_where_it_comes_from_if_it_goes_far_back(three_days: Work, lake: Lake, tmp_path: Path) -> None:
    now = three_days.clock() // MINUTE_MS
    far, near = Window(FIRST, now, 60), Window(now - 60, now, 60)

    async def sources(found: History) -> list[Any]:
        return [await found.source(window) for window in (far, near, None)]

    [source, *others] = arguments(three_days, lake.folder, 1, sources)
    assert (source.note, source.lake_until is not None, others) == (None, True, [None, None])
    [source, *_] = arguments(three_days, tmp_path / "nowhere", 1, sources)
    assert (source.lake_until, source.note) == (
        None,
        "no older history: there is no lake of this journal; run `penstock pipeline`",
    )
    three_days.clock.advance(5 * DAY_MINUTES * MINUTE_MS)
    [source, *_] = arguments(three_days, lake.folder, 1, sources)
    assert "gap" in source.note


def test_a_server_answers_from_the_lake_with_no_spark_running(three_days: Work, lake: Lake) -> None:
    pushed = {info.name: info.totals.pushed for info in three_days.list_queues()}
    acked = sum(info.totals.acked for info in three_days.list_queues())
    days = "from=2023-11-14T00:00:00Z&to=2023-11-20T00:00:00Z"
    with running(three_days.data, metrics_days=1) as server, server.client() as client:
        found = client.get(f"/api/v1/analytics/queues?{days}").json
        assert {each["queue"]: each["stats"]["total"] for each in found["queues"]} == pushed
        assert found["source"]["lakeUntil"].startswith("2023-11-1")
        points = client.get(f"/api/v1/analytics/throughput?{days}&interval=1d").json["throughput"]
        assert sum(point["messagesPerMinute"] * DAY_MINUTES for point in points) == pytest.approx(acked, abs=5)
        [latency, _] = client.get(f"/api/v1/analytics/latency?{days}&interval=1d").json["latency"]
        assert all(latency[kind]["p50"] > 0 for kind in ("wait", "service", "total"))
        assert len(latency["series"]) >= DAYS


def test_the_overview_is_the_same_when_the_store_has_forgotten(three_days: Work, lake: Lake) -> None:
    def load(days_kept: int) -> Any:
        async def ask(found: History) -> Any:
            api = OverviewApi(found._broker, found)
            return json.loads((await api._load((DAYS * DAY_MINUTES, 60))).body)

        return arguments(three_days, lake.folder, days_kept, ask)

    before = load(365)
    three_days.do(Sweep(minutes_kept=DAY_MINUTES))
    after = load(1)
    assert before["totals"]["pushed"] > 100
    for name in ("totals", "wait", "service", "total"):
        assert after[name] == before[name], name
    assert [point["pushed"] for point in after["series"]] == [point["pushed"] for point in before["series"]]


def test_the_lake_of_another_journal_tells_nothing(three_days: Work, lake: Lake) -> None:
    past = GoldHistory(lake.folder, "another")
    window = Window(FIRST, FIRST + 10_000, 60)
    assert past.until() is None
    assert past.roll_ups(window, FIRST + 5_000, QUEUES) == {}


@sends_rows
def test_a_sketch_is_read_as_spark_wrote_it(spark: Any, lake: Lake, three_days: Work) -> None:
    from pyspark.sql import functions as F

    values = [(number * 7919) % 10_007 for number in range(5_000)]
    frame = spark.createDataFrame([(value,) for value in values], "value bigint")
    [row] = frame.agg(F.kll_sketch_agg_bigint("value").alias("sketch")).collect()
    _, found, weights = weighted(pa.array([None, bytes(row.sketch)])[1:])
    assert weights.sum() == len(values)
    below = weights[found <= 5_000].sum() / len(values)
    assert below == pytest.approx(sum(value <= 5_000 for value in values) / len(values), abs=0.02)
    minutes = rows_of(lake, QUEUE_MINUTES)
    rows, _, weights = weighted(pa.array([minute["total_sketch"] for minute in minutes]))
    assert [weights[rows == number].sum() for number in range(len(minutes))] == [each["acked"] for each in minutes]
    assert [len(each) for each in weighted(pa.array([None], pa.binary()))] == [0, 0, 0]


def test_a_lake_that_is_made_anew_is_found_by_a_server_that_had_the_old_one_open(
    spark: Any, three_days: Work, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.lake.gold_history.REFRESH_SECONDS", 0.0)
    folder = tmp_path / "lake"
    shutil.copytree(lake.folder, folder)
    with closing(location_of(three_days.where).open()) as log:
        past = GoldHistory(folder, log.uid)
    expected = past.until()
    assert expected is not None
    for table in lake.tables():
        table.compact()  # Another commit, and other files.
    shutil.rmtree(folder)
    assert past.until() is None
    shutil.copytree(lake.folder, folder)
    assert past.until() == expected
    assert past.roll_ups(Window(FIRST, FIRST + 10_000, 60), FIRST + 5_000, QUEUES) != {}


def test_a_server_finds_the_files_that_took_the_place_of_those_it_knew(
    three_days: Work, lake: Lake, tmp_path: Path
) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(lake.folder, folder)
    with closing(location_of(three_days.where).open()) as log:
        past, app = GoldHistory(folder, log.uid), app_of(log.uid)
    window = Window(FIRST, FIRST + 10_000, 60)
    expected = past.roll_ups(window, FIRST + 5_000, QUEUES)
    minutes = Lake(folder)[QUEUE_MINUTES]
    minutes.put(arrow_of(Lake(folder), QUEUE_MINUTES), app, minutes.position(app) or 0)
    assert minutes.vacuum(0) > 0
    assert past.roll_ups(window, FIRST + 5_000, QUEUES) == expected
    for file in minutes.files():
        Path(file).unlink()
    with pytest.raises(CannotOpen, match="is missing the file"):
        past.roll_ups(window, FIRST + 5_000, QUEUES)
