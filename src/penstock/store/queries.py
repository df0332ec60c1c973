"""Read-only queries: peek, get, stats and export, from the rows that either store selects."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from penstock.core.error_groups import ERROR_READ_MAX
from penstock.core.ids import DLQ_SUFFIX, ID_MAX, message_uuid
from penstock.core.latency import latency_of
from penstock.core.model import (
    LEASE_BYTES_MAX,
    Ages,
    ApiKey,
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
from penstock.errors import UnknownQueue
from penstock.store.common import (
    CONTENTS,
    EXPORT_BYTES,
    NEVER,
    TOTALS,
    ByteBudget,
    add_tracebacks,
    next_page,
    position,
)

Row = tuple[Any, ...]
Page = tuple[list[StoredMessage], str | None]
# Id and body of a message, and the fields that its state adds.
Known = tuple[int, Row, dict[str, Any]]
EXPORT_PAGE = 1_000
RATE_MINUTES = (1, 5, 15)
LATENCY_MINUTES = 15


class QueueRead(Protocol):
    """A queue as read from the store."""

    id: int
    name: str
    cursor: int
    plain_start: int
    plain_end: int

    def info(self) -> QueueInfo: ...


QueueT = TypeVar("QueueT", bound=QueueRead)


class StoreQueries(ABC, Generic[QueueT]):
    """Reads of one snapshot. Both stores have statements of the same names, with the same columns."""

    _store_id: int
    _page_bytes = LEASE_BYTES_MAX

    @abstractmethod
    def find(self, name: str) -> QueueT | None: ...

    @abstractmethod
    def locate(self, names: Sequence[str]) -> list[tuple[str, int] | None]: ...

    @abstractmethod
    def held(self, name: str, uuids: Sequence[str]) -> set[str]: ...

    @abstractmethod
    def list_queues(self, prefix: str, after: str | None, limit: int) -> list[QueueInfo]: ...

    @abstractmethod
    def roll_ups(self, window: Window, prefix: str, after: str | None, limit: int) -> list[RollUp]: ...

    @abstractmethod
    def latencies(self, window: Window, prefix: str, after: str | None, limit: int) -> list[Latencies]: ...

    @abstractmethod
    def ages(self, names: Sequence[str]) -> dict[str, Ages]: ...

    @abstractmethod
    def _rows(self, statement: str, *values: Any) -> list[Row]: ...

    @abstractmethod
    def _page(self, statement: str, *values: int) -> list[Row]:
        """Return rows, which end with their payloads, up to `_page_bytes`."""

    @abstractmethod
    def _leased_page(self, queue: QueueT, at: int, message_id: int, limit: int) -> list[Row]: ...

    @abstractmethod
    def _message_rows(self, queue: QueueT, message_id: int) -> list[Row]: ...

    @abstractmethod
    def _lease_row(self, queue: QueueT, row_key: int) -> Row: ...

    @abstractmethod
    def _failures(self, message_ids: Sequence[int]) -> Mapping[int, list[Failure]]: ...

    @abstractmethod
    def _now(self, queue: QueueT) -> int: ...

    @abstractmethod
    def _latency_rows(self, queue: QueueT, from_minute: int) -> list[Any]: ...

    @abstractmethod
    def _totals_since(self, queue: QueueT, minute: int) -> Sequence[int]:
        """Return the totals since a minute, in the order of TOTALS."""

    def queue(self, name: str) -> QueueT:
        queue = self.find(name) or self.find(name.removesuffix(DLQ_SUFFIX))
        if queue is None:
            raise UnknownQueue(name)
        return queue

    def forwarders(self, target: str | None) -> list[str]:
        rows = self._rows("forwarding") if target is None else self._rows("naming", f'"dlq":"{target}"')
        return [name for (name,) in rows]

    def find_key(self, key_id: str) -> ApiKey | None:
        return next(map(_api_key, self._rows("find_key", key_id)), None)

    def list_keys(self, queue: str | None, stream: str | None) -> list[ApiKey]:
        rows = self._rows("list_stream_keys", stream) if queue is None else self._rows("list_queue_keys", queue)
        return list(map(_api_key, rows))

    def find_secret(self, queue: str) -> str | None:
        rows = self._rows("secret", queue)
        return rows[0][0] if rows else None

    # Messages

    def peek(self, name: str, state: State, limit: int, after: str | None) -> Page:
        queue = self.queue(name)
        # A name that ends in .dlq selects the dead letters only.
        return _PEEKS[state if queue.name == name else State.DEAD](self, queue, limit, after)

    def export(self, name: str) -> Iterator[StoredMessage]:
        queue = self.queue(name)
        self._page_bytes = EXPORT_BYTES
        for peek in _PEEKS.values() if queue.name == name else [_PEEKS[State.DEAD]]:
            after: str | None = None
            while True:
                messages, after = peek(self, queue, EXPORT_PAGE, after)
                yield from messages
                if after is None:
                    break

    def _peek_ready(self, queue: QueueT, limit: int, after: str | None) -> Page:
        rank, available_at, message_id, cursor = position(after, (-NEVER, 0, 0, queue.cursor))
        indexed = self._page("ready", queue.id, rank, available_at, message_id, limit)
        plain_start = max(cursor, queue.cursor)
        plain = self._page("plain", plain_start, queue.plain_end, limit)
        # No id occurs in both lists, so the comparison never reaches the columns after it.
        plain_ids = {row[2] for row in plain}
        found, room = [], ByteBudget(self._page_bytes)
        for row in islice(room.take(heapq.merge(indexed, plain)), limit):
            if row[2] in plain_ids:
                plain_start = queue.plain_start | row[2]
            else:
                rank, available_at, message_id = row[:3]
            found.append((row[2], row[6:], _known(row[1], *row[3:6])))
        more = f"{rank}:{available_at}:{message_id}:{plain_start}"
        messages = self._messages(queue, State.READY, found)
        return messages, more if room.is_full or len(messages) == limit else None

    def _peek_scheduled(self, queue: QueueT, limit: int, after: str | None) -> Page:
        rows = self._page("scheduled", queue.id, *position(after, (-1, -1)), limit)
        found = [(row[1], row[5:], _known(row[0], *row[2:5])) for row in rows]
        return self._messages(queue, State.SCHEDULED, found), next_page(rows, limit, self._page_bytes)

    def _peek_leased(self, queue: QueueT, limit: int, after: str | None) -> Page:
        at, message_id = position(after, (-1, -1))
        rows = self._leased_page(queue, at, message_id, limit)
        found = [_leased(row[:7], row[7:]) for row in rows]
        return self._messages(queue, State.LEASED, found), next_page(rows, limit, self._page_bytes)

    def _peek_dead(self, queue: QueueT, limit: int, after: str | None) -> Page:
        rows = self._page("dead", queue.id, *position(after, (NEVER, NEVER)), limit)
        found = [_dead(row[:5], row[5:]) for row in rows]
        return self._messages(queue, State.DEAD, found), next_page(rows, limit, self._page_bytes)

    def _peek_archived(self, queue: QueueT, limit: int, after: str | None) -> Page:
        rows = self._page("archived", queue.id, *position(after, (NEVER, NEVER)), limit)
        found = [_archived(row[:5], row[5:]) for row in rows]
        return self._messages(queue, State.ARCHIVED, found), next_page(rows, limit, self._page_bytes)

    def dead_errors(
        self, name: str, contains: str, limit: int, after: str | None
    ) -> tuple[list[DeadError], str | None]:
        here = (self.queue(name).id, *position(after, (NEVER, NEVER)))
        rows = self._rows("dead_errors", *here, limit, ERROR_READ_MAX, contains)
        found = [DeadError(message_id, at, error, bool(wanted)) for at, message_id, error, wanted in rows]
        return found, f"{rows[-1][0]}:{rows[-1][1]}" if len(rows) == limit else None

    def get(self, name: str, message_id: int) -> StoredMessage | None:
        queue = self.queue(name)
        rows = self._message_rows(queue, message_id) if 0 < message_id <= ID_MAX else []
        if not rows:
            return None
        row_key, *body = rows[0]
        state, found = self._state_of(queue, row_key, tuple(body))
        [message] = self._messages(queue, state, [found])
        if message.errors:
            add_tracebacks(message, self._rows("tracebacks", message_id))
        return message

    def _state_of(self, queue: QueueT, row_key: int, body: Row) -> tuple[State, Known]:
        """Return the state of a message and its columns. The second column of `body` is available_at."""
        message_id, (created_at, at, priority, *rest) = row_key & ID_MAX, body
        plain_body = (created_at, priority, *rest)
        if queue.cursor < row_key < queue.plain_end:
            return State.READY, (message_id, plain_body, _known(at, 0, None, None))
        if dead := self._rows("dead_of", queue.id, message_id):
            return State.DEAD, _dead(dead[0], body)
        if archived := self._rows("archived_of", queue.id, message_id):
            return State.ARCHIVED, _archived(archived[0], body)
        if scheduled := self._rows("scheduled_of", queue.id, at, message_id):
            return State.SCHEDULED, (message_id, plain_body, _known(at, *scheduled[0]))
        if ready := self._rows("ready_of", queue.id, -priority, at, message_id):
            return State.READY, (message_id, plain_body, _known(at, *ready[0]))
        return State.LEASED, _leased(self._lease_row(queue, row_key), body)

    def _messages(self, queue: QueueT, state: State, found: list[Known]) -> list[StoredMessage]:
        failures = self._failures([message_id for message_id, _, known in found if known["attempts"]])
        return [
            StoredMessage(
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
                errors=failures.get(message_id, []),
                **known,
            )
            for message_id, (created_at, priority, content, key, headers, payload), known in found
        ]

    # Statistics

    def stats(self, name: str) -> QueueStats:
        queue = self.queue(name)
        ages, now = self.ages([queue.name])[queue.name], self._now(queue)
        rates = {}
        for span in RATE_MINUTES:
            happened = self._totals_since(queue, now // 60_000 - span)
            seconds = span * 60 + now % 60_000 / 1000
            rates[f"{span}m"] = {name: round(count / seconds, 3) for name, count in zip(TOTALS, happened, strict=True)}
        return QueueStats(
            info=queue.info(),
            head_age_ms=ages.head_ms,
            oldest_age_ms=ages.oldest_ms,
            rates=rates,
            latency=latency_of(self._latency_rows(queue, now // 60_000 - LATENCY_MINUTES)),
        )


def _known(
    available_at: int, attempts: int, first_leased_at: int | None, expires_at: int | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "available_at": available_at,
        "attempts": attempts,
        "first_leased_at": first_leased_at,
        "expires_at": expires_at,
        **more,
    }


def _leased(lease: Row, body: Row) -> Known:
    leased_until, message_id, attempts, first_leased_at, expires_at, leased_at, worker = lease
    ends = {"leased_at": leased_at, "leased_until": leased_until, "worker": worker}
    return message_id, (body[0], *body[2:]), _known(body[1], attempts, first_leased_at, expires_at, **ends)


def _dead(dead: Row, body: Row) -> Known:
    died_at, message_id, attempts, first_leased_at, reason = dead
    known = _known(body[1], attempts, first_leased_at, finished_at=died_at, reason=reason)
    return message_id, (body[0], *body[2:]), known


def _archived(archived: Row, body: Row) -> Known:
    archived_at, message_id, attempts, first_leased_at, leased_at = archived
    known = _known(body[1], attempts, first_leased_at, finished_at=archived_at, leased_at=leased_at)
    return message_id, (body[0], *body[2:]), known


def _api_key(row: Row) -> ApiKey:
    key_id, queue, name, digest, rights, created_at, stream = row
    return ApiKey(key_id, queue, name, digest, rights.split(","), created_at, stream)


_PEEKS: dict[State, Callable[[StoreQueries[Any], Any, int, str | None], Page]] = {
    State.READY: StoreQueries._peek_ready,
    State.SCHEDULED: StoreQueries._peek_scheduled,
    State.LEASED: StoreQueries._peek_leased,
    State.DEAD: StoreQueries._peek_dead,
    State.ARCHIVED: StoreQueries._peek_archived,
}
