"""Transitions over time, in bounded steps: scheduled messages become ready, leases expire, messages expire."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.core.model import ERROR_TEXT_MAX
from penstock.core.sql_files import load_sql
from penstock.journal.events import EventFlag, Kind, encode_detail
from penstock.store.common import LEASE_CHECK_STEP, NEVER, NO_TRANSITIONS, Transitions
from penstock.store.sqlite import lease_ranges
from penstock.store.sqlite.journal import error_details, failures, pushed_times
from penstock.store.sqlite.queues import SqliteQueue
from penstock.store.sqlite.transaction import SqliteTransaction

SQL = load_sql("penstock.store.sqlite", "transitions")
SETTLE = load_sql("penstock.store.sqlite", "settle")

STEP = 1_000
FAILURES_MAX = 20


class EndedLeaseRow(NamedTuple):
    """Row of a lease that ended."""

    id: int
    row_key: int
    attempts: int
    first_leased_at: int | None
    leased_at: int
    expires_at: int | None
    from_dead: int
    extended: int
    pushed_at: int | None = None
    """Set if it is known without a lookup."""
    token: bytes = b""
    """Set if a consumer ended the lease."""


def advance(tx: SqliteTransaction, queue: SqliteQueue, step: int = STEP) -> Transitions:
    far = bool(queue.leased) and tx.lease_checks.is_due(queue.id, tx.now)
    if tx.now < queue.lease_expiry_at and tx.now < queue.due_at and tx.now < queue.expiry_at and not far:
        return NO_TRANSITIONS
    moved = Transitions()
    if far:
        _expire_far_leases(tx, queue, moved)
    if queue.lease_expiry_at <= tx.now:
        _expire_leases(tx, queue, step, moved)
    if queue.due_at <= tx.now:
        _make_due(tx, queue, step, moved)
    if queue.expiry_at <= tx.now:
        _expire(tx, queue, step, moved)
    return moved


def wake_at(queue: SqliteQueue) -> int | None:
    """Return when a message of this queue may become ready without a push."""
    at: int = min(queue.due_at, queue.lease_expiry_at)
    return at if at < NEVER else None


def _first(tx: SqliteTransaction, statement: str, queue: SqliteQueue) -> int:
    row = tx.execute(SQL[statement], (queue.id,)).fetchone()
    return NEVER if row is None or row[0] is None else int(row[0])


def _make_due(tx: SqliteTransaction, queue: SqliteQueue, step: int, moved: Transitions) -> None:
    rows = tx.execute(SQL["due"], (queue.id, tx.now, step)).fetchall()
    if rows:
        through = (queue.id, *rows[-1])
        tx.execute(SQL["file_due"], through)
        tx.execute(SQL["unschedule_due"], through)
        queue.scheduled -= len(rows)
        queue.ready += len(rows)
        queue.has_indexed_rows = True
        tx.touch(queue)
        moved.due = len(rows)
    queue.due_at = _first(tx, "first_due", queue)
    moved.more |= queue.due_at <= tx.now


def _expire_far_leases(tx: SqliteTransaction, queue: SqliteQueue, moved: Transitions) -> None:
    """Expire leases taken before the clock was set back, which would last longer by that amount."""
    after = tx.lease_checks.start(queue.id, tx.now, queue.options.lease_ms)
    seen = tx.execute(SQL["far"], (queue.id, *after, LEASE_CHECK_STEP)).fetchall()
    over, more = tx.lease_checks.choose(queue.id, tx.now, seen)
    if over and queue.has_ranges:
        over, cut = _expand_far_ranges(tx, queue, over)
        more |= cut
    rows = [tx.execute(SQL["lease"], (queue.id, *each)).fetchone() for each in over]
    for until, message_id in over:
        tx.execute(SETTLE["end_lease"], (queue.id, until, message_id))
        tx.recent_leases.pop(message_id, None)
    _end_expired_leases(tx, queue, rows, moved)
    if over:
        queue.lease_expiry_at = _first(tx, "first_lapse", queue)
    moved.more |= more


def _expand_far_ranges(
    tx: SqliteTransaction, queue: SqliteQueue, over: list[tuple[int, int]]
) -> tuple[list[tuple[int, int]], bool]:
    """Return the ends and ids of single leases in place of the ranges among them, and True if there may be more."""
    moved: list[tuple[int, int]] = []
    for until, first in over:
        ids = lease_ranges.move_out_at(tx, queue, until, first, LEASE_CHECK_STEP - len(moved))
        moved += [(until, message_id) for message_id in ids or (first,)]
        if len(moved) >= LEASE_CHECK_STEP:
            tx.lease_checks.repeat(queue.id)
            return moved, True
    return moved, False


def _expire_leases(tx: SqliteTransaction, queue: SqliteQueue, step: int, moved: Transitions) -> None:
    lease_ranges.move_out_first(tx, queue, step, until=tx.now)
    rows = tx.execute(SQL["lapsed"], (queue.id, tx.now, step)).fetchall()
    if rows:
        tx.execute(SQL["end_lapsed"], (queue.id, *rows[-1][:2]))
    _end_expired_leases(tx, queue, rows, moved)
    queue.lease_expiry_at = _first(tx, "first_lapse", queue)
    moved.more |= queue.lease_expiry_at <= tx.now


def _end_expired_leases(
    tx: SqliteTransaction, queue: SqliteQueue, rows: list[tuple[Any, ...]], moved: Transitions
) -> None:
    """Requeue or dead-letter messages whose leases expired, given the deleted lease rows."""
    for row in rows:
        lease = EndedLeaseRow(*row[1:])
        if lease.extended:
            tx.execute(SETTLE["forget_extension"], (lease.id,))
        if lease.from_dead:
            return_to_dead(tx, queue, lease)
            continue
        queue.n_lapsed += 1
        if queue.is_journalled:
            record_ended(tx, queue, Kind.LAPSED, lease, until=row[0])
        if lease.attempts >= queue.options.max_attempts:
            dead_letter(tx, queue, lease, "lapsed", "the lease expired")
        else:
            remember_failure(tx, lease.id, lease.attempts, "the lease expired")
            requeue(tx, queue, lease)
    if rows:
        queue.leased -= len(rows)
        tx.touch(queue)
        moved.lapsed += len(rows)


def _expire(tx: SqliteTransaction, queue: SqliteQueue, step: int, moved: Transitions) -> None:
    ready = tx.execute(SQL["expired_ready"], (queue.id, tx.now, step)).fetchall()
    scheduled = tx.execute(SQL["expired_scheduled"], (queue.id, tx.now, step)).fetchall()
    if queue.is_journalled:
        _record_expired(tx, queue, [row[-4:] for row in ready + scheduled])
    for rank, available_at, message_id, row_key, attempts, _ in ready:
        tx.execute(SQL["drop_ready"], (queue.id, rank, available_at, message_id))
        forget_message(tx, message_id, row_key, attempts)
    for available_at, message_id, row_key, attempts, _ in scheduled:
        tx.execute(SQL["drop_scheduled"], (queue.id, available_at, message_id))
        forget_message(tx, message_id, row_key, attempts)
    moved.expired = len(ready) + len(scheduled)
    if moved.expired:
        queue.ready -= len(ready)
        queue.scheduled -= len(scheduled)
        queue.n_expired += moved.expired
        tx.touch(queue)
    queue.expiry_at = _first(tx, "first_expiry", queue)
    moved.more |= queue.expiry_at <= tx.now


def _record_expired(tx: SqliteTransaction, queue: SqliteQueue, gone: list[tuple[Any, ...]]) -> None:
    """Record expired messages from rows of id, row key, attempts and first_leased_at."""
    if gone:
        pushed = pushed_times(tx, [row_key for _, row_key, _, _ in gone])
        rows = [
            (message_id, pushed_at, first_leased_at or 0, 0, 0, attempts, 0, 0)
            for (message_id, _, attempts, first_leased_at), pushed_at in zip(gone, pushed, strict=True)
        ]
        details = error_details(tx, [(message_id, attempts > 0) for message_id, _, attempts, _ in gone])
        tx.journal.note(Kind.EXPIRED, queue, rows, 0, details)


def record_ended(
    tx: SqliteTransaction,
    queue: SqliteQueue,
    kind: Kind,
    lease: EndedLeaseRow,
    *,
    until: int = 0,
    marks: int = 0,
    **detail: Any,
) -> None:
    """Record that a lease ended, and why."""
    (pushed_at,) = pushed_times(tx, [lease.row_key])
    row = (lease.id, pushed_at, lease.first_leased_at or 0, lease.leased_at, until, lease.attempts, 0, 0)
    tx.journal.note(kind, queue, [row], marks, [encode_detail(**detail)] if detail else None)


def forget_message(tx: SqliteTransaction, message_id: int, row_key: int, attempts: int) -> None:
    tx.execute(SETTLE["delete"], (row_key,))
    if attempts:
        tx.execute(SETTLE["forget_failures"], (message_id,))


def requeue(tx: SqliteTransaction, queue: SqliteQueue, lease: EndedLeaseRow) -> None:
    """Make a message ready again at its old position."""
    row = (lease.attempts, lease.first_leased_at, lease.expires_at, queue.id, lease.id, lease.row_key)
    tx.execute(SETTLE["file"], row)
    queue.has_indexed_rows = True
    queue.ready += 1
    if lease.expires_at is not None:
        queue.expiry_at = min(queue.expiry_at, lease.expires_at)


def return_to_dead(tx: SqliteTransaction, queue: SqliteQueue, lease: EndedLeaseRow, error: str | None = None) -> None:
    """End the lease of a dead letter; the journal keeps the error that a consumer gave."""
    tx.execute(SETTLE["return_dead"], (lease.id,))
    queue.dead += 1
    if queue.is_journalled:
        detail: dict[str, Any] = {"error": error} if error else {}
        record_ended(tx, queue, Kind.RELEASED, lease, marks=EventFlag.DEAD_LETTER, **detail)


def dead_letter(
    tx: SqliteTransaction,
    queue: SqliteQueue,
    lease: EndedLeaseRow,
    reason: str,
    error: str,
    traceback: str | None = None,
    *,
    discard: bool = False,
) -> None:
    """Move a message to the dead letters, or delete it if the queue keeps none or it is discarded."""
    queue.n_dead += 1
    keep = queue.options.dlq and not discard
    remember_failure(tx, lease.id, lease.attempts, error, traceback)
    if queue.is_journalled:
        marks = 0 if keep else EventFlag.GONE
        record_ended(tx, queue, Kind.DEAD, lease, marks=marks, reason=reason, errors=failures(tx, lease.id))
    if not keep:
        forget_message(tx, lease.id, lease.row_key, lease.attempts)
        return
    ttl_left_ms = None if lease.expires_at is None else max(0, lease.expires_at - tx.now)
    row: tuple[Any, ...] = (
        lease.id,
        lease.row_key,
        queue.id,
        tx.now,
        lease.attempts,
        lease.first_leased_at,
        ttl_left_ms,
        reason,
        error[:ERROR_TEXT_MAX],
    )
    tx.execute(SETTLE["die"], row)
    queue.dead += 1


def remember_failure(
    tx: SqliteTransaction, message_id: int, attempts: int, error: str, traceback: str | None = None
) -> None:
    tx.execute(SETTLE["remember_failure"], (message_id, attempts, tx.now, error[:ERROR_TEXT_MAX], traceback))
    if attempts > FAILURES_MAX:
        tx.execute(SETTLE["trim_failures"], (message_id, FAILURES_MAX))
