"""Keeps the list of busy queues of the tree short, because a lease from a namespace checks every queue on it."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.postgres.pipeline import Rows, ints, texts
from penstock.store.postgres.transaction import PUSHING, PostgresTransaction

# Above this number a lease first queries which of the listed queues hold messages, instead of checking each.
LISTED_MANY = 64
IDLE_AT_ONCE = 20_000


def has_messages(tx: PostgresTransaction, listed: Sequence[tuple[str, int]]) -> tuple[list[str], list[int]]:
    """Return the names of the queues that hold messages, and the ids of those that do not."""
    if len(listed) <= LISTED_MANY:
        return [name for name, _ in listed], []
    unfinished = {queue_id for (queue_id,) in tx.fetch("lease.holding", ints(queue_id for _, queue_id in listed))}
    names = [name for name, queue_id in listed if queue_id in unfinished]
    return names, [queue_id for _, queue_id in listed if queue_id not in unfinished]


def rebuild_list(tx: PostgresTransaction, queues: Rows) -> None:
    """Bring the list up to date from rows that begin with name, id and number of messages."""
    tree = [row for row in queues if "/" in row[0]]
    if not tree:
        return
    listed = {queue_id for (queue_id,) in tx.fetch("admin.busy_ids", ints(row[1] for row in tree))}
    # A push in a caller's transaction takes no lock, and may have seen its queue listed just before it was removed.
    missing = [row for row in tree if row[2] and row[1] not in listed]
    if missing:
        tx.write("push.busy", ints(row[1] for row in missing), texts([row[0] for row in missing]))
        tx.wakes.update(row[0] for row in missing)
    forget_idle(tx, [row[1] for row in tree if not row[2] and row[1] in listed])


def forget_idle(tx: PostgresTransaction, queue_ids: Sequence[int]) -> None:
    """Remove idle queues from the list, unless a push to them is running.

    Call this last: the transaction must not wait for anything while it holds these locks.
    """
    by_lock: dict[int, list[int]] = {}
    for queue_id in queue_ids[:IDLE_AT_ONCE]:
        by_lock.setdefault(tx.context.lock_key(PUSHING, queue_id), []).append(queue_id)
    if not by_lock:
        return
    locked = [key for key, got in tx.fetch("admin.try_locks", ints(by_lock)) if got]
    tx.write("admin.idle", ints(queue_id for key in locked for queue_id in by_lock[key]))
