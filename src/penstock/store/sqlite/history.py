"""Queue history over a window, from the counters at the end of each step."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from penstock.core.model import RollUp, Window
from penstock.core.sql_files import load_sql
from penstock.store.common import GAUGES, TOTALS, depth_of, span_of
from penstock.store.sqlite.queues import SqliteQueue

SQL = load_sql("penstock.store.sqlite", "history")
COUNTED = (*GAUGES, *(f"n_{name}" for name in TOTALS))
NOTHING = (-1, *(0 for _ in COUNTED))


def roll_up(connection: sqlite3.Connection, queue: SqliteQueue, window: Window) -> RollUp:
    """Return the history of a queue. Reads one row per step with events, however long the window is."""
    current = (queue.minute, *(getattr(queue, name) for name in COUNTED))

    def totals_before(minute: int) -> Sequence[int]:
        if queue.minute < minute:
            return current
        row: Sequence[int] | None = connection.execute(SQL["totals_before"], (queue.id, minute)).fetchone()
        return row or NOTHING

    spans = []
    later = totals_before(window.to_minute)
    while later[0] >= window.from_minute:
        start = window.start_of(later[0])
        earlier = totals_before(start)
        happened = [after - before for after, before in zip(later[1:], earlier[1:], strict=True)]
        spans.append(span_of(start, happened, later[1:]))
        later = earlier
    return RollUp(queue.info(), depth_of(later[1:]), spans[::-1])
