"""Ack, nack, extend and release. A stale token changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.core.commands import Ack, Extend, Nack, Release, Settled, SettledAll, SettleItem
from penstock.core.ids import ID_MAX
from penstock.core.latency import SERVICE, TOTAL
from penstock.core.model import State, backoff_ms
from penstock.errors import InvariantBroken
from penstock.journal.events import EventFlag, Kind
from penstock.store.common import (
    ACKED,
    NACKED,
    NACKED_INTO,
    RELEASED,
    check_lease,
    check_tokens,
    nacked_into,
    token_bytes,
)
from penstock.store.sqlite import lease_ranges
from penstock.store.sqlite.journal import error_details, pushed_times
from penstock.store.sqlite.queues import SETTLED, SqliteQueue
from penstock.store.sqlite.settled_tokens import recall, remember, remember_range
from penstock.store.sqlite.transaction import NotAsRemembered, RecentRange, SqliteTransaction
from penstock.store.sqlite.transitions import (
    SETTLE,
    EndedLeaseRow,
    dead_letter,
    record_ended,
    remember_failure,
    requeue,
    return_to_dead,
)

SQL = SETTLE
DELETE, DELETE_RANGE = SQL["delete"], SQL["delete_range"]
LEASE_AT, END_LEASE, END_RECENT = SQL["lease_at"], SQL["end_lease"], SQL["end_fresh"]
OK = Settled.OK


def ack(tx: SqliteTransaction, command: Ack) -> SettledAll:
    queue = tx.home(command.queue)
    check_tokens(queue.name, queue.options, command.items)
    if len(command.items) > 1:
        if part := lease_ranges.end_recent(tx, queue, command.items):
            _finish_range(tx, queue, part)
            return SettledAll([OK] * len(part.ids))
        if recent := _end_recent(tx, queue, command.items):
            finish(tx, queue, recent)
            return SettledAll([OK] * len(recent))
    results, ended = _end_leases(tx, queue, command.items)
    if ended:
        finish(tx, queue, ended)
    return SettledAll(results)


def ack_together(tx: SqliteTransaction, name: str, commands: Sequence[Ack]) -> list[SettledAll] | None:
    queue = tx.find(name)
    if queue is None:
        return None
    ended = _end_recent(tx, queue, [item for command in commands for item in command.items])
    if ended is None:
        return None
    finish(tx, queue, ended)
    return [SettledAll([OK] * len(command.items)) for command in commands]


def _end_recent(tx: SqliteTransaction, queue: SqliteQueue, items: Sequence[SettleItem]) -> list[EndedLeaseRow] | None:
    """End leases that this process gave out recently without reading their rows; None if any is not cached."""
    known, now, lane = tx.recent_leases, tx.now, queue.plain_start
    ended: list[EndedLeaseRow] = []
    leases: dict[int, tuple[int, int, int, bytes]] = {}
    for item in items:
        recent = known.get(item.id)
        if recent is None or item.token != recent[1].hex() or recent[0] <= now or item.id in leases:
            return None
        until, token, leased_at, pushed_at = recent
        leases[item.id] = (queue.id, until, item.id, token)
        ended.append(EndedLeaseRow(item.id, lane | item.id, 1, leased_at, leased_at, None, 0, 0, pushed_at, token))
    for message_id in leases:
        del known[message_id]
    first, last = min(leases), max(leases)
    _, until, _, token = leases[first]
    if last - first == len(leases) - 1 and all(lease[3] == token for lease in leases.values()):
        done = tx.execute(SQL["end_fresh_range"], (queue.id, until, first, last, token)).rowcount
    else:
        done = tx.connection.executemany(END_RECENT, leases.values()).rowcount
    if done != len(leases):
        raise NotAsRemembered
    return ended


def finish(tx: SqliteTransaction, queue: SqliteQueue, ended: Sequence[EndedLeaseRow], how: int = ACKED) -> None:
    """Archive or delete acknowledged messages."""
    remember(tx, queue, ended, how)
    if queue.is_journalled:
        pushed = _record_acked(tx, queue, ended)
    else:
        # Reading the other push times would cost time, so their total latency is not counted.
        pushed = [lease.pushed_at for lease in ended if lease.pushed_at is not None]
    if queue.options.archive_ms == 0:
        delete_messages(tx, [lease.row_key for lease in ended])
    else:
        queue.archived += len(ended)
        tx.connection.executemany(
            SQL["archive"],
            [(e.id, e.row_key, queue.id, tx.now, e.attempts, e.first_leased_at, e.leased_at) for e in ended],
        )
    for lease in ended:
        if lease.attempts > 1 or lease.from_dead:
            tx.execute(SQL["forget_failures"], (lease.id,))
        if lease.from_dead:
            tx.execute(SQL["forget_dead"], (lease.id,))
    tx.latencies.add(queue.id, SERVICE, tx.now, [lease.leased_at for lease in ended])
    _count_acked(tx, queue, len(ended), pushed)


def _finish_range(tx: SqliteTransaction, queue: SqliteQueue, ended: RecentRange) -> None:
    """Archive or delete the messages of a range, as `finish` does, without handling each of them."""
    ids, leased_at = ended.ids, ended.leased_at
    keep = queue.options.archive_ms != 0
    remember_range(tx, queue, ended.token, ids, ACKED)
    if queue.is_journalled:
        columns = (ids, ended.pushed, leased_at, leased_at, 0, 1, 0, 0)
        tx.journal.note_columns(Kind.ACKED, queue, len(ids), columns, EventFlag.KEPT if keep else 0)
    first, last = queue.plain_start | ids[0], queue.plain_start | ids[-1]
    if keep:
        done = tx.execute(SQL["archive_plain"], (queue.id, tx.now, leased_at, leased_at, first, last)).rowcount
        queue.archived += done
    else:
        done = tx.execute(DELETE_RANGE, (first, last)).rowcount
    if done != len(ids):
        raise InvariantBroken(f"{queue.name!r}: a lease of {len(ids)} messages holds {done}")
    tx.latencies.add_one(queue.id, SERVICE, tx.now - leased_at, done)
    _count_acked(tx, queue, done, ended.pushed)


def _count_acked(tx: SqliteTransaction, queue: SqliteQueue, count: int, pushed: Sequence[int]) -> None:
    queue.leased -= count
    queue.n_acked += count
    tx.touch(queue, SETTLED)
    tx.latencies.add(queue.id, TOTAL, tx.now, pushed)


def _record_acked(tx: SqliteTransaction, queue: SqliteQueue, ended: Sequence[EndedLeaseRow]) -> list[int]:
    """Record acks in the journal, and return when each message was pushed."""
    kept = EventFlag.KEPT if queue.options.archive_ms != 0 else 0
    times = [lease.pushed_at for lease in ended if lease.pushed_at is not None]
    if len(times) == len(ended):
        # All are plain messages in their first lease.
        ids, leased_at = [lease.id for lease in ended], [lease.leased_at for lease in ended]
        tx.journal.note_columns(Kind.ACKED, queue, len(ids), (ids, times, leased_at, leased_at, 0, 1, 0, 0), kept)
        return times
    times = []
    # Dead letters are recorded separately, because flags apply to all events of one call.
    for from_dead in {lease.from_dead for lease in ended}:
        alike = [lease for lease in ended if lease.from_dead == from_dead]
        pushed = pushed_times(tx, [lease.row_key for lease in alike])
        times += pushed
        rows = [
            (lease.id, pushed_at, lease.first_leased_at or 0, lease.leased_at, 0, lease.attempts, 0, 0)
            for lease, pushed_at in zip(alike, pushed, strict=True)
        ]
        details = error_details(tx, [(lease.id, lease.attempts > 1) for lease in alike])
        tx.journal.note(Kind.ACKED, queue, rows, kept | (EventFlag.DEAD_LETTER if from_dead else 0), details)
    return times


def delete_messages(tx: SqliteTransaction, row_keys: list[int]) -> None:
    if len(row_keys) == 1:
        tx.execute(DELETE, row_keys)
        return
    first, last = min(row_keys), max(row_keys)
    if last - first == len(row_keys) - 1:
        tx.execute(DELETE_RANGE, (first, last))
    else:
        tx.execute(SQL["delete_places"], (msgspec.json.encode(row_keys).decode(),))


def nack(tx: SqliteTransaction, command: Nack) -> SettledAll:
    queue = tx.home(command.queue)
    check_tokens(queue.name, queue.options, command.items)
    lease_ranges.move_out(tx, queue, command.items)
    results: list[Settled] = []
    states: list[State | None] = []
    for item in command.items:
        lease = _end_lease(tx, queue, item)
        if lease and lease.from_dead and item.discard:
            finish(tx, queue, [lease], nacked_into(None))
            result, state = OK, None
        elif lease:
            result, state = OK, _back_off(tx, queue, item, lease)
            remember(tx, queue, [lease], nacked_into(state))
        elif (how := recall(tx, queue, item)) is not None and how >= NACKED:
            result, state = OK, NACKED_INTO[how - NACKED]
        else:
            result, state = _why_not(tx, queue, item.id), None
        results.append(result)
        states.append(state)
    return SettledAll(results, states)


def _back_off(tx: SqliteTransaction, queue: SqliteQueue, item: SettleItem, lease: EndedLeaseRow) -> State | None:
    queue.leased -= 1
    tx.touch(queue)
    if lease.from_dead:
        return_to_dead(tx, queue, lease, item.error)
        return State.DEAD
    queue.n_nacked += 1
    error = item.error or ""
    if item.dead or item.discard or lease.attempts >= queue.options.max_attempts:
        if queue.is_journalled:
            record_ended(tx, queue, Kind.NACKED, lease, error=error, traceback=item.traceback)
        dead_letter(tx, queue, lease, "nacked", error, item.traceback, discard=item.discard)
        return State.DEAD if queue.options.dlq and not item.discard else None
    remember_failure(tx, lease.id, lease.attempts, error, item.traceback)
    delay_ms = item.delay_ms
    if delay_ms is None:
        delay_ms = backoff_ms(queue.options, lease.id, lease.attempts)
    available_at = tx.now + delay_ms if delay_ms else max(tx.now, queue.newest_at)
    if queue.is_journalled:
        record_ended(tx, queue, Kind.NACKED, lease, until=available_at, error=error, traceback=item.traceback)
    tx.execute(SQL["move"], (available_at, lease.row_key))
    if delay_ms == 0:
        requeue(tx, queue, lease)
        return State.READY
    row = (
        available_at,
        lease.attempts,
        lease.first_leased_at,
        lease.expires_at,
        queue.id,
        lease.id,
        lease.row_key,
    )
    tx.execute(SQL["schedule"], row)
    queue.scheduled += 1
    queue.due_at = min(queue.due_at, available_at)
    if lease.expires_at is not None:
        queue.expiry_at = min(queue.expiry_at, lease.expires_at)
    return State.SCHEDULED


def extend(tx: SqliteTransaction, command: Extend) -> SettledAll:
    queue = tx.home(command.queue)
    check_tokens(queue.name, queue.options, command.items)
    until = tx.now + (queue.options.lease_ms if command.lease_ms is None else command.lease_ms)
    lease_ranges.move_out(tx, queue, command.items)
    results = [_extend_one(tx, queue, item, until) for item in command.items]
    queue.lease_expiry_at = min(queue.lease_expiry_at, until)
    return SettledAll(results, leased_until=until)


def _extend_one(tx: SqliteTransaction, queue: SqliteQueue, item: SettleItem, until: int) -> Settled:
    if not 0 < item.id <= ID_MAX:
        return Settled.UNKNOWN
    tx.recent_leases.pop(item.id, None)
    for at, token in _lease_keys(tx, queue, item):
        if at > tx.now and tx.execute(SQL["extend"], (until, queue.id, at, item.id, token)).rowcount:
            tx.execute(SQL["note_extension"], (item.id, until, tx.now))
            if queue.is_journalled:
                row_key = tx.execute(SQL["place_of"], (queue.id, until, item.id)).fetchone()[0]
                (pushed_at,) = pushed_times(tx, [row_key])
                tx.journal.note(Kind.EXTENDED, queue, [(item.id, pushed_at, 0, 0, until, 0, 0, 0)])
            return Settled.OK
    return _why_not(tx, queue, item.id)


def release(tx: SqliteTransaction, command: Release) -> SettledAll:
    queue = tx.home(command.queue)
    check_tokens(queue.name, queue.options, command.items)
    lease_ranges.move_out(tx, queue, command.items)
    results = []
    for item in command.items:
        lease = _end_lease(tx, queue, item)
        if lease is None:
            results.append(_result(tx, queue, item, RELEASED))
            continue
        results.append(OK)
        remember(tx, queue, [lease], RELEASED)
        queue.leased -= 1
        tx.touch(queue)
        if lease.from_dead:
            return_to_dead(tx, queue, lease)
        else:
            if queue.is_journalled:
                record_ended(tx, queue, Kind.RELEASED, lease)
            attempts = lease.attempts - 1
            first = lease.first_leased_at if attempts else None
            requeue(tx, queue, lease._replace(attempts=attempts, first_leased_at=first))
    return SettledAll(results)


def _end_leases(
    tx: SqliteTransaction, queue: SqliteQueue, items: Sequence[SettleItem]
) -> tuple[list[Settled], list[EndedLeaseRow]]:
    """End each item's lease; one statement for all items that share a token."""
    if len(items) == 1:
        item = items[0]
        lease = _end_only(tx, queue, item)
        return ([OK], [lease]) if lease else ([_result(tx, queue, item, ACKED)], [])
    ids = {item.id for item in items}
    tokens = {item.token for item in items}
    if len(ids) < len(items) or None in tokens:
        lease_ranges.move_out(tx, queue, items)
        return _end_one_by_one(tx, queue, items)
    ended: list[EndedLeaseRow] = []
    for token in tokens:
        assert token is not None
        ended += _end_together(tx, queue, token, [item.id for item in items if item.token == token])
    if len(ended) == len(items):
        return [Settled.OK] * len(items), ended
    # The other leases were extended, have ended, or have another token.
    done = {lease.id for lease in ended}
    results = []
    for item in items:
        lease = None if item.id in done else _end_lease(tx, queue, item)
        if lease:
            ended.append(lease)
            done.add(item.id)
        results.append(OK if item.id in done else _result(tx, queue, item, ACKED))
    return results, ended


