"""What a transaction did, noted for the journal: the events of one commit are one row, written last.

Callers ask `queue.noted` first, so a file without a journal pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from penstock.commands import ForgetJournal
from penstock.identity import ID_MAX
from penstock.journal.events import BODY_BYTES_MAX, EVENTS_MAX, SHARED_BYTES_MAX, Kind, encode_detail, encode_events
from penstock.model import LeasedMessage
from penstock.store.migrate import load_sql
from penstock.store.sqlite.queues import Queue
from penstock.store.sqlite.transaction import Transaction

SQL = load_sql("penstock.store.sqlite", "journal")
Row = tuple[Any, ...]


def note(tx: Transaction, queue: Queue, kind: Kind, ids: Sequence[int] = (0,), *columns: Any, **fields: Any) -> None:
    """See `encode_events` for the columns and fields."""
    tx.records.append(encode_events(kind, tx.now, queue.id, queue.name_bytes, tx.salt, ids, *columns, **fields))


def forget_journal(tx: Transaction, command: ForgetJournal) -> None:
    tx.load_next_offset()
    if command.before > tx.next_offset:
        tx.execute(SQL["write"], (command.before, 0, b""))
        tx.next_offset = command.before
    tx.execute(SQL["forget"], (command.before,))


def note_queue(tx: Transaction, queue: Queue, what: str, **detail: Any) -> None:
    if queue.journals:
        note(tx, queue, Kind.QUEUE, details=encode_detail(what=what, **detail))


def note_pushed(tx: Transaction, queue: Queue, rows: Sequence[Row], expiries: dict[int, int | None]) -> None:
    """Of rows as they were inserted: place, created_at, available_at, priority, content, key, headers, payload."""
    for part in _parts(rows):
        places, _, available_at, priority, content, keys, headers, payloads = zip(*part, strict=True)
        ids = [place & ID_MAX for place in places]
        large = len(payloads[0]) if len(payloads[0]) > BODY_BYTES_MAX else None
        details: bytes | list[bytes] = b""
        if large or expiries or any(keys) or any(headers):
            told = zip(keys, headers, map(expiries.get, ids), strict=True)
            details = [_push_detail(*each, body_bytes=large) for each in told]
        note(
            tx,
            queue,
            Kind.PUSHED,
            ids,
            tx.now,
            until=[at or tx.now for at in available_at],
            priority=priority,
            content=content,
            details=details,
            bodies=payloads if queue.options.journal == "full" and not large else None,
        )


def _parts(rows: Sequence[Row]) -> Iterable[Sequence[Row]]:
    """Rows of which each part fits one record."""
    if len(rows) == 1:
        yield rows
        return
    start = size = 0
    for number, row in enumerate(rows):
        if number > start and (size + len(row[7]) > SHARED_BYTES_MAX or number - start == EVENTS_MAX):
            yield rows[start:number]
            start, size = number, 0
        size += len(row[7])
    yield rows[start:]


def _push_detail(key: str | None, headers: str | None, expires_at: int | None, body_bytes: int | None) -> bytes:
    raw = None if headers is None else msgspec.Raw(headers.encode())
    return encode_detail(key=key, headers=raw, expires_at=expires_at, body_bytes=body_bytes)


def note_leased(
    tx: Transaction,
    queue: Queue,
    messages: Sequence[LeasedMessage],
    until: int,
    worker: str | None,
    first_leased: dict[int, int],
    marks: int = 0,
) -> None:
    now = tx.now
    details = b"" if worker is None else encode_detail(worker=worker)
    for start in range(0, len(messages), EVENTS_MAX):
        part = messages[start : start + EVENTS_MAX]
        ids = [message.id for message in part]
        note(
            tx,
            queue,
            Kind.LEASED,
            ids,
            [message.created_at for message in part],
            [first_leased.get(message_id, now) for message_id in ids] if first_leased else now,
            now,
            until,
            [message.attempts for message in part],
            marks=marks,
            details=details,
        )


def pushed_times(tx: Transaction, places: Sequence[int]) -> list[int]:
    """When each of these messages was pushed; asked before they are deleted."""
    first, last = min(places), max(places)
    if last - first == len(places) - 1:
        found = tx.execute(SQL["pushed_between"], (first, last)).fetchall()
    else:
        found = tx.execute(SQL["pushed_at_places"], (msgspec.json.encode(places).decode(),)).fetchall()
    times = dict(found)
    return [times[place] for place in places]


def failures(tx: Transaction, message_id: int) -> list[dict[str, Any]]:
    """What went wrong in this life so far, oldest first."""
    rows = tx.execute(SQL["failures"], (message_id,)).fetchall()
    return [{"attempt": attempt, "at": at, "error": error} for attempt, at, error in rows]


def error_details(tx: Transaction, ids: Sequence[int], attempts: Sequence[int], tried: int) -> bytes | list[bytes]:
    """The errors of those that were tried before, one detail for each message; none if all went well at first."""
    if max(attempts) <= tried:
        return b""
    return [
        encode_detail(errors=failures(tx, message_id)) if count > tried else b""
        for message_id, count in zip(ids, attempts, strict=True)
    ]


def note_removed(
    tx: Transaction, queue: Queue, places: Sequence[int], marks: int = 0, kind: Kind = Kind.REMOVED
) -> None:
    """The marks tell in which state they were; none: waiting."""
    if queue.noted:
        for start in range(0, len(places), EVENTS_MAX):
            part = places[start : start + EVENTS_MAX]
            note(tx, queue, kind, [place & ID_MAX for place in part], pushed_times(tx, part), marks=marks)
