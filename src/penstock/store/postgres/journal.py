"""Records journal events of the PostgreSQL store in bulk.

Callers check `queue.is_journalled` first, so a database without a journal pays nothing.
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
    """Turn the journal on or off under the locks of all queues, so that every later change sees the new setting."""
    alive = [tx.context.lock_key(ALIVE, bucket) for bucket in range(LOCK_BUCKETS)]
    tx.write("begin.enter", ints([*alive, tx.context.lock_key(CREATING, 0)]))
    if tx.fetch("journal.switch", int(command.on)):
        if command.on:
            options = msgspec.json.encode(OPTIONS).decode()
            tx.write("journal.make", JOURNAL, options, OPTIONS.segment_bytes, OPTIONS.record_bytes)
        record_depths(tx, entered=command.on)


def record_depths(tx: PostgresTransaction, *, entered: bool) -> None:
    record_depth(tx, tx.fetch("journal.holding"), entered=entered)


def pushed_times(tx: PostgresTransaction, row_keys: Iterable[int]) -> dict[int, int]:
    """Return the push times of these messages by row key. Call before they are deleted."""
    row_keys = list(row_keys)
    return dict(tx.fetch("journal.pushed_at", ints(row_keys))) if row_keys else {}


def _lease_pushed_times(tx: PostgresTransaction, leases: Sequence[EndedLease]) -> dict[int, int]:
    """Return the push times of leased messages by row key, reading only those that the lease does not hold."""
    times = {lease.row_key: lease.pushed_at for lease in leases if lease.pushed_at is not None}
    return times | pushed_times(tx, (lease.row_key for lease in leases if lease.pushed_at is None))


def failures(tx: PostgresTransaction, ids: Sequence[int]) -> dict[int, list[Failure]]:
    """Return the failed attempts of these messages, oldest first."""
    found: dict[int, list[Failure]] = {}
    if ids:
        for message_id, attempt, at, error in tx.fetch("journal.failures", ints(ids)):
            found.setdefault(message_id, []).append({"attempt": attempt, "at": at, "error": error})
    return found


def error_details(tx: PostgresTransaction, tried: Sequence[tuple[int, bool]]) -> list[bytes] | None:
    """Return the earlier errors of each message, empty for a first attempt; None if all are first attempts."""
    known = failures(tx, [message_id for message_id, again in tried if again])
    details = [encode_detail(errors=known.get(message_id, [])) if again else b"" for message_id, again in tried]
    return details if any(details) else None


def record_ended(
    tx: PostgresTransaction,
    queue: PostgresQueue,
    kind: Kind,
    leases: Sequence[EndedLease],
    *,
    untils: Sequence[int] | None = None,
    marks: int = 0,
    details: Sequence[bytes] | None = None,
) -> None:
    """Record that leases ended, and why."""
    if not leases or not queue.is_journalled:
        return
    pushed = _lease_pushed_times(tx, leases)
    rows = [
        (
            lease.id,
            pushed[lease.row_key],
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


def record_acked(tx: PostgresTransaction, queue: PostgresQueue, leases: Sequence[EndedLease]) -> None:
    kept = EventFlag.KEPT if queue.options.archive_ms != 0 else 0
    # Dead letters are recorded separately, because flags apply to all events of one call.
    for from_dead in {lease.from_dead for lease in leases}:
        alike = [lease for lease in leases if lease.from_dead == from_dead]
        details = error_details(tx, [(lease.id, lease.attempts > 1) for lease in alike])
        marks = kept | (EventFlag.DEAD_LETTER if from_dead else 0)
        record_ended(tx, queue, Kind.ACKED, alike, marks=marks, details=details)


def record_dead(
    tx: PostgresTransaction,
    queue: PostgresQueue,
    failed: Sequence[FailedDelivery],
    reason: str,
    *,
    discard: bool = False,
) -> None:
    """Record deaths with all errors of each message; the last one is passed in, as it is stored later."""
    if not failed or not queue.is_journalled:
        return
    leases = [each.lease for each in failed]
    known = failures(tx, [lease.id for lease in leases if lease.attempts > 1])
    details = []
    for lease, error, _ in failed:
        last = {"attempt": lease.attempts, "at": tx.now, "error": text(error)}
        before = [each for each in known.get(lease.id, []) if (each["at"], each["attempt"]) != (tx.now, lease.attempts)]
        details.append(encode_detail(reason=reason, errors=[*before, last][-FAILURES_MAX:]))
    marks = 0 if queue.options.dlq and not discard else EventFlag.GONE
    record_ended(tx, queue, Kind.DEAD, leases, marks=marks, details=details)


def record_expired(tx: PostgresTransaction, queue: PostgresQueue, gone: Sequence[tuple[Any, ...]]) -> None:
    """Record expired messages from rows of id, row key, attempts, first_leased_at and created_at."""
    if gone and queue.is_journalled:
        rows = [(each[0], each[4], each[3] or 0, 0, 0, each[2], 0, 0) for each in gone]
        details = error_details(tx, [(each[0], each[2] > 0) for each in gone])
        tx.journal.note(Kind.EXPIRED, queue, rows, 0, details)


def record_removed(
    tx: PostgresTransaction, queue: PostgresQueue, row_keys: Sequence[int], marks: int = 0, kind: Kind = Kind.REMOVED
) -> None:
    """Record the removal of messages not yet deleted. The flags tell their state; none means ready or scheduled."""
    if queue.is_journalled and row_keys:
        record_removed_rows(tx, queue, pushed_times(tx, row_keys).items(), marks, kind)


def record_removed_rows(
    tx: PostgresTransaction,
    queue: PostgresQueue,
    pushed: Iterable[tuple[int, int]],
    marks: int = 0,
    kind: Kind = Kind.REMOVED,
) -> None:
    """Record removals from row keys and push times."""
    if queue.is_journalled and (
        rows := [(row_key & ID_MAX, pushed_at, 0, 0, 0, 0, 0, 0) for row_key, pushed_at in pushed]
    ):
        tx.journal.note(kind, queue, rows, marks)