def _end_only(tx: SqliteTransaction, queue: SqliteQueue, item: SettleItem) -> EndedLeaseRow | None:
    if queue.has_ranges and item.id not in tx.recent_leases:
        if item.token is None or tx.has_recent_range(item.token):
            lease_ranges.move_out(tx, queue, [item])
        elif ended := _end_in_ranges(tx, queue, item.token, [item.id]):
            return ended[0]
    return _end_lease(tx, queue, item)


def _end_together(tx: SqliteTransaction, queue: SqliteQueue, token: str, ids: list[int]) -> list[EndedLeaseRow]:
    if queue.has_ranges and (ended := _end_in_ranges(tx, queue, token, ids)):
        # Messages that were leased before, or that have a priority, share the token but have rows of their own.
        rest = set(ids).difference(lease.id for lease in ended)
        # No id occurs twice, so the comparison never reaches the columns after it.
        return sorted(ended + _end_rows(tx, queue, token, list(rest))) if rest else ended
    return _end_rows(tx, queue, token, ids)


def _end_in_ranges(tx: SqliteTransaction, queue: SqliteQueue, token: str, ids: list[int]) -> list[EndedLeaseRow]:
    raw, start = token_bytes(token), queue.plain_start
    return [
        EndedLeaseRow(each, start | each, 1, leased_at, leased_at, None, 0, 0, pushed_at, raw)
        for each, pushed_at, leased_at in lease_ranges.end(tx, queue, token, ids)
    ]


