"""The figures of the report, from a lake made without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click import BadParameter

from penstock.cli.pipeline_tables import Time
from penstock.core.latency import bucket
from penstock.core.model import Window
from penstock.errors import InvalidInput
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.sketches import buckets
from penstock.pipeline.lake.tables import COUNTS, QUEUE_MINUTES, QUEUES, Table
from penstock.pipeline.report.plots import stairs
from penstock.pipeline.report.report import report
from penstock.pipeline.report.summary import summary_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.create()
    return made


def fill(lake: Lake, pushes: dict[str, dict[int, int]]) -> None:
    """Fill the lake with pushes and nothing else: their number by queue and by minute after noon."""
    minutes: list[dict[str, Any]] = []
    queues: list[dict[str, Any]] = []
    for queue, by_minute in pushes.items():
        held = 0
        for minute, count in sorted(by_minute.items()):
            held += count
            changed = {"pushed": count, "waiting_change": count, "waiting_end": held, "depth": held}
            minutes.append(row_of(QUEUE_MINUTES, queue=queue, minute=NOON + timedelta(minutes=minute), **changed))
        queues.append(row_of(QUEUES, queue=queue, pushed=held, waiting_now=held))
    for table, rows in ((QUEUE_MINUTES, minutes), (QUEUES, queues)):
        lake[table].put(pa.Table.from_pylist(rows, schema=table.schema), "test", 1)


def row_of(table: Table, **values: Any) -> dict[str, Any]:
    numbers = {field.name: 0 for field in table.schema if field.type == pa.int64() and not field.name.endswith("_ms")}
    return {**dict.fromkeys(table.schema.names), **numbers, **dict.fromkeys(COUNTS, 0), **values}


def depth_in(page: str) -> str:
    return page.split("<h2>Depth</h2>")[1].split("</svg>")[0]


def test_the_depth_is_the_sum_of_all_queues(lake: Lake) -> None:
    fill(lake, {f"q{number}": {0: 3, 1: 0, 2: 0} for number in range(70)})
    assert ">210<" in depth_in(report(lake, None, None))


def test_the_depth_includes_queues_without_activity_in_the_span(lake: Lake) -> None:
    fill(lake, {"before": {0: 5}, "around": {0: 20, 30: 1}, "after": {30: 100}, "busy": {0: 1, 11: 2}})
    start, end = NOON + timedelta(minutes=10), NOON + timedelta(minutes=20)
    found = summary_of(lake, start, end, None)
    assert found.held("depth").tolist() == [26, *[28] * 9]
    assert {name: each.depth for name, each in found.queues.items()} == {
        "before": 5,
        "around": 20,
        "after": 0,
        "busy": 3,
    }
    assert ">28<" in depth_in(report(lake, start, end))
    assert summary_of(lake, start, end, "around").held("depth").tolist() == [20] * 10


def test_a_step_without_activity_is_zero_and_a_span_of_them_can_be_reported(lake: Lake) -> None:
    fill(lake, {"mail": {0: 6, 4: 2}})
    assert summary_of(lake, None, None, None).a_minute("pushed") == [6, 0, 0, 0, 2]
    quiet = summary_of(lake, NOON + timedelta(minutes=1), NOON + timedelta(minutes=3), None)
    assert quiet.a_minute("pushed") == [0, 0]
    assert ">6<" in depth_in(report(lake, NOON + timedelta(minutes=1), NOON + timedelta(minutes=3)))


def test_a_year_is_divided_into_days_and_a_shorter_last_step(lake: Lake) -> None:
    fill(lake, {"mail": {0: 1_440, 365 * 1_440 - 1: 720, 365 * 1_440 + 719: 720}})
    found = summary_of(lake, None, None, None)
    assert (found.window.step_minutes, len(found.window.starts)) == (1_440, 366)
    assert [found.a_minute("pushed")[step] for step in (0, 1, 364, 365)] == [1, 0, 0.5, 1]
    assert len(found.hours()[0]) == 7


def test_a_span_without_data_is_refused(lake: Lake) -> None:
    fill(lake, {"mail": {0: 1}})
    with pytest.raises(InvalidInput, match=r"no data in that span.*2026-01-01 12:00"):
        report(lake, NOON + timedelta(days=1), None)
    with pytest.raises(InvalidInput, match="no data in that span"):
        report(lake, None, NOON - timedelta(days=1))
    with pytest.raises(InvalidInput, match="before its start"):
        report(lake, NOON, NOON)


def test_an_unknown_queue_is_named(lake: Lake) -> None:
    with pytest.raises(InvalidInput, match="has no data of any queue"):
        report(lake, None, None)
    fill(lake, {"mail": {0: 1}})
    with pytest.raises(InvalidInput, match="has no data of the queue post"):
        report(lake, None, None, "post")


def test_a_line_has_a_gap_where_there_is_no_value() -> None:
    drawn = stairs({"p50": [1, None, 3, 4]}, Window(0, 8, 2), times=True)
    assert drawn.count("<polyline") == 2
    assert "nothing" in stairs({"p50": [None] * 4}, Window(0, 8, 2), times=True)


def test_bulk_and_single_bucketing_agree() -> None:
    times = [-5, *range(5_000), *(1 << power for power in range(40)), *((1 << power) - 1 for power in range(40))]
    assert buckets(np.array(times)).tolist() == [bucket(each) for each in times]


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31 12:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_a_time_is_in_utc_or_has_an_offset(text: str, time: datetime) -> None:
    assert Time().convert(text, None, None) == time


def test_a_span_can_start_at_a_relative_time() -> None:
    before = datetime.now(UTC)
    found = Time().convert("2h", None, None)
    assert before <= found + timedelta(hours=2) <= datetime.now(UTC)
    with pytest.raises(BadParameter, match="not a time such as"):
        Time().convert("yesterday", None, None)
