"""Lease and take from a queue or its dead letters; `scope` leases from a namespace or task.

Adjacent leases of one queue in a batch read its head once and share it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from penstock.core.commands import CatchUp, Lease, Leased, Take
from penstock.core.ids import DLQ_SUFFIX, ID_MAX
from penstock.core.latency import WAIT
from penstock.core.model import LEASE_BYTES_MAX, Delivery
from penstock.errors import PenstockError
from penstock.journal.events import EventFlag
from penstock.journal.recording import record_leased, record_taken
from penstock.postgres.pipeline import Row, Rows, Statement, blobs, ints, ints_or_nulls, texts
from penstock.store.common import NO_TRANSITIONS, ByteBudget, delivery, new_tokens
from penstock.store.postgres.journal import error_details
from penstock.store.postgres.queues import PostgresQueue
from penstock.store.postgres.recent_leases import RecentLease
from penstock.store.postgres.settlement import forget, text
from penstock.store.postgres.transaction import PostgresTransaction
from penstock.store.postgres.transitions import advance, wake_at

PLAIN_COLUMNS = 8


class Heads:
    """The first messages of a queue, in order, shared by several leases and written once at the end."""

    def __init__(self, queue: PostgresQueue, plain: Rows, indexed: Rows, room: ByteBudget) -> None:
        self.queue = queue
        in_order: Iterable[Row] = plain
        if indexed:
            keyed = [((0, row[1] if row[2] is None else row[2], row[0] & ID_MAX), row) for row in plain]
            in_order = (row for _, row in heapq.merge(keyed, ((row[1:4], row) for row in indexed)))
        self._left = room.take(in_order)
        self.taken: list[Row] = []
        # Leases of plain messages, and of others.
        self.ranges: list[RecentLease] = []
        self.leases: list[tuple[int, int, bytes, int, int | None, int | None, str | None]] = []
        self.workers: list[str | None] = []

    def take(self, limit: int) -> list[Row]:
        rows = list(islice(self._left, limit))
        self.taken += rows
        return rows


def early_statements(tx: PostgresTransaction, commands: Sequence[Lease]) -> list[Statement]:
    """Return the queries for the heads of the queues, to go with the first round trip."""
    wanted: dict[int, int] = {}
    for command in commands:
        queue_id = None if command.queue is None else tx.context.ids.get(command.queue)
        if queue_id is not None:
            wanted[queue_id] = wanted.get(queue_id, 0) + command.limit
    if not wanted:
        return []
    params = (ints(wanted), ints(wanted.values()), LEASE_BYTES_MAX)
    return [Statement(tx.context.sql[name], params) for name in ("lease.plain", "lease.indexed")]


def lease_all(tx: PostgresTransaction, commands: Sequence[Lease]) -> list[Leased | PenstockError]:
    """Execute a run of leases from queues and dead letters."""
    early, tx.early_rows = tx.early_rows, []
    heads: dict[int, Heads] = {}
    outcomes: list[Leased | PenstockError] = []
    for command in commands:
        assert command.queue is not None
        try:
            queue = tx.queue(command.queue)
            if command.queue.endswith(DLQ_SUFFIX):
                outcomes.append(lease_dead(tx, queue, command))
                continue
            moved = advance(tx, queue)
            if moved is not NO_TRANSITIONS:
                early = []
            blocked = why_not(tx, queue, moved.more)
            if blocked is not None:
                outcomes.append(blocked)
                continue
            mine = heads.get(queue.id)
            if mine is None:
                limit = sum(each.limit for each in commands if each.queue == command.queue)
                mine = heads[queue.id] = read_heads(tx, queue, limit, early)
            messages = lease_share(tx, mine, command)
            outcomes.append(Leased(messages, wake_at=None if messages else wake_at(tx, queue)))
        except PenstockError as error:
            outcomes.append(error)
    write_leases(tx, heads.values())
    return outcomes


def why_not(tx: PostgresTransaction, queue: PostgresQueue, more: bool) -> Leased | None:
    """Return the outcome if nothing may be leased now, or None."""
    if more or tx.room.is_full:
        return Leased([], more=True)
    if queue.paused:
        return Leased([])
    window_ms = queue.options.window_ms
    if window_ms:
        opens_at = _newest_at(tx, queue) + window_ms
        if opens_at > tx.now:
            return Leased([], wake_at=opens_at)
    return None


def _newest_at(tx: PostgresTransaction, queue: PostgresQueue) -> int:
    """Return the push time of the newest message. A time in the future predates a clock that was set back."""
    newest_at = queue.newest_at
    if newest_at > tx.now:
        rows = tx.fetch("lease.newest", queue.id)
        newest_at = rows[0][0] if rows and rows[0][0] <= tx.now else 0
    return newest_at


def allowed(queue: PostgresQueue, limit: int) -> int:
    """Return how many more messages `max_in_flight` allows."""
    max_in_flight = queue.options.max_in_flight
    return limit if max_in_flight is None else max(0, min(limit, max_in_flight - queue.in_flight))


def read_heads(tx: PostgresTransaction, queue: PostgresQueue, limit: int, early: Sequence[Rows] = ()) -> Heads:
    if early:
        plain, indexed = early
    else:
        tx.write_counters()  # The cursor is part of them.
        params = (ints([queue.id]), ints([limit]), tx.room.left)
        plain, indexed = tx.fetch_all(("lease.plain", *params), ("lease.indexed", *params))
    first, last = queue.plain_start, queue.plain_end
    mine = [row for row in plain if first < row[0] < last], [row for row in indexed if row[0] == queue.id]
    return Heads(queue, *mine, tx.room)


def lease_share(tx: PostgresTransaction, heads: Heads, command: Lease) -> list[Delivery]:
    queue = heads.queue
    rows = heads.take(allowed(queue, command.limit))
    if not rows:
        return []
    now = tx.now
    until = now + (queue.options.lease_ms if command.lease_ms is None else command.lease_ms)
    (token,) = new_tokens([until])
    shown, worker = token.hex(), None if command.worker is None else text(command.worker)
    plain: dict[int, int] = {}
    for row in rows:
        if len(row) == PLAIN_COLUMNS:
            plain[row[0] & ID_MAX] = row[1]
        else:
            heads.leases.append((row[4], until, token, row[5] + 1, row[6], row[7], worker))
    if plain:
        _lease_range(tx, heads, (until, token, worker), plain)
    messages = [leased_message(row, queue.name, tx.store_id, until, shown) for row in rows]
    queue.count(ready=-len(rows), leased=len(rows), n_leased=len(rows))
    queue.lease_expiry_at = min(queue.lease_expiry_at, until)
    if queue.is_journalled:
        record_leased(tx, queue, messages, [worker] * len(messages), _first_leased(rows))
    waits = [now - message.created_at for message in messages if message.attempts == 1]
    tx.context.latencies.add(queue.id, WAIT, waits)
    return messages


def _lease_range(
    tx: PostgresTransaction, heads: Heads, lease: tuple[int, bytes, str | None], pushed: dict[int, int]
) -> None:
    """Lease the next plain messages of a queue, given their push times by id."""
    queue, (until, token, worker) = heads.queue, lease
    first_id, last_id = next(iter(pushed)), next(reversed(pushed))
    queue.move_cursor(queue.plain_start + first_id, queue.plain_start + last_id)
    heads.ranges.append(RecentLease(queue.name, queue.id, until, first_id, last_id, token, tx.now, pushed))
    heads.workers.append(worker)


def write_leases(tx: PostgresTransaction, all_heads: Iterable[Heads]) -> None:
    all_heads = list(all_heads)
    ranges = [each for heads in all_heads for each in heads.ranges]
    if ranges:
        _, queue_ids, untils, firsts, lasts, tokens, _, pushed = zip(*ranges, strict=True)
        keys = ints(queue_ids), ints(untils), ints(firsts), ints(lasts)
        workers = texts([worker for heads in all_heads for worker in heads.workers])
        tx.write("lease_range.add", tx.now, *keys, ints(map(len, pushed)), blobs(tokens), workers)
        tx.granted += ranges
    leases = [lease for heads in all_heads for lease in heads.leases]
    if leases:
        _write_single(tx, leases)
    delete_ready_row(tx, [row for heads in all_heads for row in heads.taken])


def _write_single(tx: PostgresTransaction, leases: Sequence[tuple[Any, ...]]) -> None:
    row_keys, untils, tokens, attempts, firsts, expiries, workers = zip(*leases, strict=True)
    counts = ints(()) if all(count == 1 for count in attempts) else ints(attempts)
    first, expires = ints_or_nulls(firsts), ints_or_nulls(expiries)
    tx.write("lease.lease", tx.now, ints(row_keys), ints(untils), blobs(tokens), counts, first, expires, texts(workers))


def delete_ready_row(tx: PostgresTransaction, rows: Sequence[Row]) -> None:
    indexed = [row[:4] for row in rows if len(row) != PLAIN_COLUMNS]
    if indexed:
        tx.write("lease.unfile", *(ints(column) for column in zip(*indexed, strict=True)))


def leased_message(row: Row, queue: str, store_id: int, until: int, token: str) -> Delivery:
    if len(row) == PLAIN_COLUMNS:
        return delivery(row[0] & ID_MAX, 1, row[1], row[3:], queue, store_id, until, token)
    return delivery(row[3], row[5] + 1, row[8], row[9:], queue, store_id, until, token)


def take(tx: PostgresTransaction, command: Take) -> Leased:
    queue = tx.itself(command.queue)
    blocked = why_not(tx, queue, advance(tx, queue).more)
    if blocked is not None:
        return blocked
    rows = read_heads(tx, queue, command.limit).take(allowed(queue, command.limit))
    if not rows:
        return Leased([], wake_at=wake_at(tx, queue))
    messages = [leased_message(row, queue.name, tx.store_id, 0, "") for row in rows]
    if queue.is_journalled:
        details = error_details(tx, [(each.id, each.attempts > 1) for each in messages])
        record_taken(tx, queue, messages, _first_leased(rows), details)
    _finish(tx, queue, rows)
    return Leased(messages)


def _first_leased(rows: Sequence[Row]) -> dict[int, int]:
    return {row[3]: row[6] for row in rows if len(row) != PLAIN_COLUMNS and row[6] is not None}


def _finish(tx: PostgresTransaction, queue: PostgresQueue, rows: list[Row]) -> None:
    """Archive or delete taken messages, which never had a lease."""
    plain = [row for row in rows if len(row) == PLAIN_COLUMNS]
    indexed = [row for row in rows if len(row) != PLAIN_COLUMNS]
    if plain:
        queue.move_cursor(plain[0][0], plain[-1][0])
    # Rows of id, row key, attempts so far, and time of the first lease.
    taken: list[tuple[Any, ...]] = [(row[0] & ID_MAX, row[0], 0, None) for row in plain]
    taken += [(row[3], row[4], row[5], row[6]) for row in indexed]
    if queue.options.archive_ms == 0:
        forget(tx, [each[:3] for each in taken])
    else:
        tx.write(
            "lease.archive",
            tx.now,
            ints(each[1] for each in taken),
            ints(each[2] + 1 for each in taken),
            ints_or_nulls([each[3] for each in taken]),
            ints(()),
        )
        failed = [each[0] for each in taken if each[2]]
        if failed:
            tx.write("settle.forget_failures", ints(failed))
        queue.count(archived=len(rows))
    delete_ready_row(tx, indexed)
    queue.count(ready=-len(rows), n_leased=len(rows), n_acked=len(rows))


def lease_dead(tx: PostgresTransaction, queue: PostgresQueue, command: Lease) -> Leased:
    """Lease dead letters, oldest first. They use no attempts, and return to the dead letters if not acknowledged."""
    if advance(tx, queue).more or tx.room.is_full:
        return Leased([], more=True)
    rows = sorted(tx.fetch("lease.dead", queue.id, command.limit, tx.room.left), key=lambda row: row[:2])
    if not rows:
        return Leased([], wake_at=wake_at(tx, queue))
    tx.room.left -= sum(len(row[-1]) for row in rows)
    until = tx.now + (queue.options.lease_ms if command.lease_ms is None else command.lease_ms)
    (token,) = new_tokens([until])
    row_keys, attempts = ints(row[2] for row in rows), ints(row[3] for row in rows)
    first = ints_or_nulls([row[4] for row in rows])
    worker = None if command.worker is None else text(command.worker)
    tx.write("lease.lease_dead", tx.now, until, token, worker, row_keys, attempts, first)
    if "/" in queue.name:
        tx.write("push.busy", ints([queue.id]), texts([queue.name]))
    queue.count(dead=-len(rows), leased=len(rows), n_leased=len(rows))
    queue.lease_expiry_at = min(queue.lease_expiry_at, until)
    name = queue.name + DLQ_SUFFIX
    messages = [delivery(row[1], row[3], row[5], row[6:], name, tx.store_id, until, token.hex()) for row in rows]
    if queue.is_journalled:
        first_leased = {row[1]: row[4] for row in rows if row[4] is not None}
        record_leased(tx, queue, messages, [worker] * len(messages), first_leased, EventFlag.DEAD_LETTER)
    return Leased(messages)


def catch_up(tx: PostgresTransaction, command: CatchUp) -> Leased:
    queue = tx.queue(command.queue)
    return Leased([], more=advance(tx, queue).more, wake_at=wake_at(tx, queue))
