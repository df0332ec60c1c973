"""What a transaction did, noted for the journal: the events of one commit are one row, written last.

Callers ask `queue.noted` first, so a file without a journal pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from penstock.identity import ID_MAX
from penstock.journal.events import Kind, Mark, encode_detail, encode_event
from penstock.model import LeasedMessage
from penstock.store.migrate import load_sql
from penstock.store.sqlite.queues import Queue
from penstock.store.sqlite.transaction import Transaction

SQL = load_sql("penstock.store.sqlite", "journal")


def note(tx: Transaction, queue: Queue, kind: Kind, message_id: int = 0, pushed_at: int = 0, **fields: Any) -> None:
    tx.records.append(encode_event(kind, tx.now, queue.id, queue.name_bytes, tx.salt, message_id, pushed_at, **fields))


def note_queue(tx: Transaction, queue: Queue, what: str, **detail: Any) -> None:
    if queue.journals:
        note(tx, queue, Kind.QUEUE, detail=encode_detail(what=what, **detail))


def note_pushed(
    tx: Transaction, queue: Queue, rows: Iterable[tuple[Any, ...]], expiries: dict[int, int | None]
) -> None:
    """Of rows as they were inserted: place, created_at, available_at, priority, content, key, headers, payload."""
    now, queue_id, name, salt = tx.now, queue.id, queue.name_bytes, tx.salt
    bodies = queue.options.journal == "full"
    marks = 0 if bodies else Mark.BODILESS.value
    for place, _, available_at, priority, content, key, headers, payload in rows:
        message_id = place & ID_MAX
        expires_at = expiries.get(message_id) if expiries else None
        plain = key is None and headers is None and expires_at is None
        tx.records.append(
            encode_event(
                2,
                now,
                queue_id,
                name,
                salt,
                message_id,
                now,
                0,
                0,
                available_at or now,
                priority,
                0,
                marks,
                b"" if plain else _push_detail(key, headers, expires_at),
                content,
                payload if bodies else b"",
            )
        )


def _push_detail(key: str | None, headers: str | None, expires_at: int | None) -> bytes:
    return encode_detail(
        key=key, headers=None if headers is None else msgspec.Raw(headers.encode()), expires_at=expires_at
    )


def note_leased(
    tx: Transaction,
    queue: Queue,
    messages: Sequence[LeasedMessage],
    until: int,
    worker: str | None,
    first_leased: dict[int, int],
    marks: int = 0,
) -> None:
    now, queue_id, name, salt = tx.now, queue.id, queue.name_bytes, tx.salt
    detail = encode_detail(worker=worker)
    for message in messages:
        message_id = message.id
        first = first_leased.get(message_id, now) if first_leased else now
        tx.records.append(
            encode_event(
                3,
                now,
                queue_id,
                name,
                salt,
                message_id,
                message.created_at,
                first,
                now,
                until,
                0,
                message.attempts,
                marks,
                detail,
            )
        )


def pushed_times(tx: Transaction, places: Sequence[int]) -> dict[int, int]:
    """When each of these messages was pushed, by place; asked before they are deleted."""
    if not places:
        return {}
    first, last = min(places), max(places)
    if last - first == len(places) - 1:
        return dict(tx.execute(SQL["pushed_between"], (first, last)).fetchall())
    return dict(tx.execute(SQL["pushed_at_places"], (msgspec.json.encode(places).decode(),)).fetchall())


def failures(tx: Transaction, message_id: int) -> list[dict[str, Any]]:
    """What went wrong in this life so far, oldest first."""
    rows = tx.execute(SQL["failures"], (message_id,)).fetchall()
    return [{"attempt": attempt, "at": at, "error": error} for attempt, at, error in rows]
