"""Remembers how tokens settled messages for some minutes, so that a repeated settle gets the first result.

A transaction writes one row for each run of ids that one token settled, so a batch acked together costs one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.core.commands import SettleItem
from penstock.core.ids import ID_MAX
from penstock.core.sql_files import load_sql
from penstock.store.common import SETTLED_MINUTES, settled_since, token_bytes
from penstock.store.sqlite.queues import SqliteQueue
from penstock.store.sqlite.transaction import FORGET_EVERY, SqliteTransaction
from penstock.store.sqlite.transitions import EndedLeaseRow

SQL = load_sql("penstock.store.sqlite", "settled_tokens")
REMEMBER = SQL["remember"]
FORGET_STEP = 2 * FORGET_EVERY


def remember(tx: SqliteTransaction, queue: SqliteQueue, ended: Sequence[EndedLeaseRow], how: int) -> None:
    """Store how the tokens of these leases settled their messages."""
    if len(ended) == 1:
        lease = ended[0]
        tx.execute(REMEMBER, (tx.now // 60_000, lease.token, lease.id, lease.id, queue.id, how))
        tx.remembered += 1
    else:
        by_token: dict[bytes, list[int]] = {}
        for lease in ended:
            by_token.setdefault(lease.token, []).append(lease.id)
        for token, ids in by_token.items():
            ids.sort()
            _remember_runs(tx, queue, token, ids, how)
    if tx.remembered >= FORGET_EVERY:
        forget(tx)


def remember_range(tx: SqliteTransaction, queue: SqliteQueue, token: bytes, ids: list[int], how: int) -> None:
    """Store how one token settled these messages, which are in the order of their ids."""
    _remember_runs(tx, queue, token, ids, how)
    if tx.remembered >= FORGET_EVERY:
        forget(tx)


def _remember_runs(tx: SqliteTransaction, queue: SqliteQueue, token: bytes, ids: list[int], how: int) -> None:
    minute = tx.now // 60_000
    if ids[-1] - ids[0] == len(ids) - 1:
        tx.execute(REMEMBER, (minute, token, ids[0], ids[-1], queue.id, how))
        tx.remembered += 1
        return
    rows = [(minute, token, first, last, queue.id, how) for first, last in _runs(ids)]
    tx.connection.executemany(REMEMBER, rows)
    tx.remembered += len(rows)


def _runs(ids: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of each run of consecutive ids, which are in order."""
    first = last = ids[0]
    for each in ids[1:]:
        if each != last + 1:
            yield first, last
            first = each
        last = each
    yield first, last


def recall(tx: SqliteTransaction, queue: SqliteQueue, item: SettleItem) -> int | None:
    """Return how this token settled this message, if it did so in the last minutes."""
    if item.token is None or tx.fenced or not 0 < item.id <= ID_MAX:
        return None
    found = tx.execute(SQL["recall"], (*settled_since(tx.now), token_bytes(item.token), item.id, queue.id)).fetchone()
    return None if found is None else found[0]


def forget(tx: SqliteTransaction, step: int = FORGET_STEP) -> bool:
    """Delete old rows, more than are written between two calls. Return True if there may be more."""
    tx.remembered = 0
    # Kept for one more minute than they are used, in case the clock steps back a little.
    before = tx.now // 60_000 - SETTLED_MINUTES - 1
    boundary = tx.execute(SQL["oldest"], (before, step - 1)).fetchone()
    if boundary is None:
        tx.execute(SQL["forget"], (before,))
        return False
    tx.execute(SQL["forget_up_to"], boundary)
    return True
