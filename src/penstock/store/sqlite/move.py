"""Moves messages to another queue in one transaction."""

from __future__ import annotations

from penstock.core.commands import Move, Remove, Removed
from penstock.core.ids import ID_MAX
from penstock.core.model import State
from penstock.store.sqlite.admin import remove
from penstock.store.sqlite.configure import SQL
from penstock.store.sqlite.push import insert
from penstock.store.sqlite.queries import SQL as READ
from penstock.store.sqlite.queues import SqliteQueue
from penstock.store.sqlite.transaction import SqliteTransaction
from penstock.store.sqlite.transitions import advance


def move(tx: SqliteTransaction, command: Move) -> Removed:
    source, target = tx.queue(command.queue), tx.queue(command.target)
    advance(tx, source)
    advance(tx, target)
    found = {item.id: item.message for item in command.items if _state(tx, source, item.id) is command.state}
    if found:
        remove(tx, Remove(queue=source.name, ids=list(found)))
        insert(tx, target, target.id, list(found.values()))
    return Removed(len(found))


def _state(tx: SqliteTransaction, queue: SqliteQueue, message_id: int) -> State | None:
    """Return the state of a ready, scheduled or dead message; None for any other."""
    if not 0 < message_id <= ID_MAX:
        return None
    if tx.execute(SQL["dead_of"], (message_id, queue.id)).fetchone():
        return State.DEAD
    row_keys = (queue.row_key(message_id, plain=True), queue.row_key(message_id, plain=False))
    row = tx.execute(SQL["message_of"], row_keys).fetchone()
    if row is None:
        return None
    row_key, rank, available_at = row
    if queue.cursor < row_key < queue.plain_end:
        return State.READY
    if tx.execute(READ["ready_of"], (queue.id, rank, available_at, message_id)).fetchone():
        return State.READY
    if tx.execute(READ["scheduled_of"], (queue.id, available_at, message_id)).fetchone():
        return State.SCHEDULED
    return None
