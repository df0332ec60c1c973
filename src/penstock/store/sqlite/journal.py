"""Records journal events of the SQLite store. The events of one commit are one row, written last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.commands import CatchUpJournal, ForgetJournal, SwitchJournal
from penstock.core.ids import ID_MAX
from penstock.core.sql_files import load_sql
from penstock.journal.events import Kind, encode_detail
from penstock.journal.recording import record_depth, record_pushed, worker_details
from penstock.store.sqlite.queues import SqliteQueue
from penstock.store.sqlite.schema import has_journal

if TYPE_CHECKING:
    from penstock.store.sqlite.transaction import SqliteTransaction

SQL = load_sql("penstock.store.sqlite", "journal")


def switch_journal(tx: SqliteTransaction, command: SwitchJournal) -> None:
    """Turn the journal on or off. Under the write lock all earlier events are already in the counters."""
    if has_journal(tx.connection) != command.on:
        tx.flush_deferred()
        tx.execute(SQL["switch"], (int(command.on),))
        record_depths(tx, entered=command.on)
        tx.forget_queues()


def record_depths(tx: SqliteTransaction, *, entered: bool) -> None:
    record_depth(tx, tx.execute(SQL["holding"]), entered=entered)


def forget_journal(tx: SqliteTransaction, command: ForgetJournal) -> None:
    tx.load_next_offset()
    if command.before > tx.next_offset:
        tx.execute(SQL["write"], (command.before, 0, b""))
        tx.next_offset = command.before
    tx.execute(SQL["forget"], (command.before,))


def catch_up_journal(tx: SqliteTransaction, command: CatchUpJournal) -> None:
    tx.count()


def record_deferred(tx: SqliteTransaction, queue: SqliteQueue) -> None:
    """Record pushes and leases whose counting another process deferred, from the rows that they wrote."""
    if queue.uncounted_pushes:
        record_pushed(tx, queue, tx.execute(SQL["uncounted_pushes"], (queue.id,)).fetchall())
    if queue.uncounted_leases:
        leases = tx.execute(SQL["uncounted_leases"], (queue.id,)).fetchall()
        workers = [lease[6] for lease in leases]
        rows = [(*lease[:6], 0, 0) for lease in leases]
        tx.journal.note(Kind.LEASED, queue, rows, 0, worker_details(workers))


def record_removed(
    tx: SqliteTransaction, queue: SqliteQueue, row_keys: Sequence[int], marks: int = 0, kind: Kind = Kind.REMOVED
) -> None:
    """Record removals. The flags tell the state of the messages; none means ready or scheduled."""
    if queue.is_journalled and row_keys:
        pushed = zip(row_keys, pushed_times(tx, row_keys), strict=True)
        rows = [(row_key & ID_MAX, pushed_at, 0, 0, 0, 0, 0, 0) for row_key, pushed_at in pushed]
        tx.journal.note(kind, queue, rows, marks)


def pushed_times(tx: SqliteTransaction, row_keys: Sequence[int]) -> list[int]:
    """Return when each of these messages was pushed. Call before they are deleted."""
    first, last = min(row_keys), max(row_keys)
    if last - first == len(row_keys) - 1:
        found = tx.execute(SQL["pushed_between"], (first, last)).fetchall()
    else:
        found = tx.execute(SQL["pushed_at_places"], (msgspec.json.encode(row_keys).decode(),)).fetchall()
    times = dict(found)
    return [times[row_key] for row_key in row_keys]


def failures(tx: SqliteTransaction, message_id: int) -> list[dict[str, Any]]:
    """Return the failed attempts of a message, oldest first."""
    rows = tx.execute(SQL["failures"], (message_id,)).fetchall()
    return [{"attempt": attempt, "at": at, "error": error} for attempt, at, error in rows]


def error_details(tx: SqliteTransaction, tried: Iterable[tuple[int, bool]]) -> list[bytes] | None:
    """Return the earlier errors of each message, empty for a first attempt; None if all are first attempts."""
    details = [encode_detail(errors=failures(tx, message_id)) if again else b"" for message_id, again in tried]
    return details if any(details) else None
