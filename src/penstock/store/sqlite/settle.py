"""Ack, nack, extend and release: what a consumer does with a lease. A stale token changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from penstock.commands import Ack, Extend, Nack, Release, Settled, SettledAll, SettleItem
from penstock.model import State, backoff_ms
from penstock.store.sqlite.advance import (
    SETTLE,
    die,
    file_again,
    remember_failure,
    return_to_dead,
)
from penstock.store.sqlite.queues import Queue
from penstock.store.sqlite.transaction import Transaction

SQL = SETTLE


class Ended(NamedTuple):
    """The lease row that a settle has just deleted."""

    id: int
    place: int
    attempts: int
    first_leased_at: int
    leased_at: int
    expires_at: int | None
    from_dead: int


def ack(tx: Transaction, command: Ack) -> SettledAll:
    queue = tx.home(command.queue)
    results, ended = _end_leases(tx, queue, command.items)
    if ended:
        finish(tx, queue, ended)
    return SettledAll(results)


def finish(tx: Transaction, queue: Queue, ended: Sequence[Ended]) -> None:
    """Archive or delete messages whose leases have ended well."""
    if queue.options.archive_ms == 0:
        delete_places(tx, [lease.place for lease in ended])
    else:
        queue.archived += len(ended)
        tx.connection.executemany(
            SQL["archive"],
            [(e.id, e.place, queue.id, tx.now, e.attempts, e.first_leased_at, e.leased_at) for e in ended],
        )
    for lease in ended:
        if lease.attempts > 1:
            tx.execute(SQL["forget_failures"], (lease.id,))
        if lease.from_dead:
            tx.execute(SQL["forget_dead"], (lease.id,))
    queue.leased -= len(ended)
    queue.n_acked += len(ended)
    tx.touch(queue)


def delete_places(tx: Transaction, places: list[int]) -> None:
    first, last = min(places), max(places)
    if last - first == len(places) - 1:
        tx.execute(SQL["delete_range"], (first, last))
    else:
        tx.execute(SQL["delete_places"], (msgspec.json.encode(places).decode(),))


def nack(tx: Transaction, command: Nack) -> SettledAll:
    queue = tx.home(command.queue)
    results: list[Settled] = []
    states: list[State | None] = []
    for item in command.items:
        lease = _end_lease(tx, queue, item)
        results.append(Settled.OK if lease else _why_not(tx, queue, item.id))
        states.append(_back_off(tx, queue, item, lease) if lease else None)
    return SettledAll(results, states)


def _back_off(tx: Transaction, queue: Queue, item: SettleItem, lease: Ended) -> State | None:
    queue.leased -= 1
    tx.touch(queue)
    if lease.from_dead:
        return_to_dead(tx, queue, lease.id)
        return State.DEAD
    queue.n_nacked += 1
    error = item.error or ""
    if lease.attempts >= queue.options.max_attempts:
        die(
            tx,
            queue,
            lease.id,
            lease.place,
            lease.attempts,
            lease.first_leased_at,
            lease.expires_at,
            "nacked",
            error,
        )
        return State.DEAD if queue.options.dlq else None
    remember_failure(tx, lease.id, lease.attempts, error)
    delay_ms = item.delay_ms
    if delay_ms is None:
        delay_ms = backoff_ms(queue.options, lease.id, lease.attempts)
    if delay_ms == 0:
        tx.execute(SQL["move"], (max(tx.now, queue.newest_at), lease.place))
        file_again(tx, queue, lease.id, lease.place, lease.attempts, lease.first_leased_at, lease.expires_at)
        return State.READY
    available_at = tx.now + delay_ms
    tx.execute(SQL["move"], (available_at, lease.place))
    row = (
        available_at,
        lease.attempts,
        lease.first_leased_at,
        lease.expires_at,
        queue.id,
        lease.id,
        lease.place,
    )
    tx.execute(SQL["schedule"], row)
    queue.scheduled += 1
    queue.due_at = min(queue.due_at, available_at)
    if lease.expires_at is not None:
        queue.expiry_at = min(queue.expiry_at, lease.expires_at)
    return State.SCHEDULED


def extend(tx: Transaction, command: Extend) -> SettledAll:
    queue = tx.home(command.queue)
    until = tx.now + (queue.options.lease_ms if command.lease_ms is None else command.lease_ms)
    results = []
    for item in command.items:
        if item.token is None:
            done = tx.execute(SQL["extend_current"], (until, item.id, queue.id, tx.now))
        else:
            done = tx.execute(SQL["extend"], (until, item.id, token_bytes(item.token), queue.id, tx.now))
        results.append(Settled.OK if done.rowcount else _why_not(tx, queue, item.id))
    queue.lapse_at = min(queue.lapse_at, until)
    return SettledAll(results, leased_until=until)


def release(tx: Transaction, command: Release) -> SettledAll:
    queue = tx.home(command.queue)
    results = []
    for item in command.items:
        lease = _end_lease(tx, queue, item)
        results.append(Settled.OK if lease else _why_not(tx, queue, item.id))
        if lease is None:
            continue
        queue.leased -= 1
        tx.touch(queue)
        if lease.from_dead:
            return_to_dead(tx, queue, lease.id)
        else:
            attempts = lease.attempts - 1
            first = lease.first_leased_at if attempts else None
            file_again(tx, queue, lease.id, lease.place, attempts, first, lease.expires_at)
    return SettledAll(results)


def _end_leases(tx: Transaction, queue: Queue, items: Sequence[SettleItem]) -> tuple[list[Settled], list[Ended]]:
    """End each item's lease; one statement for all items that share a token."""
    ids = {item.id for item in items}
    tokens = {item.token for item in items}
    if len(items) == 1 or len(ids) < len(items) or None in tokens:
        found = [_end_lease(tx, queue, item) for item in items]
        results = [
            Settled.OK if lease else _why_not(tx, queue, item.id) for item, lease in zip(items, found, strict=True)
        ]
        return results, [lease for lease in found if lease]
    ended: list[Ended] = []
    for token in tokens:
        assert token is not None
        of_token = [item.id for item in items if item.token == token]
        rows: Iterable[tuple[int, ...]] = tx.execute(
            SQL["end_many"], (msgspec.json.encode(of_token).decode(), token_bytes(token), queue.id, tx.now)
        )
        ended += [Ended(*row) for row in rows]
    if len(ended) == len(items):
        return [Settled.OK] * len(items), ended
    done = {lease.id for lease in ended}
    return [Settled.OK if item.id in done else _why_not(tx, queue, item.id) for item in items], ended


def _end_lease(tx: Transaction, queue: Queue, item: SettleItem) -> Ended | None:
    if item.token is None:
        rows = tx.execute(SQL["end_current"], (item.id, queue.id, tx.now)).fetchall()
    else:
        rows = tx.execute(SQL["end_one"], (item.id, token_bytes(item.token), queue.id, tx.now)).fetchall()
    return Ended(*rows[0]) if rows else None


def _why_not(tx: Transaction, queue: Queue, message_id: int) -> Settled:
    places = (queue.place(message_id, plain=True), queue.place(message_id, plain=False))
    known = tx.execute(SQL["is_known"], (*places, message_id)).fetchone()
    return Settled.STALE if known else Settled.UNKNOWN


def token_bytes(token: str) -> bytes:
    """A token as it is stored; text that never was one matches nothing."""
    try:
        return bytes.fromhex(token)
    except ValueError:
        return b""
