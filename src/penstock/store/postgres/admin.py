"""Remove, purge and redrive: bulk operations, in bounded steps."""

from __future__ import annotations

from penstock.core.commands import Purge, Redrive, RedriveOutcome, Remove, Removed
from penstock.core.error_groups import is_wanted
from penstock.core.ids import ID_MAX
from penstock.core.model import State
from penstock.journal.events import EventFlag, Kind, encode_detail
from penstock.postgres.pipeline import Rows, ints, texts
from penstock.store.common import NEVER, position
from penstock.store.postgres.journal import pushed_times, record_removed, record_removed_rows
from penstock.store.postgres.queues import PostgresQueue
from penstock.store.postgres.settlement import forget
from penstock.store.postgres.transaction import PostgresTransaction

ANY_ATTEMPTS = 1
MARKS = {State.DEAD: EventFlag.DEAD_LETTER, State.ARCHIVED: EventFlag.KEPT}


def remove(tx: PostgresTransaction, command: Remove) -> Removed:
    queue = tx.queue(command.queue)
    ids = {message_id for message_id in command.ids if 0 < message_id <= ID_MAX}
    row_keys = [queue.row_key(message_id, plain=plain) for message_id in ids for plain in (True, False)]
    rows = tx.fetch("admin.messages_of", ints(row_keys)) if row_keys else []
    if not rows:
        return Removed(0)
    plain = {row_key & ID_MAX for row_key, *_ in rows if queue.cursor < row_key < queue.plain_end}
    rest = [(rank, at, row_key & ID_MAX) for row_key, rank, at, _ in rows if row_key & ID_MAX not in plain]
    gone = dict.fromkeys(plain, 0) | (_remove_indexed(tx, queue, rest) if rest else {})
    queue.count(ready=-len(plain), n_removed=len(gone))
    for marks in sorted(set(gone.values())):
        record_removed_rows(tx, queue, [(row[0], row[3]) for row in rows if gone.get(row[0] & ID_MAX) == marks], marks)
    forget(tx, [(row_key & ID_MAX, row_key, ANY_ATTEMPTS) for row_key, *_ in rows if row_key & ID_MAX in gone])
    tx.wakes.add(queue.name)
    return Removed(len(gone))


def _remove_indexed(tx: PostgresTransaction, queue: PostgresQueue, rows: list[tuple[int, int, int]]) -> dict[int, int]:
    """Remove messages from all states; return the ids of those found, with the event flags of their state."""
    ranks, times, ids = (ints(column) for column in zip(*rows, strict=True))
    dead, archived, scheduled, ready, single, in_ranges = tx.fetch_all(
        ("admin.remove_dead", queue.id, ids),
        ("admin.remove_archived", queue.id, ids),
        ("admin.remove_scheduled", queue.id, times, ids),
        ("admin.remove_ready", queue.id, ranks, times, ids),
        ("admin.remove_leased", queue.id, ids),
        ("lease_range.remove", queue.id, ids),
    )
    leased = [*single, *in_ranges]
    if leased:
        tx.write("settle.forget_extensions", ints(row[0] for row in leased))
        tx.write("settle.forget_dead", ints(row[0] for row in leased))
    queue.count(
        dead=-len(dead),
        archived=-len(archived),
        scheduled=-len(scheduled),
        ready=-len(ready),
        leased=-len(leased),
    )
    return {
        **{row[0]: 0 for row in (*scheduled, *ready)},
        **{row[0]: int(EventFlag.DEAD_LETTER) for row in dead},
        **{row[0]: int(EventFlag.KEPT) for row in archived},
        **{row[0]: _leased_marks(row[1]) for row in leased},
    }


def _leased_marks(from_dead: bool) -> int:
    return EventFlag.LEASED | (EventFlag.DEAD_LETTER if from_dead else 0)


def purge(tx: PostgresTransaction, command: Purge) -> Removed:
    queue = tx.queue(command.queue)
    up_to = tx.fetch("admin.last_id")[0][0] if command.up_to_id is None else min(command.up_to_id, ID_MAX)
    # As in peek, a name that ends in .dlq selects the dead letters only.
    states = command.states if command.queue == queue.name else (State.DEAD,)
    removed = 0
    for state in states:
        if state is State.READY:
            removed += _purge_plain(tx, queue, up_to, command.limit - removed)
        if removed < command.limit:
            removed += _purge_indexed(tx, queue, state, up_to, command.limit - removed)
        if removed >= command.limit:
            break
    if removed:
        queue.count(n_removed=removed)
        tx.wakes.add(queue.name)
    return Removed(removed, more=removed >= command.limit, up_to_id=up_to)


