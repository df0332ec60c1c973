"""Lease and take from a queue, its dead letters, or all queues of a namespace or task."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from penstock.core.commands import CatchUp, Lease, Leased, Take
from penstock.core.ids import DLQ_SUFFIX, ID_MAX
from penstock.core.latency import WAIT
from penstock.core.model import Delivery
from penstock.core.sql_files import load_sql
from penstock.journal.events import EventFlag, Kind
from penstock.journal.recording import record_leased, record_leased_plain, record_taken, worker_details
from penstock.store.common import CONTENTS, ByteBudget, delivery, new_token, new_tokens
from penstock.store.sqlite import lease_ranges
from penstock.store.sqlite.journal import error_details
from penstock.store.sqlite.queues import ANYTHING, LEASED, SqliteQueue
from penstock.store.sqlite.transaction import SqliteTransaction
from penstock.store.sqlite.transitions import SETTLE, advance, wake_at

SQL = load_sql("penstock.store.sqlite", "lease")
PLAIN, LEASE_ONE = SQL["plain"], SQL["lease_one_plain"]
Row = tuple[Any, ...]


def lease(tx: SqliteTransaction, command: Lease) -> Leased:
    if command.scope is not None:
        return _lease_scope(tx, command, command.scope)
    assert command.queue is not None
    queue = tx.find(command.queue)
    if queue is None and command.queue.endswith(DLQ_SUFFIX):
        return _lease_dead(tx, tx.home(command.queue), command)
    return _lease_queue(tx, queue or tx.queue(command.queue), command)


def lease_together(tx: SqliteTransaction, name: str, commands: Sequence[Lease]) -> list[Leased] | None:
    """Serve several leases of a queue with only plain messages, in order, each with its own token."""
    queue = tx.find(name)
    if (
        queue is None
        or queue.options.max_in_flight is not None
        or _blocked(tx, queue) is not None
        or queue.has_indexed_rows
    ):
        return None
    wanted = sum(command.limit for command in commands)
    rows = tx.room.fetch(tx.execute(PLAIN, (queue.cursor, queue.plain_end, wanted))) if queue.ready else []
    now, default_ms = tx.now, queue.options.lease_ms
    untils = [now + (default_ms if command.lease_ms is None else command.lease_ms) for command in commands]
    ids, pushed = [row[0] & ID_MAX for row in rows], [row[1] for row in rows]
    leases, shares, workers, ends = [], [], [], []
    taken = 0
    for command, until, token in zip(commands, untils, new_tokens(untils), strict=True):
        start, worker = taken, command.worker
        part = rows[start : start + command.limit]
        taken += len(part)
        shares.append(plain_deliveries(part, name, tx.store_id, until, token.hex()))
        workers += [worker] * len(part)
        ends += [until] * len(part)
        if len(part) == 1:
            leases.append((ids[start], part[0][0], queue.id, token, now, until, now, worker))
            tx.remember(ids[start], (until, token, now, pushed[start]))
        elif part:
            lease_ranges.add(tx, queue, until, token, worker, ids[start:taken], pushed[start:taken])
    if rows:
        queue.check_next(rows[0][0])
        tx.connection.executemany(LEASE_ONE, leases)
        queue.count_leased(rows[-1][0], len(rows), min(untils))
        tx.touch(queue, LEASED)
        tx.latencies.add(queue.id, WAIT, now, pushed)
        if queue.is_journalled:
            columns = (ids, pushed, now, now, ends, 1, 0, 0)
            tx.journal.note_columns(Kind.LEASED, queue, len(ids), columns, 0, worker_details(workers))
    wake = wake_at(queue)
    return [Leased(share, more=tx.room.is_full, wake_at=None if share else wake) for share in shares]


def take(tx: SqliteTransaction, command: Take) -> Leased:
    queue = tx.queue(command.queue)
    blocked = _blocked(tx, queue)
    if blocked is not None:
        return blocked
    allowed = _allowed(queue, command.limit)
    # A query with limit 0 would find nothing and mark the queue as empty.
    plain, indexed, messages = _pick(tx, queue, allowed, 0, "") if allowed else ([], [], [])
    if messages:
        if queue.is_journalled:
            details = error_details(tx, [(each.id, each.attempts > 1) for each in messages])
            record_taken(tx, queue, messages, _first_leased(indexed), details)
        _finish_picked(tx, queue, plain, indexed)
    return Leased(messages, wake_at=None if messages else wake_at(queue))


def catch_up(tx: SqliteTransaction, command: CatchUp) -> Leased:
    queue = tx.home(command.queue)
    return Leased([], more=advance(tx, queue).more, wake_at=wake_at(queue))


def _lease_queue(tx: SqliteTransaction, queue: SqliteQueue, command: Lease) -> Leased:
    blocked = _blocked(tx, queue)
    if blocked is not None:
        return blocked
    messages = _lease_head(tx, queue, command.limit, command)
    return Leased(messages, wake_at=None if messages else wake_at(queue))


def _blocked(tx: SqliteTransaction, queue: SqliteQueue) -> Leased | None:
    """Apply due transitions, and return the outcome if nothing may be leased now, or None."""
    if advance(tx, queue).more or tx.room.is_full:
        return Leased([], more=True)
    if queue.paused:
        return Leased([])
    window_ms = queue.options.window_ms
    if window_ms:
        opens_at = _newest_at(tx, queue) + window_ms
        if opens_at > tx.now:
            return Leased([], wake_at=opens_at)
    return None


def _newest_at(tx: SqliteTransaction, queue: SqliteQueue) -> int:
    """Return the push time of the newest message. A time in the future predates a clock that was set back."""
    newest_at: int = queue.newest_at
    if newest_at > tx.now:
        row = tx.execute(SQL["newest"], (queue.id,)).fetchone()
        newest_at = row[0] if row and row[0] <= tx.now else 0
    return newest_at


def _lease_head(tx: SqliteTransaction, queue: SqliteQueue, limit: int, command: Lease) -> list[Delivery]:
    if queue.options.max_in_flight is not None:
        limit = _allowed(queue, limit)
    if limit <= 0 or not queue.ready or tx.room.is_full:
        return []
    until = tx.now + (queue.options.lease_ms if command.lease_ms is None else command.lease_ms)
    token = new_token(until)
    if limit == 1 and not queue.has_indexed_rows:
        return _lease_next(tx, queue, until, token, command.worker)
    plain, indexed, messages = _pick(tx, queue, limit, until, token.hex())
    if not messages:
        return messages
    now, worker = tx.now, command.worker
    ids, pushed = [row[0] & ID_MAX for row in plain], [row[1] for row in plain]
    if plain:
        queue.check_next(plain[0][0])
    if len(plain) == 1:
        tx.execute(LEASE_ONE, (ids[0], plain[0][0], queue.id, token, now, until, now, worker))
        tx.remember(ids[0], (until, token, now, pushed[0]))
    elif plain:
        lease_ranges.add(tx, queue, until, token, worker, ids, pushed)
    if indexed:
        through = indexed[-1][:3]
        tx.execute(SQL["lease_filed"], (queue.id, token, now, until, now, worker, queue.id, *through))
        tx.execute(SQL["unfile"], (queue.id, *through))
    queue.count_leased(plain[-1][0] if plain else queue.cursor, len(messages), until)
    tx.touch(queue, ANYTHING if indexed else LEASED)
    if indexed:
        pushed = [each.created_at for each in messages if each.attempts == 1]
    if queue.is_journalled:
        if indexed:
            record_leased(tx, queue, messages, [worker] * len(messages), _first_leased(indexed))
        else:
            record_leased_plain(tx, queue, ids, pushed, until, worker)
    tx.latencies.add(queue.id, WAIT, now, pushed)
    return messages


def _lease_next(
    tx: SqliteTransaction, queue: SqliteQueue, until: int, token: bytes, worker: str | None
) -> list[Delivery]:
    """Lease one message of a queue with only plain messages."""
    row = tx.execute(PLAIN, (queue.cursor, queue.plain_end, 1)).fetchone()
    if row is None:
        return []
    row_key: int = row[0]
    queue.check_next(row_key)
    message_id, now = row_key & ID_MAX, tx.now
    tx.execute(LEASE_ONE, (message_id, row_key, queue.id, token, now, until, now, worker))
    tx.remember(message_id, (until, token, now, row[1]))
    queue.count_leased(row_key, 1, until)
    tx.touch(queue, LEASED)
    tx.latencies.add_one(queue.id, WAIT, now - row[1])
    tx.room.left -= len(row[-1])
    if queue.is_journalled:
        record_leased_plain(tx, queue, [message_id], [row[1]], until, worker)
    return plain_deliveries([row], queue.name, tx.store_id, until, token.hex())


def _first_leased(indexed: list[Row]) -> dict[int, int]:
    return {row[2]: row[5] for row in indexed if row[5] is not None}


def _allowed(queue: SqliteQueue, limit: int) -> int:
    """Return how many more messages `max_in_flight` allows."""
    max_in_flight = queue.options.max_in_flight
    return limit if max_in_flight is None else max(0, min(limit, max_in_flight - queue.leased))


def _pick(
    tx: SqliteTransaction, queue: SqliteQueue, limit: int, until: int, token: str
) -> tuple[list[Row], list[Row], list[Delivery]]:
    """Return the first messages of a queue: plain rows, rows of the ready table, and both in order as deliveries."""
    name, store_id = queue.name, tx.store_id
    indexed = (
        ByteBudget(tx.room.left).fetch(tx.execute(SQL["indexed"], (queue.id, limit))) if queue.has_indexed_rows else []
    )
    plain_rows = tx.execute(PLAIN, (queue.cursor, queue.plain_end, limit))
    if not indexed:
        queue.has_indexed_rows = False
        plain = tx.room.fetch(plain_rows)
        return plain, indexed, plain_deliveries(plain, name, store_id, until, token)
    plain = ByteBudget(tx.room.left).fetch(plain_rows)
    keyed_plain = [((0, row[1] if row[2] is None else row[2], row[0] & ID_MAX), row) for row in plain]
    merged = (row for _, row in heapq.merge(keyed_plain, ((row[:3], row) for row in indexed)))
    taken_plain, taken_indexed, messages = [], [], []
    for row in islice(tx.room.take(merged), limit):
        if len(row) == 8:
            taken_plain.append(row)
            messages += plain_deliveries([row], name, store_id, until, token)
        else:
            taken_indexed.append(row)
            messages.append(delivery(row[2], row[4] + 1, row[6], row[7:], name, store_id, until, token))
    return taken_plain, taken_indexed, messages


def plain_deliveries(rows: Sequence[Row], queue: str, store_id: int, until: int, token: str) -> list[Delivery]:
    """Return the deliveries of plain messages in their first lease, in one pass."""
    return [
        Delivery(
            id=row_key & ID_MAX,
            uuid_source=store_id,
            queue=queue,
            payload=payload,
            content=CONTENTS[content],
            priority=priority,
            attempts=1,
            created_at=created_at,
            leased_until=until,
            token=token,
            key=key,
            headers=None if headers is None else msgspec.json.decode(headers),
        )
        for row_key, created_at, _, priority, content, key, headers, payload in rows
    ]


def _finish_picked(tx: SqliteTransaction, queue: SqliteQueue, plain: list[Row], indexed: list[Row]) -> None:
    """Archive or delete taken messages, which never had a lease."""
    keep = queue.options.archive_ms != 0
    archive_of = (queue.id, tx.now, tx.now, tx.now)
    if indexed:
        through = (queue.id, *indexed[-1][:3])
        if keep:
            tx.execute(SQL["archive_filed"], (*archive_of, *through))
        else:
            tx.connection.executemany(SETTLE["delete"], [(row[3],) for row in indexed])
        tx.connection.executemany(SETTLE["forget_failures"], [(row[2],) for row in indexed if row[4]])
        tx.execute(SQL["unfile"], through)
    if plain:
        last = plain[-1][0]
        queue.check_next(last)
        if keep:
            tx.execute(SETTLE["archive_plain"], (*archive_of, queue.cursor + 1, last))
        else:
            tx.execute(SETTLE["delete_range"], (queue.cursor + 1, last))
        queue.cursor = last
    count = len(plain) + len(indexed)
    queue.ready -= count
    queue.archived += count if keep else 0
    queue.n_leased += count
    queue.n_acked += count
    tx.touch(queue)


def _lease_dead(tx: SqliteTransaction, queue: SqliteQueue, command: Lease) -> Leased:
    """Lease dead letters, oldest first. They use no attempts, and return to the dead letters if not acknowledged."""
    if advance(tx, queue).more or tx.room.is_full:
        return Leased([], more=True)
    rows = tx.room.fetch(tx.execute(SQL["dead"], (queue.id, command.limit)))
    if not rows:
        return Leased([], wake_at=wake_at(queue))
    until = tx.now + (queue.options.lease_ms if command.lease_ms is None else command.lease_ms)
    token = new_token(until)
    through = rows[-1][:2]
    tx.execute(SQL["lease_dead"], (queue.id, token, tx.now, until, tx.now, command.worker, queue.id, *through))
    tx.execute(SQL["mark_dead_leased"], (queue.id, *through))
    queue.dead -= len(rows)
    queue.leased += len(rows)
    queue.n_leased += len(rows)
    queue.lease_expiry_at = min(queue.lease_expiry_at, until)
    tx.touch(queue)
    name = queue.name + DLQ_SUFFIX
    messages = [delivery(row[1], row[3], row[5], row[6:], name, tx.store_id, until, token.hex()) for row in rows]
    if queue.is_journalled:
        first_leased = {row[1]: row[4] for row in rows if row[4] is not None}
        record_leased(tx, queue, messages, [command.worker] * len(messages), first_leased, EventFlag.DEAD_LETTER)
    return Leased(messages)


def _lease_scope(tx: SqliteTransaction, command: Lease, scope: str) -> Leased:
    """Lease by queue priority, then from the queue whose next message is oldest. Reads only queues with messages."""
    # Writing the counters of this batch brings the list of busy queues up to date.
    tx.write_counters()
    names = tx.execute(SQL["busy_in_scope"], (scope + "/", scope + "0")).fetchall()
    by_priority: dict[int, list[SqliteQueue]] = {}
    wake: int | None = None
    more = False
    for (name,) in names:
        queue = tx.queue(name)
        blocked = _blocked(tx, queue)
        if blocked is None:
            by_priority.setdefault(-queue.options.priority, []).append(queue)
        else:
            more |= blocked.more
        at = wake_at(queue) if blocked is None else blocked.wake_at
        if at is not None:
            wake = at if wake is None else min(wake, at)
    if more:
        return Leased([], more=True)
    messages: list[Delivery] = []
    for rank in sorted(by_priority):
        messages += _lease_oldest(tx, by_priority[rank], command.limit - len(messages), command)
        if len(messages) >= command.limit or tx.room.is_full:
            break
    return Leased(messages, wake_at=None if messages else wake)


def _lease_oldest(tx: SqliteTransaction, queues: list[SqliteQueue], limit: int, command: Lease) -> list[Delivery]:
    """Merge the heads of queues of one priority by age, then lease each queue's share at once."""
    if len(queues) == 1:
        return _lease_head(tx, queues[0], limit, command)
    heads = [(ages, queue) for queue in queues if (ages := _head_ages(tx, queue, limit))]
    heap = [(ages[0], number, 0) for number, (ages, _) in enumerate(heads)]
    heapq.heapify(heap)
    order: list[int] = []
    while heap and len(order) < limit:
        _, number, taken = heap[0]
        order.append(number)
        ages = heads[number][0]
        if taken + 1 < len(ages):
            heapq.heapreplace(heap, (ages[taken + 1], number, taken + 1))
        else:
            heapq.heappop(heap)
    numbers = dict.fromkeys(order)
    shares = {number: iter(_lease_head(tx, heads[number][1], order.count(number), command)) for number in numbers}
    return [message for number in order if (message := next(shares[number], None)) is not None]


def _head_ages(tx: SqliteTransaction, queue: SqliteQueue, limit: int) -> list[tuple[int, int]]:
    """Return (available_at, id) of the next messages, in lease order."""
    limit = _allowed(queue, limit)
    if limit <= 0 or not queue.ready:
        return []
    indexed = tx.execute(SQL["heads"], (queue.id, limit)).fetchall() if queue.has_indexed_rows else []
    plain = tx.execute(SQL["plain_heads"], (queue.cursor, queue.plain_end, limit)).fetchall()
    merged = heapq.merge(indexed, ((0, at, message_id) for at, message_id in plain))
    return [(at, message_id) for _, (_, at, message_id) in zip(range(limit), merged, strict=False)]
