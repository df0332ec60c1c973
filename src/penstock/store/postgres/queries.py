"""Queries of the PostgreSQL store in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.ids import ID_BITS, ID_MAX, QUEUE_SHIFT, message_id_of, message_uuid
from penstock.core.latency import latencies_of
from penstock.core.model import Ages, Failure, Latencies, QueueInfo, QueueOptions, RollUp, Window, decode_options
from penstock.postgres.pipeline import PipelinedConnection, Row, Rows, Statement, ints, texts
from penstock.store.common import NEVER, ages_of
from penstock.store.postgres.context import StoreContext
from penstock.store.postgres.history import roll_up
from penstock.store.postgres.queues import queue_info
from penstock.store.queries import StoreQueries


class QueueRow:
    """A queue as read from the database."""

    def __init__(self, row: Row) -> None:
        self.id, self.name, options, self.paused, self.created_at, self.cursor, self.now, *counts = row
        self.options: QueueOptions = decode_options(options)
        self.counts: tuple[int, ...] = tuple(counts)
        self.plain_start: int = self.id << QUEUE_SHIFT
        self.plain_end: int = self.plain_start + (1 << ID_BITS)

    def row_keys(self, *message_ids: int) -> bytes:
        return ints(lane | message_id for message_id in message_ids for lane in (self.plain_start, self.plain_end))

    def info(self) -> QueueInfo:
        return queue_info(self.name, self.options, self.paused, self.created_at, self.counts)


class PostgresQueries(StoreQueries[QueueRow]):
    """Reads in one transaction, which the first query begins and the caller ends."""

    def __init__(self, wire: PipelinedConnection, context: StoreContext) -> None:
        self._wire = wire
        self._context = context
        self._store_id = context.store_id
        self._begin = [Statement(context.sql["begin.begin_reading"])]
        if context.clock is not None:
            self._begin.append(Statement(context.sql["begin.move_clock"], (context.clock(),)))

    def fetch(self, name: str, *params: Any) -> Rows:
        begin, self._begin = self._begin, []
        return self._wire.run([*begin, Statement(self._context.sql[name], params)])[-1]

    def _rows(self, statement: str, *values: Any) -> Rows:
        return self.fetch(f"queries.{statement}", *values)

    def _page(self, statement: str, *values: int) -> Rows:
        return self._rows(statement, *values, self._page_bytes)

    def find(self, name: str) -> QueueRow | None:
        rows = self._rows("queue", texts([name]))
        return QueueRow(rows[0]) if rows else None

    def locate(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        ids = {name: message_id_of(name, self._store_id) for name in names}
        found: dict[str | int, tuple[str, int]] = {}
        if keys := [name for name, message_id in ids.items() if message_id is None and name.isprintable()]:
            found |= {key: (queue, number) for key, queue, number in self._rows("global_keys", texts(keys))}
        if numbers := [message_id for message_id in ids.values() if message_id is not None]:
            found |= {number: (queue, number) for queue, number in self._rows("homes", ints(numbers))}
        return [found.get(name if (number := ids[name]) is None else number) for name in names]

    def held(self, name: str, uuids: Sequence[str]) -> set[str]:
        ids = list(filter(None, (message_id_of(uuid, self._store_id) for uuid in uuids)))
        queue = self.queue(name)
        rows = self._rows("held", queue.row_keys(*ids)) if ids else []
        return {message_uuid(message_id, at, self._store_id) for message_id, at in rows}.intersection(uuids)

    def list_queues(self, prefix: str, after: str | None, limit: int) -> list[QueueInfo]:
        return [QueueRow(row).info() for row in self._rows("queues", after or "", prefix, limit)]

    def roll_ups(self, window: Window, prefix: str, after: str | None, limit: int) -> list[RollUp]:
        queues = [QueueRow(row) for row in self._rows("queues", after or "", prefix, limit)]
        bounds = (window.from_minute, window.step_minutes, window.to_minute, len(window.starts))
        changes: dict[int, dict[int, Row]] = {queue.id: {} for queue in queues}
        for queue_id, step, *happened in self.fetch("history.changes", ints(changes), *bounds) if queues else ():
            changes[queue_id][step] = tuple(happened)
        return [roll_up(queue.info(), queue.counts, changes[queue.id], window) for queue in queues]

    def latencies(self, window: Window, prefix: str, after: str | None, limit: int) -> list[Latencies]:
        names = {row[0]: row[1] for row in self._rows("queues", after or "", prefix, limit)}
        rows: dict[int, list[Any]] = {queue_id: [] for queue_id in names}
        for queue_id, *row in self.fetch("latency.between", ints(names), window.from_minute, window.to_minute):
            rows[queue_id].append(row)
        return [latencies_of(name, rows[queue_id], window) for queue_id, name in names.items()]

    def _leased_page(self, queue: QueueRow, at: int, message_id: int, limit: int) -> Rows:
        return self._page("leased", queue.id, at, message_id, limit)

    def _message_rows(self, queue: QueueRow, message_id: int) -> Rows:
        return self._rows("message", queue.row_keys(message_id))

    def _lease_row(self, queue: QueueRow, row_key: int) -> Row:
        return self._rows("lease_of", queue.id, row_key & ID_MAX)[0]

    def _failures(self, message_ids: Sequence[int]) -> Mapping[int, list[Failure]]:
        found: dict[int, list[Failure]] = {}
        for message_id, *failure in self._rows("failures", ints(message_ids)) if message_ids else ():
            found.setdefault(message_id, []).append(Failure(*failure))
        return found

    def _now(self, queue: QueueRow) -> int:
        return int(queue.now)

    def _latency_rows(self, queue: QueueRow, from_minute: int) -> list[Any]:
        return [row for _, *row in self.fetch("latency.between", ints([queue.id]), from_minute, NEVER)]

    def ages(self, names: Sequence[str]) -> dict[str, Ages]:
        waiting: dict[tuple[str, int], list[Row]] = {}
        for name, now, *candidate in self._rows("waiting", texts(names)):
            waiting.setdefault((name, now), []).extend([tuple(candidate)] if candidate[0] is not None else [])
        return {name: ages_of(candidates, now) for (name, now), candidates in waiting.items()}

    def _totals_since(self, queue: QueueRow, minute: int) -> Sequence[int]:
        (happened,) = self._rows("totals_since", queue.id, minute)
        return happened