def _end_rows(tx: SqliteTransaction, queue: SqliteQueue, token: str, ids: list[int]) -> list[EndedLeaseRow]:
    raw = token_bytes(token)
    until = int.from_bytes(raw[:6], "big")
    ids = [message_id for message_id in ids if 0 < message_id <= ID_MAX]
    if until <= tx.now or not ids:
        return []
    first, last = min(ids), max(ids)
    if last - first == len(ids) - 1:
        rows = tx.execute(SQL["end_range"], (queue.id, until, first, last, raw))
    else:
        rows = tx.execute(SQL["end_many"], (queue.id, until, msgspec.json.encode(ids).decode(), raw))
    ended = [_remembered(tx, _of_queue(queue, row), raw) for row in rows.fetchall()]
    # A lease extended to the same expiry time is found here too.
    tx.connection.executemany(SQL["forget_extension"], [(lease.id,) for lease in ended if lease.extended])
    return ended


def _of_queue(queue: SqliteQueue, row: tuple[Any, ...]) -> EndedLeaseRow:
    lease = EndedLeaseRow(*row)
    check_lease(queue.id, lease.id, lease.row_key)
    return lease


def _remembered(tx: SqliteTransaction, lease: EndedLeaseRow, token: bytes) -> EndedLeaseRow:
    recent = tx.recent_leases.pop(lease.id, None)
    if recent is None or lease.attempts > 1 or lease.from_dead:
        # The cached entry may belong to an earlier lease, which expired.
        return lease._replace(token=token)
    return lease._replace(token=token, pushed_at=recent[3])


