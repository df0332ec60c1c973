"""Transitions over time, in bounded steps: scheduled messages become ready, leases expire, messages expire.

The transaction that deletes a row owns it, so no lock is needed and any number of servers may run this at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.journal.events import EventFlag, Kind
from penstock.postgres.pipeline import Rows, ints
from penstock.store.common import CLOCK_SKEW_MS, LEASE_CHECK_STEP, NEVER, NO_TRANSITIONS, Transitions
from penstock.store.postgres.journal import record_dead, record_ended, record_expired
from penstock.store.postgres.queues import PostgresQueue
from penstock.store.postgres.settlement import (
    EndedLease,
    FailedDelivery,
    dead_letter,
    forget,
    remember_failures,
    requeue,
    return_to_dead,
)
from penstock.store.postgres.transaction import PostgresTransaction

STEP = 1_000
PATIENCE_MS = 1_000
PATIENCE_FACTOR = 50
LAPSED = "the lease expired"


def advance(tx: PostgresTransaction, queue: PostgresQueue, step: int = STEP) -> Transitions:
    moved = Transitions()
    if tx.context.lease_checks.is_due(queue.id, tx.now):
        _expire_far_leases(tx, queue, moved)
    if not moved.lapsed and tx.now < queue.lease_expiry_at and tx.now < queue.due_at and tx.now < queue.expiry_at:
        return NO_TRANSITIONS
    far, far_more = moved.lapsed, moved.more
    due_floor, lease_floor = tx.context.floor(queue.id)
    if queue.lease_expiry_at <= tx.now:
        _expire_leases(tx, queue, step, lease_floor, moved)
    if queue.due_at <= tx.now:
        moved.due = len(tx.fetch("transitions.due", queue.id, due_floor, tx.now, step))
        queue.count(scheduled=-moved.due, ready=moved.due)
    if queue.expiry_at <= tx.now or (moved.lapsed and queue.expiry_at < NEVER):
        _expire(tx, queue, step, moved)
    ((due_at, lease_expiry_at, expiry_at),) = tx.fetch("transitions.bounds", queue.id, due_floor, lease_floor, tx.now)
    queue.due_at = NEVER if due_at is None else due_at
    queue.lease_expiry_at = NEVER if lease_expiry_at is None else lease_expiry_at
    queue.expiry_at = NEVER if expiry_at is None else expiry_at
    full = step in (moved.due, moved.lapsed - far) or moved.expired >= step
    # Rows that another server is moving are still visible, but are no reason to repeat the step.
    moved.more = far_more or (full and min(queue.due_at, queue.lease_expiry_at, queue.expiry_at) <= tx.now)
    return moved


def wake_at(tx: PostgresTransaction, queue: PostgresQueue) -> int | None:
    """Return when a message of this queue may become ready without a push."""
    return wakes(tx, [queue])[queue.id]


def wakes(tx: PostgresTransaction, queues: Sequence[PostgresQueue]) -> dict[int, int | None]:
    """Return the same for several queues, by their ids."""
    context = tx.context
    ids = [queue.id for queue in queues]
    if not ids:
        return {}
    if time.monotonic() < context.patient_until:
        return dict.fromkeys(ids, tx.now + PATIENCE_MS)
    started = time.monotonic()
    floors = [context.floor(queue_id) for queue_id in ids]
    rows = tx.fetch(
        "transitions.wakes", ints(ids), ints(due for due, _ in floors), ints(lease_expiry for _, lease_expiry in floors)
    )
    took = time.monotonic() - started
    if took > context.slow_seconds:
        # A long-lived snapshot keeps the index entries of ended leases. Waking consumers too often is cheaper then.
        context.patient_until = time.monotonic() + PATIENCE_FACTOR * took
    return dict(rows)


def _expire_leases(tx: PostgresTransaction, queue: PostgresQueue, step: int, floor: int, moved: Transitions) -> None:
    rows = tx.fetch("transitions.lapsed", queue.id, floor, tx.now, step, queue.is_journalled)
    if len(rows) < step:
        rows += tx.fetch("lease_range.lapsed", queue.id, floor, tx.now, step - len(rows))
    _end_expired_leases(tx, queue, rows, moved)


def check_far_leases(tx: PostgresTransaction, queues: Sequence[PostgresQueue]) -> None:
    """Find the queues with leases that may predate a clock that was set back, and mark the others as checked."""
    checks = tx.context.lease_checks
    due = {queue.id: queue for queue in queues if checks.is_due(queue.id, tx.now)}
    if due:
        after = [tx.now + queue.options.lease_ms + CLOCK_SKEW_MS for queue in due.values()]
        far = {queue_id for (queue_id,) in tx.fetch("transitions.far_queues", ints(due), ints(after))}
        for queue_id in due.keys() - far:
            checks.skip(queue_id, tx.now)


def _expire_far_leases(tx: PostgresTransaction, queue: PostgresQueue, moved: Transitions) -> None:
    """Expire leases taken before the clock was set back, which would last longer by that amount."""
    checks = tx.context.lease_checks
    after = checks.start(queue.id, tx.now, queue.options.lease_ms)
    seen = tx.fetch("transitions.far", queue.id, *after, LEASE_CHECK_STEP)
    over, moved.more = checks.choose(queue.id, tx.now, seen)
    if over:
        untils, ids = (ints(column) for column in zip(*over, strict=True))
        rows = tx.fetch("transitions.end_far", queue.id, untils, ids, queue.is_journalled)
        rows += tx.fetch("lease_range.end_far", queue.id, untils, ids, LEASE_CHECK_STEP - len(rows))
        if len(rows) == LEASE_CHECK_STEP:
            moved.more = True
            checks.repeat(queue.id)
        _end_expired_leases(tx, queue, rows, moved)


def _end_expired_leases(tx: PostgresTransaction, queue: PostgresQueue, rows: Rows, moved: Transitions) -> None:
    """Requeue or dead-letter messages whose leases expired, given the deleted lease rows."""
    leases = sorted(map(EndedLease._make, rows))
    moved.lapsed += len(leases)
    if not leases:
        return
    extended = [lease.id for lease in leases if lease.extended]
    if extended:
        tx.write("settle.forget_extensions", ints(extended))
    dead = [lease for lease in leases if lease.from_dead]
    delivered = [lease for lease in leases if not lease.from_dead]
    record_ended(tx, queue, Kind.RELEASED, dead, marks=EventFlag.DEAD_LETTER)
    record_ended(tx, queue, Kind.LAPSED, delivered, untils=[lease.leased_until for lease in delivered])
    return_to_dead(tx, queue, dead)
    attempts_max = queue.options.max_attempts
    exhausted = [FailedDelivery(lease, LAPSED) for lease in delivered if lease.attempts >= attempts_max]
    again = [lease for lease in delivered if lease.attempts < attempts_max]
    record_dead(tx, queue, exhausted, "lapsed")
    dead_letter(tx, queue, exhausted, "lapsed")
    remember_failures(tx, [FailedDelivery(lease, LAPSED) for lease in again])
    requeue(tx, queue, again)
    queue.count(leased=-len(leases), n_lapsed=len(delivered))


def _expire(tx: PostgresTransaction, queue: PostgresQueue, step: int, moved: Transitions) -> None:
    ready, scheduled = tx.fetch_all(
        ("transitions.expired_ready", queue.id, tx.now, step, queue.is_journalled),
        ("transitions.expired_scheduled", queue.id, tx.now, step, queue.is_journalled),
    )
    record_expired(tx, queue, [*ready, *scheduled])
    forget(tx, [row[:3] for row in (*ready, *scheduled)])
    moved.expired = len(ready) + len(scheduled)
    queue.count(ready=-len(ready), scheduled=-len(scheduled), n_expired=moved.expired)
