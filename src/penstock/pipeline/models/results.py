"""What became of expectations at their last check: the table `model.expectations`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from msgspec import Struct

from penstock.journal.arrow import TIME, columns
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import Table
from penstock.pipeline.models.definitions import Definitions
from penstock.pipeline.models.expectations import Expectation, expectation

EXPECTATIONS = Table(
    "model.expectations",
    columns(
        ("model", pa.string()),
        ("expectation", pa.string()),
        ("action", pa.string(), "warn, quarantine, stop"),
        ("passed", pa.bool_()),
        ("failed", pa.int64(), "rows of the last check that failed; for unique, values that occur twice"),
        ("newest", TIME, "for fresh: the newest time in the column"),
        ("position", pa.int64(), "journal offset up to which rows were checked"),
        ("checked_at", TIME),
    ),
    ("model", "expectation"),
    (),
    "one row per expectation: the result of its last check",
    changes=True,
)


class Result(Struct, frozen=True):
    """The result of one expectation."""

    model: str
    expectation: str
    action: str
    failed: int
    position: int
    newest: datetime | None = None

    @property
    def passed(self) -> bool:
        return self.failed == 0


def save(lake: Lake, results: Sequence[Result], app: str, position: int) -> None:
    if not results:
        return
    table, now = lake[EXPECTATIONS], datetime.now(UTC)
    table.create()
    rows: list[dict[str, Any]] = [
        {
            "model": each.model,
            "expectation": each.expectation,
            "action": each.action,
            "passed": each.passed,
            "failed": each.failed,
            "newest": each.newest,
            "position": each.position,
            "checked_at": now,
        }
        for each in results
    ]
    table.refresh().put(pa.Table.from_pylist(rows, schema=EXPECTATIONS.schema), app, position)


def load(lake: Lake) -> list[dict[str, Any]]:
    """Return the last result of each expectation. `fresh` depends on the time of the call."""
    table = lake[EXPECTATIONS]
    if not table.exists():
        return []
    present = {
        (definition.name, each.text)
        for definition in Definitions(lake).all().values()
        for each in definition.expectations
    }
    every: list[dict[str, Any]] = table.refresh().dataset().to_table().to_pylist()
    rows = [row for row in every if (row["model"], row["expectation"]) in present]
    for row in rows:
        each = expectation(row["expectation"])
        if each.check == "fresh":
            row["failed"] = 0 if is_fresh(each, row["newest"]) else 1
            row["passed"] = not row["failed"]
    return sorted(rows, key=lambda row: (row["model"], row["expectation"]))


def is_fresh(each: Expectation, newest: datetime | None) -> bool:
    return newest is not None and datetime.now(UTC) - newest <= each.age
