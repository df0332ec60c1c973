"""Moves messages to another queue in one transaction."""

from __future__ import annotations

from penstock.core.commands import Move, Removed
from penstock.core.ids import ID_MAX
from penstock.core.model import State
from penstock.postgres.pipeline import ints
from penstock.store.postgres.admin import ANY_ATTEMPTS, MARKS
from penstock.store.postgres.journal import record_removed_rows
from penstock.store.postgres.push import Writing, insert_all
from penstock.store.postgres.settlement import forget
from penstock.store.postgres.transaction import PostgresTransaction
from penstock.store.postgres.transitions import advance


def move(tx: PostgresTransaction, command: Move) -> Removed:
    source, target = tx.itself(command.queue), tx.itself(command.target)
    advance(tx, source)
    advance(tx, target)
    items = {item.id: item.message for item in command.items if 0 < item.id <= ID_MAX}
    row_keys = [source.row_key(message_id, plain=plain) for message_id in items for plain in (True, False)]
    rows = {row[0] & ID_MAX: row for row in (tx.fetch("admin.messages_of", ints(row_keys)) if row_keys else [])}
    plain = {id_ for id_, row in rows.items() if source.cursor < row[0] < source.plain_end}
    indexed = [id_ for id_ in rows if id_ not in plain]
    gone = {row[0] for row in _remove(tx, command.state, source.id, [(id_, *rows[id_][1:3]) for id_ in indexed])}
    if command.state is State.READY:
        gone |= plain
    if not gone:
        return Removed(0)
    found = [id_ for id_ in items if id_ in gone]
    source.count(**{str(command.state): -len(found)}, n_removed=len(found))
    record_removed_rows(tx, source, [(rows[id_][0], rows[id_][3]) for id_ in found], MARKS.get(command.state, 0))
    forget(tx, [(id_, rows[id_][0], ANY_ATTEMPTS) for id_ in found])
    writing = Writing(tx)
    insert_all(tx, writing, target, target.id, [items[id_] for id_ in found])
    writing.write(last=False)
    tx.wakes.add(source.name)
    return Removed(len(found))


def _remove(
    tx: PostgresTransaction, state: State, queue_id: int, rows: list[tuple[int, int, int]]
) -> list[tuple[int, ...]]:
    """Remove those of these messages (id, rank, time) that are in the state; return rows that begin with their ids."""
    if not rows:
        return []
    ids, ranks, times = (ints(column) for column in zip(*rows, strict=True))
    if state is State.DEAD:
        return tx.fetch("admin.remove_dead", queue_id, ids)
    if state is State.SCHEDULED:
        return tx.fetch("admin.remove_scheduled", queue_id, times, ids)
    return tx.fetch("admin.remove_ready", queue_id, ranks, times, ids)