def _end_one_by_one(
    tx: SqliteTransaction, queue: SqliteQueue, items: Sequence[SettleItem]
) -> tuple[list[Settled], list[EndedLeaseRow]]:
    results: list[Settled] = []
    ended: dict[int, EndedLeaseRow] = {}
    for item in items:
        lease = _end_lease(tx, queue, item)
        if lease:
            ended[item.id] = lease
            results.append(OK)
        elif item.id in ended:
            # A message acked earlier in this batch no longer exists, except for the token that acked it.
            again = not tx.fenced and item.token is not None and token_bytes(item.token) == ended[item.id].token
            results.append(OK if again else Settled.UNKNOWN)
        else:
            results.append(_result(tx, queue, item, ACKED))
    return results, list(ended.values())


def _end_lease(tx: SqliteTransaction, queue: SqliteQueue, item: SettleItem) -> EndedLeaseRow | None:
    if not 0 < item.id <= ID_MAX:
        return None
    recent = tx.recent_leases.pop(item.id, None)
    if recent and item.token == recent[1].hex() and recent[0] > tx.now:
        until, token, leased_at, pushed_at = recent
        if tx.execute(END_RECENT, (queue.id, until, item.id, token)).rowcount:
            return EndedLeaseRow(
                item.id, queue.plain_start | item.id, 1, leased_at, leased_at, None, 0, 0, pushed_at, token
            )
    for until, token in _lease_keys(tx, queue, item):
        if until > tx.now:
            # Two statements, because RETURNING builds a table for its rows and costs more than a SELECT.
            row = tx.execute(LEASE_AT, (queue.id, until, item.id, token)).fetchone()
            if row:
                tx.execute(END_LEASE, (queue.id, until, item.id))
                lease = _of_queue(queue, row)._replace(token=token)
                if lease.extended:
                    tx.execute(SQL["forget_extension"], (lease.id,))
                return lease
    return None


