"""Read-only queries: peek, get, list, stats and export, each from one snapshot of the database."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from penstock.core.error_groups import ERROR_READ_MAX
from penstock.core.ids import DLQ_SUFFIX, ID_BITS, ID_MAX, QUEUE_SHIFT, message_id_of, message_uuid
from penstock.core.latency import latencies_of, latency_of
from penstock.core.model import (
    LEASE_BYTES_MAX,
    Ages,
    DeadError,
    Failure,
    Latencies,
    QueueInfo,
    QueueOptions,
    QueueStats,
    RollUp,
    State,
    StoredMessage,
    Window,
    decode_options,
)
from penstock.errors import UnknownQueue
from penstock.postgres.pipeline import PipelinedConnection, Row, Rows, Statement, ints, texts
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
from penstock.store.postgres.context import StoreContext
from penstock.store.postgres.history import roll_up
from penstock.store.postgres.queues import queue_info

Page = tuple[list[StoredMessage], str | None]
EXPORT_PAGE = 1_000
RATE_MINUTES = (1, 5, 15)
LATENCY_MINUTES = 15


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


class PostgresQueries:
    """Reads in one transaction, which the first query begins and the caller ends."""

    def __init__(self, wire: PipelinedConnection, context: StoreContext) -> None:
        self._wire = wire
        self._context = context
        self._page_bytes = LEASE_BYTES_MAX
        self._begin = [Statement(context.sql["begin.begin_reading"])]
        if context.clock is not None:
            self._begin.append(Statement(context.sql["begin.move_clock"], (context.clock(),)))

    def fetch(self, name: str, *params: Any) -> Rows:
        begin, self._begin = self._begin, []
        return self._wire.run([*begin, Statement(self._context.sql[name], params)])[-1]

    def find(self, name: str) -> QueueRow | None:
        rows = self.fetch("queries.queue", texts([name]))
        return QueueRow(rows[0]) if rows else None

    def queue(self, name: str) -> QueueRow:
        found = {row[1]: row for row in self.fetch("queries.queue", texts([name, name.removesuffix(DLQ_SUFFIX)]))}
        row = found.get(name) or found.get(name.removesuffix(DLQ_SUFFIX))
        if row is None:
            raise UnknownQueue(name)
        return QueueRow(row)

    def locate(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        ids = {name: message_id_of(name, self._context.store_id) for name in names}
        found: dict[str | int, tuple[str, int]] = {}
        if keys := [name for name, message_id in ids.items() if message_id is None and name.isprintable()]:
            found |= {key: (queue, number) for key, queue, number in self.fetch("queries.global_keys", texts(keys))}
        if numbers := [message_id for message_id in ids.values() if message_id is not None]:
            found |= {number: (queue, number) for queue, number in self.fetch("queries.homes", ints(numbers))}
        return [found.get(name if (number := ids[name]) is None else number) for name in names]

    def held(self, name: str, uuids: Sequence[str]) -> set[str]:
        store_id = self._context.store_id
        ids = list(filter(None, (message_id_of(uuid, store_id) for uuid in uuids)))
        queue = self.queue(name)
        rows = self.fetch("queries.held", queue.row_keys(*ids)) if ids else []
        return {message_uuid(message_id, created_at, store_id) for message_id, created_at in rows}.intersection(uuids)

    def list_queues(self, prefix: str, after: str | None, limit: int) -> list[QueueInfo]:
        return [QueueRow(row).info() for row in self.fetch("queries.queues", after or "", prefix, limit)]

    def forwarders(self, target: str | None) -> list[str]:
        if target is None:
            return [name for (name,) in self.fetch("queries.forwarding")]
        return [name for (name,) in self.fetch("queries.naming", f'"dlq":"{target}"')]

    def roll_ups(self, window: Window, prefix: str, after: str | None, limit: int) -> list[RollUp]:
        queues = [QueueRow(row) for row in self.fetch("queries.queues", after or "", prefix, limit)]
        bounds = (window.from_minute, window.step_minutes, window.to_minute, len(window.starts))
        changes: dict[int, dict[int, Row]] = {queue.id: {} for queue in queues}
        for queue_id, step, *happened in self.fetch("history.changes", ints(changes), *bounds) if queues else ():
            changes[queue_id][step] = tuple(happened)
        return [roll_up(queue.info(), queue.counts, changes[queue.id], window) for queue in queues]

    def latencies(self, window: Window, prefix: str, after: str | None, limit: int) -> list[Latencies]:
        names = {row[0]: row[1] for row in self.fetch("queries.queues", after or "", prefix, limit)}
        rows = self._latencies(list(names), window.from_minute, window.to_minute)
        return [latencies_of(name, rows[queue_id], window) for queue_id, name in names.items()]

    def _latencies(self, queue_ids: Sequence[int], from_minute: int, to_minute: int) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {queue_id: [] for queue_id in queue_ids}
        for queue_id, *row in self.fetch("latency.between", ints(found), from_minute, to_minute):
            found[queue_id].append(row)
        return found

    def peek(self, name: str, state: State, limit: int, after: str | None) -> Page:
        queue = self.queue(name)
        if queue.name != name:
            state = State.DEAD
        return _PEEKS[state](self, queue, limit, after)

    def _peek_ready(self, queue: QueueRow, limit: int, after: str | None) -> Page:
        rank, available_at, message_id, cursor = position(after, (-NEVER, 0, 0, queue.cursor))
        room = ByteBudget(self._page_bytes)
        indexed = self.fetch("queries.ready", queue.id, rank, available_at, message_id, limit, room.left)
        plain_start = max(cursor, queue.cursor)
        plain = self.fetch("queries.plain", plain_start, queue.plain_end, limit, room.left)
        # No id occurs in both lists, so the comparison never reaches the columns after it.
        plain_ids = {row[2] for row in plain}
        rows = []
        for row in islice(room.take(heapq.merge(indexed, plain)), limit):
            if row[2] in plain_ids:
                plain_start = queue.plain_start | row[2]
            else:
                rank, available_at, message_id = row[:3]
            rows.append(row)
        messages = self._messages(
            queue,
            State.READY,
            [(row[2], row[6:], _known(row[1], row[3], row[4], expires_at=row[5])) for row in rows],
        )
        more = f"{rank}:{available_at}:{message_id}:{plain_start}"
        return messages, more if room.is_full or len(messages) == limit else None

    def _peek_scheduled(self, queue: QueueRow, limit: int, after: str | None) -> Page:
        rows = self.fetch("queries.scheduled", queue.id, *position(after, (-1, -1)), limit, self._page_bytes)
        found = [(row[1], row[5:], _known(row[0], row[2], row[3], expires_at=row[4])) for row in rows]
        return self._messages(queue, State.SCHEDULED, found), next_page(rows, limit, self._page_bytes)

    def _peek_leased(self, queue: QueueRow, limit: int, after: str | None) -> Page:
        rows = self.fetch("queries.leased", queue.id, *position(after, (-1, -1)), limit, self._page_bytes)
        found = [_leased(row[:7], row[7:]) for row in rows]
        return self._messages(queue, State.LEASED, found), next_page(rows, limit, self._page_bytes)

    def _peek_dead(self, queue: QueueRow, limit: int, after: str | None) -> Page:
        rows = self.fetch("queries.dead", queue.id, *position(after, (NEVER, NEVER)), limit, self._page_bytes)
        found = [_dead(row[:5], row[5:]) for row in rows]
        return self._messages(queue, State.DEAD, found), next_page(rows, limit, self._page_bytes)

    def _peek_archived(self, queue: QueueRow, limit: int, after: str | None) -> Page:
        rows = self.fetch("queries.archived", queue.id, *position(after, (NEVER, NEVER)), limit, self._page_bytes)
        found = [_archived(row[:5], row[5:]) for row in rows]
        return self._messages(queue, State.ARCHIVED, found), next_page(rows, limit, self._page_bytes)

    def dead_errors(
        self, name: str, contains: str, limit: int, after: str | None
    ) -> tuple[list[DeadError], str | None]:
        at, message_id = position(after, (NEVER, NEVER))
        rows = self.fetch("queries.dead_errors", self.queue(name).id, at, message_id, limit, ERROR_READ_MAX, contains)
        found = [DeadError(message_id, at, error, wanted) for at, message_id, error, wanted in rows]
        return found, f"{rows[-1][0]}:{rows[-1][1]}" if len(rows) == limit else None

    def get(self, name: str, message_id: int) -> StoredMessage | None:
        queue = self.queue(name)
        rows = self.fetch("queries.message", queue.row_keys(message_id)) if 0 < message_id <= ID_MAX else []
        if not rows:
            return None
        row_key, created_at, available_at, *rest = rows[0]
        state, found = self._state_of(queue, row_key, (created_at, available_at, *rest))
        message = self._messages(queue, state, [found])[0]
        if message.errors:
            add_tracebacks(message, self.fetch("queries.tracebacks", message_id))
        return message

    def _state_of(self, queue: QueueRow, row_key: int, body: Row) -> tuple[State, Known]:
        """Return the state of a message and its columns. The second column of `body` is available_at."""
        message_id, (_, at, priority, *_) = row_key & ID_MAX, body
        plain_body = (body[0], *body[2:])
        if queue.cursor < row_key < queue.plain_end:
            return State.READY, (message_id, plain_body, _known(at, 0, None, expires_at=None))
        if dead := self.fetch("queries.dead_of", queue.id, message_id):
            return State.DEAD, _dead(dead[0], body)
        if archived := self.fetch("queries.archived_of", queue.id, message_id):
            return State.ARCHIVED, _archived(archived[0], body)
        for state, rows in (
            (State.SCHEDULED, self.fetch("queries.scheduled_of", queue.id, at, message_id)),
            (State.READY, self.fetch("queries.ready_of", queue.id, -priority, at, message_id)),
        ):
            if rows:
                attempts, first_leased_at, expires_at = rows[0]
                return state, (message_id, plain_body, _known(at, attempts, first_leased_at, expires_at=expires_at))
        return State.LEASED, _leased(self.fetch("queries.lease_of", queue.id, message_id)[0], body)

    def stats(self, name: str) -> QueueStats:
        queue = self.queue(name)
        ages = self.ages([queue.name])[queue.name]
        latency = latency_of(self._latencies([queue.id], queue.now // 60_000 - LATENCY_MINUTES, NEVER)[queue.id])
        return QueueStats(
            info=queue.info(),
            head_age_ms=ages.head_ms,
            oldest_age_ms=ages.oldest_ms,
            rates=self._rates(queue),
            latency=latency,
        )

    def ages(self, names: Sequence[str]) -> dict[str, Ages]:
        waiting: dict[tuple[str, int], list[Row]] = {}
        for name, now, *candidate in self.fetch("queries.waiting", texts(names)):
            waiting.setdefault((name, now), []).extend([tuple(candidate)] if candidate[0] is not None else [])
        return {name: ages_of(candidates, now) for (name, now), candidates in waiting.items()}

    def _rates(self, queue: QueueRow) -> dict[str, dict[str, float]]:
        rates = {}
        for span in RATE_MINUTES:
            (happened,) = self.fetch("queries.totals_since", queue.id, queue.now // 60_000 - span)
            seconds = span * 60 + queue.now % 60_000 / 1000
            rates[f"{span}m"] = {name: round(count / seconds, 3) for name, count in zip(TOTALS, happened, strict=True)}
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

    def _messages(self, queue: QueueRow, state: State, found: list[Known]) -> list[StoredMessage]:
        failed = [message_id for message_id, _, known in found if known["attempts"]]
        failures: dict[int, list[Failure]] = {}
        if failed:
            for message_id, *failure in self.fetch("queries.failures", ints(failed)):
                failures.setdefault(message_id, []).append(Failure(*failure))
        messages = []
        for message_id, (created_at, priority, content, key, headers, payload), known in found:
            messages.append(
                StoredMessage(
                    id=message_id,
                    uuid=message_uuid(message_id, created_at, self._context.store_id),
                    queue=queue.name,
                    state=state,
                    payload=payload,
                    content=CONTENTS[content],
                    priority=priority,
                    created_at=created_at,
                    key=key,
                    headers=None if headers is None else msgspec.json.decode(headers),
                    errors=failures.get(message_id, []),
                    **known,
                )
            )
        return messages


# Id and body of a message, and the fields that its state adds.
Known = tuple[int, Row, dict[str, Any]]


def _known(available_at: int, attempts: int, first_leased_at: int | None, **more: Any) -> dict[str, Any]:
    return {"available_at": available_at, "attempts": attempts, "first_leased_at": first_leased_at, **more}


def _leased(lease: Row, body: Row) -> Known:
    leased_until, message_id, attempts, first_leased_at, expires_at, leased_at, worker = lease
    known = _known(
        body[1],
        attempts,
        first_leased_at,
        expires_at=expires_at,
        leased_at=leased_at,
        leased_until=leased_until,
        worker=worker,
    )
    return message_id, (body[0], *body[2:]), known


def _dead(dead: Row, body: Row) -> Known:
    died_at, message_id, attempts, first_leased_at, reason = dead
    known = _known(body[1], attempts, first_leased_at, finished_at=died_at, reason=reason)
    return message_id, (body[0], *body[2:]), known


def _archived(archived: Row, body: Row) -> Known:
    archived_at, message_id, attempts, first_leased_at, leased_at = archived
    known = _known(body[1], attempts, first_leased_at, finished_at=archived_at, leased_at=leased_at)
    return message_id, (body[0], *body[2:]), known


_PEEKS: dict[State, Callable[[PostgresQueries, QueueRow, int, str | None], Page]] = {
    State.READY: PostgresQueries._peek_ready,
    State.SCHEDULED: PostgresQueries._peek_scheduled,
    State.LEASED: PostgresQueries._peek_leased,
    State.DEAD: PostgresQueries._peek_dead,
    State.ARCHIVED: PostgresQueries._peek_archived,
}
