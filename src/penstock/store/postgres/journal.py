"""What PostgreSQL's transactions have to look up for the journal, and note in bulk.

Callers ask `queue.noted` first, so a database without a journal pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from penstock.core.commands import SwitchJournal
from penstock.core.ids import ID_MAX
from penstock.journal.drainer import OPTIONS
from penstock.journal.events import EventFlag, Kind, encode_detail
from penstock.journal.recording import record_depth
from penstock.postgres.context import LOCK_BUCKETS
from penstock.postgres.pipeline import ints
from penstock.postgres.schema import JOURNAL
from penstock.store.postgres.queues import PostgresQueue
from penstock.store.postgres.settlement import FAILURES_MAX, EndedLease, FailedDelivery, text
from penstock.store.postgres.transaction import ALIVE, CREATING, PostgresTransaction

Failure = dict[str, Any]


def switch_journal(tx: PostgresTransaction, command: SwitchJournal) -> None:
    """While nobody changes or makes a queue: whoever comes later sees whether there is a journal."""
    alive = [tx.context.lock_key(ALIVE, bucket) for bucket in range(LOCK_BUCKETS)]
    tx.write("begin.enter", ints([*alive, tx.context.lock_key(CREATING, 0)]))
    if tx.fetch("journal.switch", int(command.on)):
        if command.on:
            options = msgspec.json.encode(OPTIONS).decode()
            tx.write("journal.make", JOURNAL, options, OPTIONS.segment_bytes, OPTIONS.record_bytes)
        note_all_held(tx, entered=command.on)


def note_all_held(tx: PostgresTransaction, *, entered: bool) -> None:
    record_depth(tx, tx.fetch("journal.holding"), entered=entered)


def pushed_times(tx: PostgresTransaction, places: Iterable[int]) -> dict[int, int]:
    """When each of these messages was pushed; asked before they are deleted."""
    places = list(places)
    return dict(tx.fetch("journal.pushed_at", ints(places))) if places else {}


def _told(tx: PostgresTransaction, leases: Sequence[EndedLease]) -> dict[int, int]:
    """The same for leases, of which the row may have told already."""
    times = {lease.place: lease.pushed_at for lease in leases if lease.pushed_at is not None}
    return times | pushed_times(tx, (lease.place for lease in leases if lease.pushed_at is None))


def failures(tx: PostgresTransaction, ids: Sequence[int]) -> dict[int, list[Failure]]:
    """What went wrong in these lives so far, oldest first."""
    found: dict[int, list[Failure]] = {}
    if ids:
        for message_id, attempt, at, error in tx.fetch("journal.failures", ints(ids)):
            found.setdefault(message_id, []).append({"attempt": attempt, "at": at, "error": error})
    return found


def error_details(tx: PostgresTransaction, tried: Sequence[tuple[int, bool]]) -> list[bytes] | None:
    """For each message the errors of its life, if it was tried before; None if none was."""
    known = failures(tx, [message_id for message_id, again in tried if again])
    told = [encode_detail(errors=known.get(message_id, [])) if again else b"" for message_id, again in tried]
    return told if any(told) else None


def note_ended(
    tx: PostgresTransaction,
    queue: PostgresQueue,
    kind: Kind,
    leases: Sequence[EndedLease],
    *,
    untils: Sequence[int] | None = None,
    marks: int = 0,
    details: Sequence[bytes] | None = None,
) -> None:
    """That leases are over, and why."""
    if not leases or not queue.noted:
        return
    pushed = _told(tx, leases)
    rows = [
        (
            lease.id,
            pushed[lease.place],
            lease.first_leased_at or 0,
            lease.leased_at,
            0 if untils is None else untils[number],
            lease.attempts,
            0,
            0,
        )
        for number, lease in enumerate(leases)
    ]
    tx.journal.note(kind, queue, rows, marks, details)


def note_acked(tx: PostgresTransaction, queue: PostgresQueue, leases: Sequence[EndedLease]) -> None:
    kept = EventFlag.KEPT if queue.options.archive_ms != 0 else 0
    # Dead letters among them are told apart: a mark is one for all.
    for from_dead in {lease.from_dead for lease in leases}:
        alike = [lease for lease in leases if lease.from_dead == from_dead]
        details = error_details(tx, [(lease.id, lease.attempts > 1) for lease in alike])
        marks = kept | (EventFlag.DEAD_LETTER if from_dead else 0)
        note_ended(tx, queue, Kind.ACKED, alike, marks=marks, details=details)


def note_dead(
    tx: PostgresTransaction,
    queue: PostgresQueue,
    failed: Sequence[FailedDelivery],
    reason: str,
    *,
    discard: bool = False,
) -> None:
    """With the errors of the whole life, of which the last is told here and written later."""
    if not failed or not queue.noted:
        return
    leases = [each.lease for each in failed]
    known = failures(tx, [lease.id for lease in leases if lease.attempts > 1])
    details = []
    for lease, error, _ in failed:
        last = {"attempt": lease.attempts, "at": tx.now, "error": text(error)}
        before = [each for each in known.get(lease.id, []) if (each["at"], each["attempt"]) != (tx.now, lease.attempts)]
        details.append(encode_detail(reason=reason, errors=[*before, last][-FAILURES_MAX:]))
    marks = 0 if queue.options.dlq and not discard else EventFlag.GONE
    note_ended(tx, queue, Kind.DEAD, leases, marks=marks, details=details)


def note_expired(tx: PostgresTransaction, queue: PostgresQueue, gone: Sequence[tuple[Any, ...]]) -> None:
    """Of rows of id, place, attempts, first_leased_at and created_at."""
    if gone and queue.noted:
        rows = [(each[0], each[4], each[3] or 0, 0, 0, each[2], 0, 0) for each in gone]
        details = error_details(tx, [(each[0], each[2] > 0) for each in gone])
        tx.journal.note(Kind.EXPIRED, queue, rows, 0, details)


def note_removed(
    tx: PostgresTransaction, queue: PostgresQueue, places: Sequence[int], marks: int = 0, kind: Kind = Kind.REMOVED
) -> None:
    """Of messages that are still there. The marks tell in which state they were; none: waiting."""
    if queue.noted and places:
        note_gone(tx, queue, pushed_times(tx, places).items(), marks, kind)


def note_gone(
    tx: PostgresTransaction,
    queue: PostgresQueue,
    pushed: Iterable[tuple[int, int]],
    marks: int = 0,
    kind: Kind = Kind.REMOVED,
) -> None:
    """Of places, with when each was pushed."""
    if queue.noted and (told := [(place & ID_MAX, pushed_at, 0, 0, 0, 0, 0, 0) for place, pushed_at in pushed]):
        tx.journal.note(kind, queue, told, marks)
