"""Remove, purge, redrive and sweep: bulk operations, in bounded steps."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.core.commands import Purge, Redrive, RedriveOutcome, Remove, Removed, Sweep, Swept
from penstock.core.error_groups import is_wanted
from penstock.core.ids import ID_MAX
from penstock.core.model import DAY_MS, State
from penstock.journal.events import EventFlag, Kind, encode_detail
from penstock.store.common import NEVER, SETTLED_PER_STEP, position
from penstock.store.request_dedup import REQUEST_KEY, REQUEST_WINDOW_MS
from penstock.store.sqlite import lease_ranges
from penstock.store.sqlite.configure import SQL
from penstock.store.sqlite.journal import pushed_times, record_removed
from penstock.store.sqlite.latency import SQL as LATENCY
from penstock.store.sqlite.push import SQL as PUSH
from penstock.store.sqlite.queues import SqliteQueue
from penstock.store.sqlite.settled_tokens import forget
from penstock.store.sqlite.transaction import SqliteTransaction
from penstock.store.sqlite.transitions import SETTLE, advance, forget_message, wake_at
from penstock.store.sqlite.transitions import SQL as ADVANCE

KEY_CHECK_MS = DAY_MS // 24
ANY_ATTEMPTS = 1


def remove(tx: SqliteTransaction, command: Remove) -> Removed:
    queue = tx.home(command.queue)
    removed = sum(_remove_one(tx, queue, message_id) for message_id in command.ids)
    if removed:
        queue.n_removed += removed
        tx.touch(queue)
    return Removed(removed)


def _remove_one(tx: SqliteTransaction, queue: SqliteQueue, message_id: int) -> bool:
    if not 0 < message_id <= ID_MAX:
        return False
    here = (message_id, queue.id)
    row_keys = (queue.row_key(message_id, plain=True), queue.row_key(message_id, plain=False))
    row = tx.execute(SQL["message_of"], row_keys).fetchone()
    if row is None:
        return False
    row_key, rank, available_at = row
    marks = 0
    if queue.cursor < row_key < queue.plain_end:
        queue.ready -= 1
    elif tx.execute(SQL["dead_of"], here).fetchone():
        marks = EventFlag.DEAD_LETTER
        tx.execute(SETTLE["forget_dead"], (message_id,))
        queue.dead -= 1
    elif tx.execute(SQL["archived_of"], here).fetchone():
        marks = EventFlag.KEPT
        tx.execute(SQL["end_archive"], (message_id,))
        queue.archived -= 1
    elif tx.execute(ADVANCE["drop_scheduled"], (queue.id, available_at, message_id)).rowcount:
        queue.scheduled -= 1
    elif tx.execute(ADVANCE["drop_ready"], (queue.id, rank, available_at, message_id)).rowcount:
        queue.ready -= 1
    else:
        lease_ranges.move_out_one(tx, queue, message_id)
        tx.execute(SQL["end_lease"], (queue.id, message_id))
        tx.execute(SETTLE["forget_extension"], (message_id,))
        from_dead = tx.execute(SETTLE["forget_dead"], (message_id,)).rowcount
        marks = EventFlag.LEASED | (EventFlag.DEAD_LETTER if from_dead else 0)
        queue.leased -= 1
    record_removed(tx, queue, [row_key], marks)
    forget_message(tx, message_id, row_key, ANY_ATTEMPTS)
    return True


def purge(tx: SqliteTransaction, command: Purge) -> Removed:
    queue = tx.home(command.queue)
    up_to = tx.next_ids(0) - 1 if command.up_to_id is None else min(command.up_to_id, ID_MAX)
    # As in peek, a name that ends in .dlq selects the dead letters only.
    states = command.states if command.queue == queue.name else (State.DEAD,)
    removed = 0
    for state in states:
        removed += _PURGES[state](tx, queue, up_to, command.limit - removed)
        if removed >= command.limit:
            break
    if removed:
        queue.n_removed += removed
        tx.touch(queue)
    return Removed(removed, more=removed >= command.limit, up_to_id=up_to)


def _purge_ready(tx: SqliteTransaction, queue: SqliteQueue, up_to: int, limit: int) -> int:
    last = queue.row_key(up_to, plain=True)
    row_keys = [row_key for (row_key,) in tx.execute(SQL["purge_plain"], (queue.cursor, last, limit))]
    record_removed(tx, queue, row_keys)
    if row_keys:
        tx.execute(SETTLE["delete_range"], (row_keys[0], row_keys[-1]))
    rows = tx.execute(SQL["purge_ready"], (queue.id, up_to, limit - len(row_keys))).fetchall()
    record_removed(tx, queue, [row_key for _, row_key, _, _ in rows])
    for message_id, row_key, rank, available_at in rows:
        tx.execute(ADVANCE["drop_ready"], (queue.id, rank, available_at, message_id))
        forget_message(tx, message_id, row_key, ANY_ATTEMPTS)
    queue.ready -= len(row_keys) + len(rows)
    return len(row_keys) + len(rows)


def _purge_scheduled(tx: SqliteTransaction, queue: SqliteQueue, up_to: int, limit: int) -> int:
    rows = tx.execute(SQL["purge_scheduled"], (queue.id, up_to, limit)).fetchall()
    record_removed(tx, queue, [row_key for _, row_key, _ in rows])
    for message_id, row_key, available_at in rows:
        tx.execute(ADVANCE["drop_scheduled"], (queue.id, available_at, message_id))
        forget_message(tx, message_id, row_key, ANY_ATTEMPTS)
    queue.scheduled -= len(rows)
    return len(rows)


def _purge_leased(tx: SqliteTransaction, queue: SqliteQueue, up_to: int, limit: int) -> int:
    lease_ranges.move_out_first(tx, queue, limit, up_to=up_to)
    rows = tx.execute(SQL["purge_leased"], (queue.id, up_to, limit)).fetchall()
    for letters in (False, True):
        row_keys = [row_key for _, _, row_key, from_dead in rows if bool(from_dead) is letters]
        record_removed(tx, queue, row_keys, EventFlag.LEASED | (EventFlag.DEAD_LETTER if letters else 0))
    for leased_until, message_id, row_key, from_dead in rows:
        tx.execute(SETTLE["end_lease"], (queue.id, leased_until, message_id))
        tx.execute(SETTLE["forget_extension"], (message_id,))
        if from_dead:
            tx.execute(SETTLE["forget_dead"], (message_id,))
        forget_message(tx, message_id, row_key, ANY_ATTEMPTS)
    queue.leased -= len(rows)
    return len(rows)


def _purge_dead(tx: SqliteTransaction, queue: SqliteQueue, up_to: int, limit: int) -> int:
    rows = tx.execute(SQL["purge_dead"], (queue.id, up_to, limit)).fetchall()
    record_removed(tx, queue, [row_key for _, row_key in rows], EventFlag.DEAD_LETTER)
    for message_id, row_key in rows:
        tx.execute(SETTLE["forget_dead"], (message_id,))
        forget_message(tx, message_id, row_key, ANY_ATTEMPTS)
    queue.dead -= len(rows)
    return len(rows)


def _purge_archived(tx: SqliteTransaction, queue: SqliteQueue, up_to: int, limit: int) -> int:
    rows = tx.execute(SQL["purge_archived"], (queue.id, up_to, limit)).fetchall()
    record_removed(tx, queue, [row_key for _, row_key in rows], EventFlag.KEPT)
    _forget_archived(tx, queue, rows)
    return len(rows)


def _forget_archived(tx: SqliteTransaction, queue: SqliteQueue, rows: list[tuple[int, int]]) -> None:
    for message_id, row_key in rows:
        tx.execute(SQL["end_archive"], (message_id,))
        tx.execute(SETTLE["delete"], (row_key,))
    queue.archived -= len(rows)


_PURGES: dict[State, Callable[[SqliteTransaction, SqliteQueue, int, int], int]] = {
    State.READY: _purge_ready,
    State.SCHEDULED: _purge_scheduled,
    State.LEASED: _purge_leased,
    State.DEAD: _purge_dead,
    State.ARCHIVED: _purge_archived,
}


def redrive(tx: SqliteTransaction, command: Redrive) -> RedriveOutcome:
    queue = tx.home(command.queue)
    died_at, message_id = position(command.after, (-1, -1))
    died_before = NEVER if command.died_before is None else command.died_before
    among = (queue.id, died_at, message_id, died_before, command.limit)
    if command.ids is None:
        rows = tx.execute(SQL["dead_letters"], among).fetchall()
    else:
        wanted = msgspec.json.encode({each for each in command.ids if 0 < each <= ID_MAX}).decode()
        rows = tx.execute(SQL["dead_letters_of"], (wanted, *among)).fetchall()
    matched = [row for row in rows if is_wanted(command, row[4])]
    after = f"{rows[-1][2]}:{rows[-1][0]}" if len(rows) == command.limit else None
    if command.dry_run or not matched:
        return RedriveOutcome(len(matched), 0, after)
    at = max(tx.now, queue.newest_at)
    if queue.is_journalled:
        pushed = pushed_times(tx, [row[1] for row in matched])
        events = [(row[0], pushed_at, 0, 0, at, 0, 0, 0) for row, pushed_at in zip(matched, pushed, strict=True)]
        tx.journal.note(Kind.REDRIVEN, queue, events, 0, [encode_detail(by=command.by)] * len(events))
    for message_id, row_key, _, ttl_left_ms, _ in matched:
        # A message whose TTL ran out before it died must not expire as soon as it is back: it loses its TTL.
        expires_at = tx.now + ttl_left_ms if ttl_left_ms else None
        tx.execute(SQL["revive"], (at, expires_at, queue.id, message_id, row_key))
        tx.execute(SETTLE["move"], (at, row_key))
        tx.execute(SETTLE["forget_dead"], (message_id,))
        tx.execute(SETTLE["forget_failures"], (message_id,))
        if expires_at is not None:
            queue.expiry_at = min(queue.expiry_at, expires_at)
    queue.has_indexed_rows = True
    queue.dead -= len(matched)
    queue.ready += len(matched)
    queue.n_redriven += len(matched)
    tx.touch(queue)
    return RedriveOutcome(len(matched), len(matched), after)


def sweep(tx: SqliteTransaction, command: Sweep) -> Swept:
    tx.write_counters()
    swept = Swept()
    for (name,) in tx.execute(SQL["busy_queues"]).fetchall():
        queue = tx.queue(name)
        moved = advance(tx, queue, command.limit)
        swept.due += moved.due
        swept.lapsed += moved.lapsed
        swept.expired += moved.expired
        swept.more |= moved.more
        if moved.due or moved.lapsed:
            swept.queues.append(name)
        if queue.archived:
            _trim_archive(tx, queue, command.limit, swept)
        at = wake_at(queue)
        if at is not None:
            swept.wake_at = at if swept.wake_at is None else min(swept.wake_at, at)
    _forget_keys(tx, command.limit, swept)
    swept.more |= forget(tx, SETTLED_PER_STEP * command.limit)
    tx.latencies.write(tx.connection, tx.now)
    _forget_minutes(tx, command, swept)
    return swept


def _forget_minutes(tx: SqliteTransaction, command: Sweep, swept: Swept) -> None:
    """Delete old history, also of idle queues, once a minute."""
    minute = tx.now // 60_000
    if minute == tx.trimmed_minute:
        return
    old = (minute - command.minutes_kept, command.limit)
    forgotten = [tx.execute(statement, old).rowcount for statement in (SQL["forget_minutes"], LATENCY["forget"])]
    if max(forgotten) < command.limit:
        tx.trimmed_minute = minute
    else:
        swept.more = True


def _trim_archive(tx: SqliteTransaction, queue: SqliteQueue, limit: int, swept: Swept) -> None:
    archive_ms = queue.options.archive_ms
    if archive_ms is None:
        return
    rows = tx.execute(SQL["old_archive"], (queue.id, tx.now - archive_ms, limit)).fetchall()
    if rows:
        record_removed(tx, queue, [row_key for _, row_key in rows], EventFlag.KEPT, Kind.FORGOTTEN)
        _forget_archived(tx, queue, rows)
        tx.touch(queue)
        swept.forgotten += len(rows)
        swept.more |= len(rows) == limit


def _forget_keys(tx: SqliteTransaction, limit: int, swept: Swept) -> None:
    """Delete expired keys. A message key lives at least as long as its message, a request key until its window ends."""
    past = tx.past_requests.expired_before(lambda: tx.next_ids(0))
    rows = tx.execute(SQL["old_keys"], (tx.now, limit)).fetchall()
    for space, key, message_id, row_key in rows:
        if key.startswith(REQUEST_KEY) and message_id >= past:
            tx.execute(SQL["keep_key"], (tx.now + REQUEST_WINDOW_MS, space, key))
        elif tx.execute(PUSH["is_alive"], (row_key, message_id)).fetchone():
            tx.execute(SQL["keep_key"], (tx.now + KEY_CHECK_MS, space, key))
        else:
            tx.execute(SQL["forget_key"], (space, key))
            swept.forgotten += 1
    swept.more |= len(rows) == limit
