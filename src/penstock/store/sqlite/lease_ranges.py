"""Leases of several plain messages, stored as one row for each range of ids.

Only plain messages in their first delivery are leased like this. An ack of a whole range deletes its row. An ack of
some messages takes them out, and smaller ranges remain. Every other change of a lease needs a row for each message: it
first moves the messages out of their range, into rows of their own.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.core.commands import SettleItem
from penstock.core.ids import ID_MAX
from penstock.core.sql_files import load_sql
from penstock.store.common import NEVER, token_bytes
from penstock.store.sqlite.queues import SqliteQueue
from penstock.store.sqlite.transaction import NotAsRemembered, RecentRange, SqliteTransaction

SQL = load_sql("penstock.store.sqlite", "lease_ranges")
ADD, END = SQL["add"], SQL["end"]
# Messages moved into rows of their own when a consumer settles one of them alone.
MOVE_OUT_STEP = 100


class LeaseRange(NamedTuple):
    """Row of a range, without its queue."""

    until: int
    first: int
    last: int
    token: bytes
    leased_at: int
    worker: str | None


class EndedInRange(NamedTuple):
    """A message that was taken out of its range."""

    id: int
    pushed_at: int
    leased_at: int


def add(
    tx: SqliteTransaction,
    queue: SqliteQueue,
    until: int,
    token: bytes,
    worker: str | None,
    ids: list[int],
    pushed: list[int],
) -> None:
    """Lease plain messages as one range. They follow each other in their lane."""
    tx.execute(ADD, (queue.id, until, ids[0], ids[-1], token, tx.now, worker))
    queue.has_ranges = True
    tx.remember_range(token.hex(), RecentRange(queue.id, until, token, tx.now, ids, pushed))


def end_recent(tx: SqliteTransaction, queue: SqliteQueue, items: Sequence[SettleItem]) -> RecentRange | None:
    """End a range that this process leased recently, or its first messages, without reading it.

    Returns what was ended, or None if the items are anything else.
    """
    token = items[0].token
    recent = tx.pop_recent_range(token)
    if token is None or recent is None or recent.queue_id != queue.id or recent.until <= tx.now:
        return None
    ids, count = recent.ids, len(items)
    if [item.id for item in items] != ids[:count] or [item.token for item in items].count(token) != count:
        return None
    key = (queue.id, recent.until, ids[0], ids[-1], recent.token)
    if count == len(ids):
        if tx.execute(END, key).rowcount != 1:
            raise NotAsRemembered
        return recent
    if tx.execute(SQL["end_first"], (ids[count], *key)).rowcount != 1:
        raise NotAsRemembered
    tx.remember_range(token, recent._replace(ids=ids[count:], pushed=recent.pushed[count:]))
    return recent._replace(ids=ids[:count], pushed=recent.pushed[:count])


def end(tx: SqliteTransaction, queue: SqliteQueue, token: str, ids: Iterable[int]) -> list[EndedInRange]:
    """End the leases of those of these messages that the token leased in ranges, in the order of their ids."""
    ended: list[EndedInRange] = []
    wanted = _valid(ids)
    for each in _with_token(tx, queue, token, wanted):
        found = _messages(tx, queue, each, wanted)
        if found:
            _remove_ids(tx, queue, each, [message_id for message_id, _ in found])
            ended += [EndedInRange(message_id, pushed_at, each.leased_at) for message_id, pushed_at in found]
    return ended


def move_out(tx: SqliteTransaction, queue: SqliteQueue, items: Iterable[SettleItem]) -> None:
    """Move the leases of these messages out of ranges, into rows of their own. A stale token moves nothing."""
    if not queue.has_ranges:
        return
    by_token: dict[str | None, list[int]] = {}
    for item in items:
        by_token.setdefault(item.token, []).append(item.id)
    for token, ids in by_token.items():
        if token is None:
            for message_id in _valid(ids):
                move_out_one(tx, queue, message_id)
        elif len(ids) == 1 and (recent := tx.pop_recent_range(token)) is not None and recent.queue_id == queue.id:
            _move_out_neighbours(tx, queue, token, recent, ids[0])
        else:
            wanted = _valid(ids)
            for each in _with_token(tx, queue, token, wanted):
                _move_out_ids(tx, queue, each, wanted)


def _move_out_neighbours(
    tx: SqliteTransaction, queue: SqliteQueue, token: str, recent: RecentRange, message_id: int
) -> None:
    """Move a message and its neighbours out of a range that this process leased recently.

    A consumer that settles one message alone does the same with the next ones, and rows are faster for that.
    """
    start = bisect_left(recent.ids, message_id) // MOVE_OUT_STEP * MOVE_OUT_STEP
    end = start + MOVE_OUT_STEP
    wanted, rest = recent.ids[start:end], recent.ids[end:]
    ranges = _with_token(tx, queue, token, wanted)
    for each in ranges:
        _move_out_ids(tx, queue, each, wanted)
    # The range that remains begins right behind; it is cached only if its first message has that id.
    if ranges and rest and rest[0] == wanted[-1] + 1:
        tx.remember_range(token, recent._replace(ids=rest, pushed=recent.pushed[end:]))


def move_out_one(tx: SqliteTransaction, queue: SqliteQueue, message_id: int) -> None:
    """Move the lease of a message, whatever its token, out of its range."""
    if queue.has_ranges:
        for row in tx.execute(SQL["with_id"], (queue.id, message_id)).fetchall():
            _move_out_ids(tx, queue, LeaseRange(*row), [message_id])


def _move_out_ids(tx: SqliteTransaction, queue: SqliteQueue, each: LeaseRange, wanted: list[int]) -> None:
    found = _messages(tx, queue, each, wanted)
    if found:
        ids = [message_id for message_id, _ in found]
        tx.execute(SQL["rows_at_places"], (*_row_of(queue, each), _json([queue.plain_start | each for each in ids])))
        _remove_ids(tx, queue, each, ids)
        tx.pop_recent_range(each.token.hex())
        for message_id, pushed_at in found:
            tx.remember(message_id, (each.until, each.token, each.leased_at, pushed_at))


def move_out_first(
    tx: SqliteTransaction, queue: SqliteQueue, limit: int, *, until: int = NEVER, up_to: int = ID_MAX
) -> None:
    """Move the first leases that end by `until` out of ranges, at most `limit` of messages up to the id `up_to`."""
    if not queue.has_ranges:
        return
    rows = tx.execute(SQL["first"], (queue.id, until, up_to, limit)).fetchall()
    for row in rows:
        limit -= _move_out_some(tx, queue, LeaseRange(*row), limit, up_to)
        if limit <= 0:
            break
    if not rows:
        _check_any(tx, queue)


def move_out_at(tx: SqliteTransaction, queue: SqliteQueue, until: int, first: int, limit: int) -> list[int]:
    """Move up to `limit` leases out of the range that begins there, if there is one, and return the messages' ids."""
    row = tx.execute(SQL["at"], (queue.id, until, first)).fetchone() if queue.has_ranges else None
    if row is None:
        return []
    each = LeaseRange(*row)
    found = _messages(tx, queue, each, range(each.first, each.last + 1))[:limit]
    _move_out_some(tx, queue, each, limit, ID_MAX)
    return [message_id for message_id, _ in found]