def _purge_plain(tx: PostgresTransaction, queue: PostgresQueue, up_to: int, limit: int) -> int:
    if up_to < 1:
        return 0
    rows = tx.fetch("admin.purge_plain", queue.cursor, queue.row_key(up_to, plain=True), limit)
    record_removed_rows(tx, queue, [(row_key, pushed_at) for row_key, pushed_at in rows])
    queue.count(ready=-len(rows))
    return len(rows)


def _purge_indexed(tx: PostgresTransaction, queue: PostgresQueue, state: State, up_to: int, limit: int) -> int:
    rows = tx.fetch(f"admin.purge_{state}", queue.id, up_to, limit)
    if state is State.LEASED:
        if rows:
            tx.write("settle.forget_extensions", ints(row[0] for row in rows))
        while len(rows) < limit and (more := tx.fetch("lease_range.purge", queue.id, up_to, limit - len(rows))):
            rows += more
    if state is State.LEASED:
        for from_dead in (False, True):
            row_keys = [row_key for _, row_key, was_dead in rows if bool(was_dead) is from_dead]
            record_removed(tx, queue, row_keys, _leased_marks(from_dead))
    else:
        record_removed(tx, queue, [row_key for _, row_key, _ in rows], MARKS.get(state, 0))
    forget_all(tx, rows)
    queue.count(**{str(state): -len(rows)})
    return len(rows)


def forget_all(tx: PostgresTransaction, rows: Rows) -> None:
    """Delete messages (id, row key, from_dead) whose rows in the state tables are already deleted."""
    forget(tx, [(message_id, row_key, ANY_ATTEMPTS) for message_id, row_key, _ in rows])
    dead = [message_id for message_id, _, from_dead in rows if from_dead]
    if dead:
        tx.write("settle.forget_dead", ints(dead))


def redrive(tx: PostgresTransaction, command: Redrive) -> RedriveOutcome:
    queue = tx.queue(command.queue)
    died_at, message_id = position(command.after, (-1, -1))
    died_before = NEVER if command.died_before is None else command.died_before
    among = (queue.id, died_at, message_id, died_before, command.limit)
    if command.ids is None:
        rows = tx.fetch("admin.dead_letters", *among)
    else:
        rows = tx.fetch("admin.dead_letters_of", *among, ints(each for each in command.ids if 0 < each <= ID_MAX))
    matched = [row[0] for row in rows if is_wanted(command, row[4])]
    after = f"{rows[-1][2]}:{rows[-1][0]}" if len(rows) == command.limit else None
    if command.dry_run or not matched:
        return RedriveOutcome(len(matched), 0, after)
    moved = tx.fetch("admin.revive", ints(matched), max(tx.now, queue.newest_at), tx.now)
    if queue.is_journalled:
        _record_redriven(tx, queue, {row[0]: row[1] for row in rows}, [row[0] for row in moved], command.by)
    tx.write("settle.forget_failures", ints(row[0] for row in moved))
    for _, expires_at in moved:
        if expires_at is not None:
            queue.expiry_at = min(queue.expiry_at, expires_at)
    if "/" in queue.name:
        tx.write("push.busy", ints([queue.id]), texts([queue.name]))
    queue.count(dead=-len(moved), ready=len(moved), n_redriven=len(moved))
    tx.wakes.add(queue.name)
    return RedriveOutcome(len(matched), len(moved), after)


def _record_redriven(
    tx: PostgresTransaction, queue: PostgresQueue, row_keys: dict[int, int], ids: list[int], by: str | None
) -> None:
    at = max(tx.now, queue.newest_at)
    pushed = pushed_times(tx, (row_keys[message_id] for message_id in ids))
    rows = [(message_id, pushed[row_keys[message_id]], 0, 0, at, 0, 0, 0) for message_id in ids]
    if rows:
        tx.journal.note(Kind.REDRIVEN, queue, rows, 0, [encode_detail(by=by)] * len(rows))
