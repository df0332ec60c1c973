"""What a transaction did, noted for the journal: the events of one commit are one row, written last.

Callers ask `queue.noted` first, so a file without a journal pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.commands import CatchUpJournal, ForgetJournal
from penstock.identity import ID_MAX
from penstock.journal.events import BODY_BYTES_MAX, Kind, encode_detail
from penstock.model import LeasedMessage
from penstock.store.migrate import load_sql
from penstock.store.sqlite.queues import Queue

if TYPE_CHECKING:
    from penstock.store.sqlite.transaction import Transaction

SQL = load_sql("penstock.store.sqlite", "journal")
NO_MESSAGE = (0, 0, 0, 0, 0, 0, 0, 0)


def forget_journal(tx: Transaction, command: ForgetJournal) -> None:
    tx.load_next_offset()
    if command.before > tx.next_offset:
        tx.execute(SQL["write"], (command.before, 0, b""))
        tx.next_offset = command.before
    tx.execute(SQL["forget"], (command.before,))


def catch_up_journal(tx: Transaction, command: CatchUpJournal) -> None:
    tx.count()


def note_queue(tx: Transaction, queue: Queue, what: str, **detail: Any) -> None:
    if queue.journals:
        tx.journal.note(Kind.QUEUE, queue, [NO_MESSAGE], details=[encode_detail(what=what, **detail)])


def note_pushed(
    tx: Transaction, queue: Queue, rows: Sequence[tuple[Any, ...]], expiries: dict[int, int | None] | None = None
) -> None:
    """Of rows as they were inserted: place, created_at, available_at, priority, content, key, headers, payload."""
    told = [
        (place & ID_MAX, created_at, 0, 0, available_at or created_at, 0, priority, content)
        for place, created_at, available_at, priority, content, _, _, _ in rows
    ]
    bodies = [row[7] for row in rows] if queue.options.journal == "full" else None
    large = bodies is not None and max(map(len, bodies)) > BODY_BYTES_MAX
    details = None
    for row in rows:
        if large or expiries or row[5] is not None or row[6] is not None:
            known = expiries or {}
            details = [_push_detail(each, known.get(each[0] & ID_MAX), bodies is not None) for each in rows]
            break
    if large and bodies is not None:
        bodies = [body if len(body) <= BODY_BYTES_MAX else b"" for body in bodies]
    tx.journal.note(Kind.PUSHED, queue, told, 0, details, bodies)


def _push_detail(row: tuple[Any, ...], expires_at: int | None, with_body: bool) -> bytes:
    _, _, _, _, _, key, headers, payload = row
    return encode_detail(
        key=key,
        headers=None if headers is None else msgspec.Raw(headers.encode()),
        expires_at=expires_at,
        body_bytes=len(payload) if with_body and len(payload) > BODY_BYTES_MAX else None,
    )


def note_leased(
    tx: Transaction,
    queue: Queue,
    messages: Sequence[LeasedMessage],
    workers: Sequence[str | None],
    first_leased: dict[int, int],
    marks: int = 0,
) -> None:
    now = tx.now
    rows = [
        (each.id, each.created_at, first_leased.get(each.id, now), now, each.leased_until, each.attempts, 0, 0)
        for each in messages
    ]
    tx.journal.note(Kind.LEASED, queue, rows, marks, _worker_details(workers))


def note_uncounted(tx: Transaction, queue: Queue) -> None:
    """Pushes and leases that were left for later and of which this process knows nothing: from what they wrote."""
    if queue.uncounted_pushes:
        note_pushed(tx, queue, tx.execute(SQL["uncounted_pushes"], (queue.id,)).fetchall())
    if queue.uncounted_leases:
        leases = tx.execute(SQL["uncounted_leases"], (queue.id,)).fetchall()
        workers = [lease[6] for lease in leases]
        rows = [(*lease[:6], 0, 0) for lease in leases]
        tx.journal.note(Kind.LEASED, queue, rows, 0, _worker_details(workers))


def _worker_details(workers: Sequence[str | None]) -> list[bytes] | None:
    return [encode_detail(worker=worker) for worker in workers] if any(workers) else None


def note_removed(
    tx: Transaction, queue: Queue, places: Sequence[int], marks: int = 0, kind: Kind = Kind.REMOVED
) -> None:
    """The marks tell in which state they were; none: waiting."""
    if queue.noted and places:
        told = zip(places, pushed_times(tx, places), strict=True)
        rows = [(place & ID_MAX, pushed_at, 0, 0, 0, 0, 0, 0) for place, pushed_at in told]
        tx.journal.note(kind, queue, rows, marks)


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


def error_details(tx: Transaction, tried: Iterable[tuple[int, bool]]) -> list[bytes] | None:
    """For each message the errors of its life, if it was tried before; None if none was."""
    told = [encode_detail(errors=failures(tx, message_id)) if again else b"" for message_id, again in tried]
    return told if any(told) else None
