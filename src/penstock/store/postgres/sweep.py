"""Sweep: transitions of every queue, retention of archives, keys and history, and compaction of counters."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.commands import Sweep, Swept
from penstock.core.model import DAY_MS
from penstock.journal.events import EventFlag, Kind
from penstock.postgres.pipeline import Row, Rows, ints, texts
from penstock.store.common import SETTLED_PER_STEP
from penstock.store.postgres.admin import forget_all
from penstock.store.postgres.busy_queues import rebuild_list
from penstock.store.postgres.journal import record_removed
from penstock.store.postgres.queues import PostgresQueue
from penstock.store.postgres.settled_tokens import forget_settled
from penstock.store.postgres.transaction import MARK_BITS, MARKS_KEPT_MS, WHOLE, PostgresTransaction
from penstock.store.postgres.transitions import advance, check_far_leases, wakes
from penstock.store.request_dedup import REQUEST_KEY, REQUEST_WINDOW_MS

KEY_CHECK_MS = DAY_MS // 24
QUEUES_AT_ONCE = 500


def sweep(tx: PostgresTransaction, command: Sweep) -> Swept:
    tx.write_counters()
    swept = Swept()
    # Rows of name, id, unfinished messages, archived messages, and counter rows.
    queues = tx.fetch("admin.holding")
    holding = [row for row in queues if row[2] or row[3]]
    for start in range(0, len(holding), QUEUES_AT_ONCE):
        _sweep_queues(tx, holding[start : start + QUEUES_AT_ONCE], command.limit, swept)
    _forget_keys(tx, command.limit, swept)
    tx.write_counters()
    compact_counters(tx, [row[1] for row in queues if row[4] > 1])
    swept.more |= forget_settled(tx, SETTLED_PER_STEP * command.limit)
    forget_marks(tx)
    _write_latencies(tx)
    _forget_minutes(tx, [row[1] for row in queues], tx.now // 60_000, command.minutes_kept)
    rebuild_list(tx, queues)
    return swept


def _sweep_queues(tx: PostgresTransaction, rows: Sequence[Row], limit: int, swept: Swept) -> None:
    tx.enter_also({row[0]: WHOLE for row in rows})
    check_far_leases(tx, [queue for row in rows if (queue := tx.find(row[0])) is not None])
    met: list[PostgresQueue] = []
    for name, _, _, archived, _ in rows:
        queue = tx.find(name)
        if queue is None:
            continue
        moved = advance(tx, queue, limit)
        swept.due += moved.due
        swept.lapsed += moved.lapsed
        swept.expired += moved.expired
        swept.more |= moved.more
        if moved.due or moved.lapsed:
            tx.wakes.add(queue.name)
            swept.queues.append(queue.name)
        if archived and queue.options.archive_ms is not None:
            _trim_archive(tx, queue, queue.options.archive_ms, limit, swept)
        met.append(queue)
    times = [at for at in wakes(tx, met).values() if at is not None]
    swept.wake_at = min([*times, *([] if swept.wake_at is None else [swept.wake_at])], default=None)


def _trim_archive(tx: PostgresTransaction, queue: PostgresQueue, archive_ms: int, limit: int, swept: Swept) -> None:
    rows = tx.fetch("admin.old_archive", queue.id, tx.now - archive_ms, limit)
    record_removed(tx, queue, [row_key for _, row_key, _ in rows], EventFlag.KEPT, Kind.FORGOTTEN)
    forget_all(tx, rows)
    queue.count(archived=-len(rows))
    swept.forgotten += len(rows)
    swept.more |= len(rows) == limit


def _forget_keys(tx: PostgresTransaction, limit: int, swept: Swept) -> None:
    """Delete expired keys. A message key lives at least as long as its message, a request key until its window ends."""
    past = tx.context.past_requests.expired_before(lambda: int(tx.fetch("admin.last_id")[0][0]) + 1)
    rows = tx.fetch("admin.old_keys", tx.now, limit)
    recent: list[Row] = []
    alive: list[Row] = []
    gone: list[Row] = []
    for row in rows:
        _, key, is_alive, first_id = row
        if key.startswith(REQUEST_KEY) and first_id >= past:
            recent.append(row)
        else:
            (alive if is_alive else gone).append(row)
    _for_keys(tx, "admin.keep_keys", recent, tx.now + REQUEST_WINDOW_MS)
    _for_keys(tx, "admin.keep_keys", alive, tx.now + KEY_CHECK_MS)
    _for_keys(tx, "push.forget_keys", gone)
    swept.forgotten += len(gone)
    swept.more |= len(rows) == limit


def _for_keys(tx: PostgresTransaction, statement: str, rows: Rows, *params: int) -> None:
    if rows:
        tx.write(statement, *params, ints(row[0] for row in rows), texts([row[1] for row in rows]))


def compact_counters(tx: PostgresTransaction, queue_ids: Sequence[int]) -> None:
    if queue_ids:
        tx.write("counter.fold", ints(queue_ids))
        tx.context.uncompacted_counters = 0


def forget_marks(tx: PostgresTransaction) -> None:
    """Delete the marks of pushes that nobody can ask about any more. Starts after those deleted before."""
    before = tx.now - MARKS_KEPT_MS << MARK_BITS
    if before < tx.context.marks_from:
        tx.context.marks_from = 0  # The clock was set back.
    tx.write("begin.forget_marks", tx.context.marks_from, before)
    tx.context.marks_from = before - 1


def _write_latencies(tx: PostgresTransaction) -> None:
    rows = tx.context.latencies.rows(tx.now)
    if rows:
        ids, minutes, kinds, counts = zip(*rows, strict=True)
        tx.write("latency.keep", tx.context.latencies.writer, ints(ids), ints(minutes), ints(kinds), texts(counts))


def _forget_minutes(tx: PostgresTransaction, queue_ids: Sequence[int], minute: int, kept: int) -> None:
    """Delete old history, once a minute."""
    if minute != tx.context.trimmed_minute:
        tx.context.trimmed_minute = minute
        tx.write("admin.forget_minutes", ints(queue_ids), minute - kept)
        tx.write("admin.forget_latencies", ints(queue_ids), minute - kept)
