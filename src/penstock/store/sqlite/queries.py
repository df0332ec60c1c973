"""Read-only queries: peek, get, list, stats and export, each from one snapshot of the file."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from penstock.core.error_groups import ERROR_READ_MAX
from penstock.core.ids import DLQ_SUFFIX, ID_MAX, message_id_of, message_uuid
from penstock.core.latency import latencies_of, latency_of
from penstock.core.model import (
    LEASE_BYTES_MAX,
    Ages,
    DeadError,
    Failure,
    Latencies,
    QueueInfo,
    QueueStats,
    RollUp,
    State,
    StoredMessage,
    Window,
)
from penstock.core.sql_files import load_sql
from penstock.errors import UnknownQueue
from penstock.store.common import (
    CONTENTS,
    EXPORT_BYTES,
    NEVER,
    TOTALS,
    ByteBudget,
    add_tracebacks,
    ages_of,
    next_page,
    position,
)
from penstock.store.sqlite.history import roll_up
from penstock.store.sqlite.latency import SQL as LATENCY
from penstock.store.sqlite.queues import LIST, LOAD, SqliteQueue

SQL = load_sql("penstock.store.sqlite", "queries")
Row = tuple[Any, ...]
Page = tuple[list[StoredMessage], str | None]
EXPORT_PAGE = 1_000
RATE_MINUTES = (1, 5, 15)
LATENCY_MINUTES = 15


class SqliteQueries:
    """Reads on one connection. The caller holds its lock and, for several reads of one snapshot, a transaction."""

    def __init__(self, connection: sqlite3.Connection, store_id: int, now: int) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._store_id = store_id
        self._now = now
        self._page_bytes = LEASE_BYTES_MAX

    def find(self, name: str) -> SqliteQueue | None:
        row = self._execute(LOAD, (name,)).fetchone()
        return None if row is None else SqliteQueue(row)

    def queue(self, name: str) -> SqliteQueue:
        queue = self.find(name) or self.find(name.removesuffix(DLQ_SUFFIX))
        if queue is None:
            raise UnknownQueue(name)
        return queue

    def locate(self, name: str) -> tuple[str, int] | None:
        message_id = message_id_of(name, self._store_id)
        statement, value = ("global_key", name) if message_id is None else ("home_of", message_id)
        found: tuple[str, int] | None = self._execute(SQL[statement], (value,)).fetchone()
        return found

    def held(self, name: str, uuids: Sequence[str]) -> set[str]:
        queue = self.queue(name)
        found = set()
        for message_id in filter(None, (message_id_of(uuid, self._store_id) for uuid in uuids)):
            row_keys = (queue.row_key(message_id, plain=True), queue.row_key(message_id, plain=False))
            if row := self._execute(SQL["held"], row_keys).fetchone():
                found.add(message_uuid(message_id, row[0], self._store_id))
        return found.intersection(uuids)

    def list_queues(self, prefix: str, after: str | None, limit: int) -> list[QueueInfo]:
        rows = self._execute(LIST, (after or "", prefix, limit))
        return [SqliteQueue(row).info() for row in rows]

    def forwarders(self, target: str | None) -> list[str]:
        if target is None:
            return [name for (name,) in self._execute(SQL["forwarding"])]
        return [name for (name,) in self._execute(SQL["naming"], (f'"dlq":"{target}"',))]

    def roll_ups(self, window: Window, prefix: str, after: str | None, limit: int) -> list[RollUp]:
        rows = self._execute(LIST, (after or "", prefix, limit)).fetchall()
        return [roll_up(self._connection, SqliteQueue(row), window) for row in rows]

    def latencies(self, window: Window, prefix: str, after: str | None, limit: int) -> list[Latencies]:
        rows = self._execute(LIST, (after or "", prefix, limit)).fetchall()
        bounds = (window.from_minute, window.to_minute)
        return [latencies_of(row[1], self._execute(LATENCY["between"], (row[0], *bounds)), window) for row in rows]

    def peek(self, name: str, state: State, limit: int, after: str | None) -> Page:
        if self.find(name) is None and name.endswith(DLQ_SUFFIX):
            state = State.DEAD
        return _PEEKS[state](self, self.queue(name), limit, after)

    def _peek_ready(self, queue: SqliteQueue, limit: int, after: str | None) -> Page:
        rank, available_at, message_id, cursor = position(after, (-NEVER, 0, 0, queue.cursor))
        indexed = self._page("ready", queue.id, rank, available_at, message_id, limit)
        plain_start = max(cursor, queue.cursor)
        plain = self._page("plain", plain_start, queue.plain_end, limit)
        # No id occurs in both lists, so the comparison never reaches the columns after it.
        plain_ids = {row[2] for row in plain}
        messages, room = [], ByteBudget(self._page_bytes)
        for row in islice(room.take(heapq.merge(indexed, plain)), limit):
            if row[2] in plain_ids:
                plain_start = queue.row_key(row[2], plain=True)
            else:
                rank, available_at, message_id = row[:3]
            messages.append(
                self._message(
                    queue,
                    State.READY,
                    row[2],
                    row[6:],
                    available_at=row[1],
                    attempts=row[3],
                    first_leased_at=row[4],
                    expires_at=row[5],
                )
            )
        more = f"{rank}:{available_at}:{message_id}:{plain_start}"
        return messages, more if room.is_full or len(messages) == limit else None

    def _page(self, statement: str, *values: int) -> list[Row]:
        """Return rows up to the size of one page."""
        return ByteBudget(self._page_bytes).fetch(self._execute(SQL[statement], values))

    def _peek_scheduled(self, queue: SqliteQueue, limit: int, after: str | None) -> Page:
        at, message_id = position(after, (-1, -1))
        rows = self._page("scheduled", queue.id, at, message_id, limit)
        messages = [
            self._message(
                queue,
                State.SCHEDULED,
                row[1],
                row[5:],
                available_at=row[0],
                attempts=row[2],
                first_leased_at=row[3],
                expires_at=row[4],
            )
            for row in rows
        ]
        return messages, next_page(rows, limit, self._page_bytes)

    def _peek_leased(self, queue: SqliteQueue, limit: int, after: str | None) -> Page:
        at, message_id = position(after, (-1, -1))
        pages = [self._page(name, queue.id, at, message_id, limit) for name in ("leased", "leased_in_ranges")]
        # No id occurs twice, so the comparison never reaches the columns after it.
        rows = list(islice(ByteBudget(self._page_bytes).take(heapq.merge(*pages)), limit))
        return [self._leased(queue, row[:7], row[7:]) for row in rows], next_page(rows, limit, self._page_bytes)

    def _peek_dead(self, queue: SqliteQueue, limit: int, after: str | None) -> Page:
        at, message_id = position(after, (NEVER, NEVER))
        rows = self._page("dead", queue.id, at, message_id, limit)
        return [self._dead(queue, row[:5], row[5:]) for row in rows], next_page(rows, limit, self._page_bytes)

    def _peek_archived(self, queue: SqliteQueue, limit: int, after: str | None) -> Page:
        at, message_id = position(after, (NEVER, NEVER))
        rows = self._page("archived", queue.id, at, message_id, limit)
        return [self._archived(queue, row[:5], row[5:]) for row in rows], next_page(rows, limit, self._page_bytes)

    def dead_errors(
        self, name: str, contains: str, limit: int, after: str | None
    ) -> tuple[list[DeadError], str | None]:
        at, message_id = position(after, (NEVER, NEVER))
        values = (ERROR_READ_MAX, contains, self.queue(name).id, at, message_id, limit)
        rows = self._execute(SQL["dead_errors"], values).fetchall()
        found = [DeadError(message_id, at, error, bool(wanted)) for at, message_id, error, wanted in rows]
        return found, f"{rows[-1][0]}:{rows[-1][1]}" if len(rows) == limit else None

    def get(self, name: str, message_id: int) -> StoredMessage | None:
        found = self._find(name, message_id)
        if found is not None and found.errors:
            add_tracebacks(found, self._execute(SQL["tracebacks"], (message_id,)))
        return found

    def _find(self, name: str, message_id: int) -> StoredMessage | None:
        queue = self.queue(name)
        if not 0 < message_id <= ID_MAX:
            return None
        row_keys = (queue.row_key(message_id, plain=True), queue.row_key(message_id, plain=False))
        row = self._execute(SQL["message"], row_keys).fetchone()
        if row is None:
            return None
        row_key, created_at, available_at, priority, *rest = row
        body = (created_at, priority, *rest)
        body_with_time = (created_at, available_at, priority, *rest)
        here = (message_id, queue.id)
        if dead := self._execute(SQL["dead_of"], here).fetchone():
            return self._dead(queue, dead, body_with_time)
        if archived := self._execute(SQL["archived_of"], here).fetchone():
            return self._archived(queue, archived, body_with_time)
        state, indexed = State.READY, (0, None, None)
        if not queue.cursor < row_key < queue.plain_end:
            scheduled = self._execute(SQL["scheduled_of"], (queue.id, available_at, message_id)).fetchone()
            if scheduled:
                state = State.SCHEDULED
            indexed = (
                scheduled or self._execute(SQL["ready_of"], (queue.id, -priority, available_at, message_id)).fetchone()
            )
        if indexed is None:
            here = (queue.id, message_id)
            # Another lane may have the ids between those of a range.
            in_range = self._execute(SQL["range_of"], here).fetchone() if row_key < queue.plain_end else None
            lease = in_range or self._execute(SQL["lease_of"], here).fetchone()
            return self._leased(queue, lease, body_with_time)
        attempts, first_leased_at, expires_at = indexed
        return self._message(
            queue,
            state,
            message_id,
            body,
            available_at=available_at,
            attempts=attempts,
            first_leased_at=first_leased_at,
            expires_at=expires_at,
        )

    def stats(self, name: str) -> QueueStats:
        queue = self.queue(name)
        ages = self._ages(queue)
        latest = (queue.id, self._now // 60_000 - LATENCY_MINUTES, NEVER)
        latency = latency_of(self._execute(LATENCY["between"], latest))
        return QueueStats(
            info=queue.info(),
            head_age_ms=ages.head_ms,
            oldest_age_ms=ages.oldest_ms,
            rates=self._rates(queue),
            latency=latency,
        )

    def ages(self, names: Sequence[str]) -> dict[str, Ages]:
        return {name: self._ages(queue) for name in names if (queue := self.find(name))}

    def _ages(self, queue: SqliteQueue) -> Ages:
        return ages_of(self._execute(SQL["waiting"], (queue.id, queue.cursor, queue.plain_end)), self._now)

    def _rates(self, queue: SqliteQueue) -> dict[str, dict[str, float]]:
        totals = [getattr(queue, f"n_{name}") for name in TOTALS]
        minute = self._now // 60_000
        rates = {}
        for span in RATE_MINUTES:
            last = minute - span - 1
            before: Sequence[int] = totals
            if queue.minute > last:
                row = self._execute(SQL["totals_at"], (queue.id, last)).fetchone()
                before = row or (0,) * len(TOTALS)
            seconds = span * 60 + self._now % 60_000 / 1000
            rates[f"{span}m"] = {
                name: round((total - old) / seconds, 3) for name, total, old in zip(TOTALS, totals, before, strict=True)
            }
        return rates

    def export(self, name: str) -> Iterator[StoredMessage]:
        queue = self.queue(name)
        self._page_bytes = EXPORT_BYTES
        # As in peek, a name that ends in .dlq selects the dead letters only.
        for peek in _PEEKS.values() if queue.name == name else [_PEEKS[State.DEAD]]:
            after: str | None = None
            while True:
                messages, after = peek(self, queue, EXPORT_PAGE, after)
                yield from messages
                if after is None:
                    break

    def _leased(self, queue: SqliteQueue, lease: Row, body: Row) -> StoredMessage:
        leased_until, message_id, attempts, first_leased_at, expires_at, leased_at, worker = lease
        return self._message(
            queue,
            State.LEASED,
            message_id,
            (body[0], *body[2:]),
            available_at=body[1],
            attempts=attempts,
            first_leased_at=first_leased_at,
            expires_at=expires_at,
            leased_at=leased_at,
            leased_until=leased_until,
            worker=worker,
        )

    def _dead(self, queue: SqliteQueue, dead: Row, body: Row) -> StoredMessage:
        died_at, message_id, attempts, first_leased_at, reason = dead
        return self._message(
            queue,
            State.DEAD,
            message_id,
            (body[0], *body[2:]),
            available_at=body[1],
            attempts=attempts,
            first_leased_at=first_leased_at,
            finished_at=died_at,
            reason=reason,
        )

    def _archived(self, queue: SqliteQueue, archived: Row, body: Row) -> StoredMessage:
        archived_at, message_id, attempts, first_leased_at, leased_at = archived
        return self._message(
            queue,
            State.ARCHIVED,
            message_id,
            (body[0], *body[2:]),
            available_at=body[1],
            attempts=attempts,
            first_leased_at=first_leased_at,
            leased_at=leased_at,
            finished_at=archived_at,
        )

    def _message(self, queue: SqliteQueue, state: State, message_id: int, body: Row, **known: Any) -> StoredMessage:
        created_at, priority, content, key, headers, payload = body
        errors: list[Failure] = []
        if known["attempts"]:
            errors = [Failure(*row) for row in self._execute(SQL["failures"], (message_id,))]
        return StoredMessage(
            id=message_id,
            uuid=message_uuid(message_id, created_at, self._store_id),
            queue=queue.name,
            state=state,
            payload=payload,
            content=CONTENTS[content],
            priority=priority,
            created_at=created_at,
            key=key,
            headers=None if headers is None else msgspec.json.decode(headers),
            errors=errors,
            **known,
        )


_PEEKS: dict[State, Callable[[SqliteQueries, SqliteQueue, int, str | None], Page]] = {
    State.READY: SqliteQueries._peek_ready,
    State.SCHEDULED: SqliteQueries._peek_scheduled,
    State.LEASED: SqliteQueries._peek_leased,
    State.DEAD: SqliteQueries._peek_dead,
    State.ARCHIVED: SqliteQueries._peek_archived,
}