def _lease_keys(tx: SqliteTransaction, queue: SqliteQueue, item: SettleItem) -> Iterator[tuple[int, bytes]]:
    """Yield the expiry times under which a lease may be stored: that in its token, or a later one if extended."""
    if item.token is None:
        yield from tx.execute(SQL["current"], (queue.id, item.id)).fetchall()
        return
    token = token_bytes(item.token)
    yield int.from_bytes(token[:6], "big"), token
    extension = tx.execute(SQL["extension"], (item.id,)).fetchone()
    if extension:
        yield extension[0], token


def _result(tx: SqliteTransaction, queue: SqliteQueue, item: SettleItem, how: int) -> Settled:
    """Return the result for an item without a lease: OK if this token already settled it so, or why it failed."""
    return OK if recall(tx, queue, item) == how else _why_not(tx, queue, item.id)


def _why_not(tx: SqliteTransaction, queue: SqliteQueue, message_id: int) -> Settled:
    if not 0 < message_id <= ID_MAX:
        return Settled.UNKNOWN
    row_keys = (queue.row_key(message_id, plain=True), queue.row_key(message_id, plain=False))
    known = tx.execute(SQL["is_known"], (*row_keys, message_id)).fetchone()
    return Settled.STALE if known else Settled.UNKNOWN
