"""Moves messages whose leases ended, in bulk: requeue, schedule, dead-letter or delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.model import ERROR_TEXT_MAX, TRACEBACK_MAX
from penstock.postgres.pipeline import ints, ints_or_nulls, texts
from penstock.store.postgres.queues import PostgresQueue
from penstock.store.postgres.transaction import PostgresTransaction

FAILURES_MAX = 20


class EndedLease(NamedTuple):
    """A lease row that has just been deleted."""

    id: int
    row_key: int
    attempts: int
    first_leased_at: int | None
    leased_at: int
    expires_at: int | None
    from_dead: bool
    extended: bool
    pushed_at: int | None = None
    """Set if the queue was known to be journalled when the lease ended."""
    leased_until: int = 0
    token: bytes = b""


class FailedDelivery(NamedTuple):
    """A failed delivery and its error."""

    lease: EndedLease
    error: str
    traceback: str | None = None


def text(value: str, length_max: int = ERROR_TEXT_MAX) -> str:
    """Return a text as it can be stored: shortened, and without NUL, which PostgreSQL rejects."""
    return value[:length_max].replace("\0", "�")


def requeue(tx: PostgresTransaction, queue: PostgresQueue, leases: Sequence[EndedLease]) -> None:
    """Make messages ready again at their old positions."""
    if not leases:
        return
    tx.write(
        "settle.file",
        ints(lease.row_key for lease in leases),
        ints(lease.attempts for lease in leases),
        ints_or_nulls([lease.first_leased_at for lease in leases]),
        ints_or_nulls([lease.expires_at for lease in leases]),
    )
    queue.count(ready=len(leases))
    _may_expire(queue, leases)


def schedule(tx: PostgresTransaction, queue: PostgresQueue, leases: Sequence[EndedLease], times: Sequence[int]) -> None:
    if not leases:
        return
    row_keys = ints(lease.row_key for lease in leases)
    tx.write("settle.move", row_keys, ints(times))
    tx.write(
        "settle.schedule",
        row_keys,
        ints(times),
        ints(lease.attempts for lease in leases),
        ints_or_nulls([lease.first_leased_at for lease in leases]),
        ints_or_nulls([lease.expires_at for lease in leases]),
    )
    queue.count(scheduled=len(leases))
    tx.schedules = True
    queue.due_at = min(queue.due_at, *times)
    _may_expire(queue, leases)


def _may_expire(queue: PostgresQueue, leases: Sequence[EndedLease]) -> None:
    for lease in leases:
        if lease.expires_at is not None:
            queue.expiry_at = min(queue.expiry_at, lease.expires_at)


def return_to_dead(tx: PostgresTransaction, queue: PostgresQueue, leases: Sequence[EndedLease]) -> None:
    if leases:
        tx.write("settle.return_dead", ints(lease.id for lease in leases))
        queue.count(dead=len(leases))


def dead_letter(
    tx: PostgresTransaction,
    queue: PostgresQueue,
    failed: Sequence[FailedDelivery],
    reason: str,
    *,
    discard: bool = False,
) -> None:
    """Move messages to the dead letters, or delete them if the queue keeps none or they are discarded."""
    if not failed:
        return
    leases = [each.lease for each in failed]
    queue.count(n_dead=len(leases))
    if discard or not queue.options.dlq:
        forget(tx, [(lease.id, lease.row_key, lease.attempts) for lease in leases])
        return
    remember_failures(tx, failed)
    left = [None if lease.expires_at is None else max(0, lease.expires_at - tx.now) for lease in leases]
    tx.write(
        "settle.die",
        tx.now,
        reason,
        ints(lease.row_key for lease in leases),
        ints(lease.attempts for lease in leases),
        ints_or_nulls([lease.first_leased_at for lease in leases]),
        ints_or_nulls(left),
        texts([text(each.error) for each in failed]),
    )
    queue.count(dead=len(leases))


def remember_failures(tx: PostgresTransaction, failed: Sequence[FailedDelivery]) -> None:
    if not failed:
        return
    leases = [each.lease for each in failed]
    tx.write(
        "settle.remember_failures",
        tx.now,
        ints(lease.id for lease in leases),
        ints(lease.attempts for lease in leases),
        texts([text(each.error) for each in failed]),
        texts([None if each.traceback is None else text(each.traceback, TRACEBACK_MAX) for each in failed]),
    )
    many = [lease.id for lease in leases if lease.attempts > FAILURES_MAX]
    if many:
        tx.write("settle.trim_failures", ints(many), FAILURES_MAX)


def forget(tx: PostgresTransaction, messages: Sequence[tuple[int, int, int]]) -> None:
    """Delete messages (id, row key, attempts) and their errors."""
    if messages:
        tx.write("settle.delete_messages", ints(row_key for _, row_key, _ in messages))
        failed = [message_id for message_id, _, attempts in messages if attempts]
        if failed:
            tx.write("settle.forget_failures", ints(failed))
