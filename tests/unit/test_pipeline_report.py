"""The report's numbers, from a lake made without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import InvalidInput
from penstock.pipeline.lake import Lake
from penstock.pipeline.report import report
from penstock.pipeline.tables import COUNTS, QUEUE_MINUTES

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.create()
    return made


def add_minutes(lake: Lake, queues: int, minutes: int, depth: int) -> None:
    counts = {**dict.fromkeys(COUNTS, 0), "pushed": depth, "depth": depth}
    rows = [
        {**dict.fromkeys(QUEUE_MINUTES.schema.names), **counts, "queue": f"q{queue}", "minute": minute}
        for queue in range(queues)
        for minute in (NOON + timedelta(minutes=number) for number in range(minutes))
    ]
    lake[QUEUE_MINUTES].put(pa.Table.from_pylist(rows, schema=QUEUE_MINUTES.schema), "test", 1)


def test_the_depth_is_that_of_all_queues_together_however_many(lake: Lake) -> None:
    add_minutes(lake, queues=70, minutes=3, depth=3)
    depth = report(lake, None, None).split("<h2>Depth</h2>")[1].split("</svg>")[0]
    assert ">210<" in depth


def test_a_span_in_which_nothing_happened_is_refused(lake: Lake) -> None:
    add_minutes(lake, queues=1, minutes=1, depth=1)
    with pytest.raises(InvalidInput, match="nothing happened"):
        report(lake, NOON + timedelta(days=1), None)
