"""Queries of the SQLite store on one connection."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from penstock.core.ids import ID_MAX, message_id_of, message_uuid
from penstock.core.latency import latencies_of
from penstock.core.model import Ages, Failure, Latencies, QueueInfo, RollUp, Window
from penstock.core.sql_files import load_sql
from penstock.store.common import NEVER, TOTALS, ByteBudget, ages_of
from penstock.store.queries import Row, StoreQueries
from penstock.store.sqlite.history import roll_up
from penstock.store.sqlite.latency import SQL as LATENCY
from penstock.store.sqlite.queues import LIST, LOAD, SqliteQueue

SQL = load_sql("penstock.store.sqlite", "queries")


class SqliteQueries(StoreQueries[SqliteQueue]):
    """Reads on one connection. The caller holds its lock and, for several reads of one snapshot, a transaction."""

    def __init__(self, connection: sqlite3.Connection, store_id: int, now: int) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._store_id = store_id
        self._time = now

    def _rows(self, statement: str, *values: Any) -> list[Row]:
        return self._execute(SQL[statement], values).fetchall()

    def _page(self, statement: str, *values: int) -> list[Row]:
        return ByteBudget(self._page_bytes).fetch(self._execute(SQL[statement], values))

    def find(self, name: str) -> SqliteQueue | None:
        row = self._execute(LOAD, (name,)).fetchone()
        return None if row is None else SqliteQueue(row)

    def locate(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        return [self._locate(name) for name in names]

    def _locate(self, name: str) -> tuple[str, int] | None:
        message_id = message_id_of(name, self._store_id)
        statement, value = ("global_key", name) if message_id is None else ("home_of", message_id)
        found: tuple[str, int] | None = self._execute(SQL[statement], (value,)).fetchone()
        return found

    def held(self, name: str, uuids: Sequence[str]) -> set[str]:
        queue = self.queue(name)
        found = set()
        for message_id in filter(None, (message_id_of(uuid, self._store_id) for uuid in uuids)):
            for (created_at,) in self._rows("held", *_row_keys(queue, message_id)):
                found.add(message_uuid(message_id, created_at, self._store_id))
        return found.intersection(uuids)

    def list_queues(self, prefix: str, after: str | None, limit: int) -> list[QueueInfo]:
        rows = self._execute(LIST, (after or "", prefix, limit))
        return [SqliteQueue(row).info() for row in rows]

    def roll_ups(self, window: Window, prefix: str, after: str | None, limit: int) -> list[RollUp]:
        rows = self._execute(LIST, (after or "", prefix, limit)).fetchall()
        return [roll_up(self._connection, SqliteQueue(row), window) for row in rows]

    def latencies(self, window: Window, prefix: str, after: str | None, limit: int) -> list[Latencies]:
        rows = self._execute(LIST, (after or "", prefix, limit)).fetchall()
        bounds = (window.from_minute, window.to_minute)
        return [latencies_of(row[1], self._execute(LATENCY["between"], (row[0], *bounds)), window) for row in rows]

    def _leased_page(self, queue: SqliteQueue, at: int, message_id: int, limit: int) -> list[Row]:
        pages = [self._page(name, queue.id, at, message_id, limit) for name in ("leased", "leased_in_ranges")]
        # No id occurs twice, so the comparison never reaches the columns after it.
        return list(islice(ByteBudget(self._page_bytes).take(heapq.merge(*pages)), limit))

    def _message_rows(self, queue: SqliteQueue, message_id: int) -> list[Row]:
        return self._rows("message", *_row_keys(queue, message_id))

    def _lease_row(self, queue: SqliteQueue, row_key: int) -> Row:
        here = (queue.id, row_key & ID_MAX)
        # Another lane may have the ids between those of a range.
        in_range = self._rows("range_of", *here) if row_key < queue.plain_end else []
        return (in_range or self._rows("lease_of", *here))[0]

    def _failures(self, message_ids: Sequence[int]) -> Mapping[int, list[Failure]]:
        return {each: [Failure(*row) for row in self._execute(SQL["failures"], (each,))] for each in message_ids}

    def _now(self, queue: SqliteQueue) -> int:
        return self._time

    def _latency_rows(self, queue: SqliteQueue, from_minute: int) -> list[Any]:
        return self._execute(LATENCY["between"], (queue.id, from_minute, NEVER)).fetchall()

    def ages(self, names: Sequence[str]) -> dict[str, Ages]:
        return {name: self._ages(queue) for name in names if (queue := self.find(name))}

    def _ages(self, queue: SqliteQueue) -> Ages:
        return ages_of(self._execute(SQL["waiting"], (queue.id, queue.cursor, queue.plain_end)), self._time)

    def _totals_since(self, queue: SqliteQueue, minute: int) -> Sequence[int]:
        totals = [getattr(queue, f"n_{name}") for name in TOTALS]
        if queue.minute < minute:
            return [0] * len(totals)
        before = self._execute(SQL["totals_at"], (queue.id, minute - 1)).fetchone() or [0] * len(totals)
        return [total - old for total, old in zip(totals, before, strict=True)]


def _row_keys(queue: SqliteQueue, message_id: int) -> tuple[int, int]:
    return queue.row_key(message_id, plain=True), queue.row_key(message_id, plain=False)