def _move_out_some(tx: SqliteTransaction, queue: SqliteQueue, each: LeaseRange, limit: int, up_to: int) -> int:
    """Return how many leases were moved into rows of their own."""
    start = queue.plain_start
    last = min(each.last, up_to)
    if last - each.first >= limit:
        row = tx.execute(SQL["nth"], (start | each.first, start | last, limit - 1)).fetchone()
        last = row[0] if row else last
    between = (start | each.first, start | last)
    moved = tx.execute(SQL["rows_between"], (*_row_of(queue, each), *between)).rowcount
    _replace(tx, queue, each, [(last + 1, each.last)] if last < each.last else [])
    return moved


def move_out_all(connection: sqlite3.Connection) -> None:
    """Move every lease out of its range."""
    connection.execute(SQL["move_out_all"])
    connection.execute(SQL["remove_all"])


def _valid(ids: Iterable[int]) -> list[int]:
    return sorted({message_id for message_id in ids if 0 < message_id <= ID_MAX})


def _with_token(tx: SqliteTransaction, queue: SqliteQueue, token: str, ids: list[int]) -> list[LeaseRange]:
    """Return the ranges of a current lease that may hold these messages."""
    raw = token_bytes(token)
    until = int.from_bytes(raw[:6], "big")
    if until <= tx.now or not ids or not queue.has_ranges:
        return []
    # The cached range changes now, or is not what the caller wants.
    tx.pop_recent_range(token)
    rows = tx.execute(SQL["with_token"], (queue.id, until, raw, ids[0], ids[-1])).fetchall()
    if not rows:
        _check_any(tx, queue)
    return [LeaseRange(*row) for row in rows]


def _check_any(tx: SqliteTransaction, queue: SqliteQueue) -> None:
    queue.has_ranges = bool(tx.execute(SQL["any"], (queue.id,)).fetchone()[0])


def _messages(
    tx: SqliteTransaction, queue: SqliteQueue, each: LeaseRange, wanted: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the ids and push times of wanted messages in a range. It leases every plain message between its ends."""
    inside = wanted[bisect_left(wanted, each.first) : bisect_right(wanted, each.last)]
    if not inside:
        return []
    start = queue.plain_start
    if inside[-1] - inside[0] == len(inside) - 1:
        return tx.execute(SQL["pushed_between"], (start | inside[0], start | inside[-1])).fetchall()
    return tx.execute(SQL["pushed_at_places"], (_json([start | message_id for message_id in inside]),)).fetchall()


def _remove_ids(tx: SqliteTransaction, queue: SqliteQueue, each: LeaseRange, ids: list[int]) -> None:
    """Leave what remains of a range without these messages, in the order of their ids."""
    pieces: list[tuple[int, int]] = []
    first = each.first
    for message_id in ids:
        if message_id > first:
            pieces.append((first, message_id - 1))
        first = message_id + 1
    if first <= each.last:
        pieces.append((first, each.last))
    _replace(tx, queue, each, pieces)


def _replace(tx: SqliteTransaction, queue: SqliteQueue, each: LeaseRange, pieces: list[tuple[int, int]]) -> None:
    """Replace a range by those of its pieces that have messages."""
    tx.execute(SQL["remove"], (queue.id, each.until, each.first))
    if pieces:
        values = (queue.id, each.until, each.token, each.leased_at, each.worker, _json(pieces))
        tx.execute(SQL["add_pieces"], values)


def _row_of(queue: SqliteQueue, each: LeaseRange) -> tuple[Any, ...]:
    """Return what the lease rows of a range's messages have in common."""
    return (queue.id, each.until, each.token, each.leased_at, each.leased_at, each.worker)


def _json(values: Any) -> str:
    return msgspec.json.encode(values).decode()
