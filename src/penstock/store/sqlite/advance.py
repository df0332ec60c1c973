"""What time moves: due messages become ready, lapsed leases come back, expired messages go. In bounded steps."""

from __future__ import annotations

from typing import Any

from penstock.model import ERROR_TEXT_MAX
from penstock.store.migrate import load_sql
from penstock.store.sqlite.queues import NEVER, Queue
from penstock.store.sqlite.transaction import Transaction

SQL = load_sql("penstock.store.sqlite", "advance")
SETTLE = load_sql("penstock.store.sqlite", "settle")

STEP = 1_000
FAILURES_MAX = 20


class Moved:
    """What a step moved, and whether its bound left more to do."""

    __slots__ = ("due", "expired", "lapsed", "more")

    def __init__(self) -> None:
        self.due = self.lapsed = self.expired = 0
        self.more = False


NOTHING = Moved()


def advance(tx: Transaction, queue: Queue, step: int = STEP) -> Moved:
    if tx.now < queue.lapse_at and tx.now < queue.due_at and tx.now < queue.expiry_at:
        return NOTHING
    moved = Moved()
    if queue.lapse_at <= tx.now:
        _lapse(tx, queue, step, moved)
    if queue.due_at <= tx.now:
        _make_due(tx, queue, step, moved)
    if queue.expiry_at <= tx.now:
        _expire(tx, queue, step, moved)
    return moved


def wake_at(queue: Queue) -> int | None:
    """When something of this queue may become ready without a push."""
    at: int = min(queue.due_at, queue.lapse_at)
    return at if at < NEVER else None


def _first(tx: Transaction, statement: str, queue: Queue) -> int:
    row = tx.execute(SQL[statement], (queue.id,)).fetchone()
    return NEVER if row is None or row[0] is None else int(row[0])


def _make_due(tx: Transaction, queue: Queue, step: int, moved: Moved) -> None:
    rows = tx.execute(SQL["due"], (queue.id, tx.now, step)).fetchall()
    if rows:
        through = (queue.id, *rows[-1])
        tx.execute(SQL["file_due"], through)
        tx.execute(SQL["unschedule_due"], through)
        queue.scheduled -= len(rows)
        queue.ready += len(rows)
        queue.filed = True
        tx.touch(queue)
        moved.due = len(rows)
    queue.due_at = _first(tx, "first_due", queue)
    moved.more |= queue.due_at <= tx.now


def _lapse(tx: Transaction, queue: Queue, step: int, moved: Moved) -> None:
    rows = tx.execute(SQL["lapsed"], (queue.id, tx.now, step)).fetchall()
    if rows:
        tx.execute(SQL["end_lapsed"], (queue.id, *rows[-1][:2]))
    for _, message_id, place, attempts, first_leased_at, expires_at, from_dead, extended in rows:
        if extended:
            tx.execute(SETTLE["forget_extension"], (message_id,))
        if from_dead:
            return_to_dead(tx, queue, message_id)
            continue
        queue.n_lapsed += 1
        if attempts >= queue.options.max_attempts:
            die(
                tx,
                queue,
                message_id,
                place,
                attempts,
                first_leased_at,
                expires_at,
                "lapsed",
                "the lease expired",
            )
        else:
            remember_failure(tx, message_id, attempts, "the lease expired")
            file_again(tx, queue, message_id, place, attempts, first_leased_at, expires_at)
    if rows:
        queue.leased -= len(rows)
        tx.touch(queue)
        moved.lapsed = len(rows)
    queue.lapse_at = _first(tx, "first_lapse", queue)
    moved.more |= queue.lapse_at <= tx.now


def _expire(tx: Transaction, queue: Queue, step: int, moved: Moved) -> None:
    ready = tx.execute(SQL["expired_ready"], (queue.id, tx.now, step)).fetchall()
    for rank, available_at, message_id, place, attempts in ready:
        tx.execute(SQL["drop_ready"], (queue.id, rank, available_at, message_id))
        forget_message(tx, message_id, place, attempts)
    scheduled = tx.execute(SQL["expired_scheduled"], (queue.id, tx.now, step)).fetchall()
    for available_at, message_id, place, attempts in scheduled:
        tx.execute(SQL["drop_scheduled"], (queue.id, available_at, message_id))
        forget_message(tx, message_id, place, attempts)
    moved.expired = len(ready) + len(scheduled)
    if moved.expired:
        queue.ready -= len(ready)
        queue.scheduled -= len(scheduled)
        queue.n_expired += moved.expired
        tx.touch(queue)
    queue.expiry_at = _first(tx, "first_expiry", queue)
    moved.more |= queue.expiry_at <= tx.now


def forget_message(tx: Transaction, message_id: int, place: int, attempts: int) -> None:
    tx.execute(SETTLE["delete"], (place,))
    if attempts:
        tx.execute(SETTLE["forget_failures"], (message_id,))


def file_again(
    tx: Transaction,
    queue: Queue,
    message_id: int,
    place: int,
    attempts: int,
    first_leased_at: int | None,
    expires_at: int | None,
) -> None:
    """Back among the ready, where it was."""
    tx.execute(SETTLE["file"], (attempts, first_leased_at, expires_at, queue.id, message_id, place))
    queue.filed = True
    queue.ready += 1
    if expires_at is not None:
        queue.expiry_at = min(queue.expiry_at, expires_at)


def return_to_dead(tx: Transaction, queue: Queue, message_id: int) -> None:
    tx.execute(SETTLE["return_dead"], (message_id,))
    queue.dead += 1


def die(
    tx: Transaction,
    queue: Queue,
    message_id: int,
    place: int,
    attempts: int,
    first_leased_at: int | None,
    expires_at: int | None,
    reason: str,
    error: str,
) -> None:
    """Into the queue's dead letters; gone, where it keeps none."""
    queue.n_dead += 1
    if not queue.options.dlq:
        forget_message(tx, message_id, place, attempts)
        return
    remember_failure(tx, message_id, attempts, error)
    ttl_left_ms = None if expires_at is None else max(0, expires_at - tx.now)
    row: tuple[Any, ...] = (
        message_id,
        place,
        queue.id,
        tx.now,
        attempts,
        first_leased_at,
        ttl_left_ms,
        reason,
        error[:ERROR_TEXT_MAX],
    )
    tx.execute(SETTLE["die"], row)
    queue.dead += 1


def remember_failure(tx: Transaction, message_id: int, attempts: int, error: str) -> None:
    tx.execute(SETTLE["remember_failure"], (message_id, attempts, tx.now, error[:ERROR_TEXT_MAX]))
    if attempts > FAILURES_MAX:
        tx.execute(SETTLE["trim_failures"], (message_id, FAILURES_MAX))
