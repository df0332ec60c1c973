"""From the journal to the lake: what happened, once each, and what it adds up to."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.pipeline.lake import Lake
from penstock.pipeline.run import Pipeline
from penstock.pipeline.tables import BRONZE, QUEUES, SILVER, STATES
from tests.spark.support import Work, check_minutes, events_in, lives_in, rows_of

pytestmark = pytest.mark.spark


def run(spark: Any, work: Work, lake: Lake) -> None:
    with Pipeline(spark, work.drained(), lake) as pipeline:
        for _ in pipeline.steps():
            pass


def check(work: Work, lake: Lake) -> None:
    """Every table says what the journal says."""
    events = list(events_in(work.journal))
    bronze = rows_of(lake, BRONZE)
    assert [(row["offset"], row["number"], row["kind"], row["id"], row["body"]) for row in bronze] == [
        (event.offset, event.number, event.kind, event.id, event.body) for event in events
    ]
    expected = sorted(lives_in(work.journal), key=lambda life: (life["offset"], life["id"]))
    found = sorted(rows_of(lake, SILVER), key=lambda life: (life["offset"], life["id"]))
    shown = [{**row, "errors": [each["error"] for each in row["errors"] or []]} for row in found]
    assert [{name: row[name] for name in expected[0]} for row in shown] == expected
    check_minutes(lake)
    for row in rows_of(lake, QUEUES):
        info = work.store.find_queue(row["queue"])
        held = (info.ready + info.scheduled, info.leased, info.dead) if info else (0, 0, 0)
        assert tuple(row[f"{state}_now"] for state in STATES) == held


def test_the_lake_says_what_the_journal_says_in_one_step_or_in_many(spark: Any, work: Work, lake: Lake) -> None:
    for part in range(3):
        work.some(300, seed=part)
        run(spark, work, lake)
        check(work, lake)
