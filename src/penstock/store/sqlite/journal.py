"""What SQLite's transactions look up for the journal. The events of one commit are one row, written last."""

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
    """Under the write lock: whatever happens before is not told, or told already, and is in the counters."""
    if has_journal(tx.connection) != command.on:
        tx.flush_deferred()
        tx.execute(SQL["switch"], (int(command.on),))
        note_all_held(tx, entered=command.on)
        tx.forget_queues()


def note_all_held(tx: SqliteTransaction, *, entered: bool) -> None:
    record_depth(tx, tx.execute(SQL["holding"]), entered=entered)


def forget_journal(tx: SqliteTransaction, command: ForgetJournal) -> None:
    tx.load_next_offset()
    if command.before > tx.next_offset:
        tx.execute(SQL["write"], (command.before, 0, b""))
        tx.next_offset = command.before
    tx.execute(SQL["forget"], (command.before,))


def catch_up_journal(tx: SqliteTransaction, command: CatchUpJournal) -> None:
    tx.count()


def note_uncounted(tx: SqliteTransaction, queue: SqliteQueue) -> None:
    """Pushes and leases that were left for later and of which this process knows nothing: from what they wrote."""
    if queue.uncounted_pushes:
        record_pushed(tx, queue, tx.execute(SQL["uncounted_pushes"], (queue.id,)).fetchall())
    if queue.uncounted_leases:
        leases = tx.execute(SQL["uncounted_leases"], (queue.id,)).fetchall()
        workers = [lease[6] for lease in leases]
        rows = [(*lease[:6], 0, 0) for lease in leases]
        tx.journal.note(Kind.LEASED, queue, rows, 0, worker_details(workers))


def note_removed(
    tx: SqliteTransaction, queue: SqliteQueue, places: Sequence[int], marks: int = 0, kind: Kind = Kind.REMOVED
) -> None:
    """The marks tell in which state they were; none: waiting."""
    if queue.noted and places:
        told = zip(places, pushed_times(tx, places), strict=True)
        rows = [(place & ID_MAX, pushed_at, 0, 0, 0, 0, 0, 0) for place, pushed_at in told]
        tx.journal.note(kind, queue, rows, marks)


def pushed_times(tx: SqliteTransaction, places: Sequence[int]) -> list[int]:
    """When each of these messages was pushed; asked before they are deleted."""
    first, last = min(places), max(places)
    if last - first == len(places) - 1:
        found = tx.execute(SQL["pushed_between"], (first, last)).fetchall()
    else:
        found = tx.execute(SQL["pushed_at_places"], (msgspec.json.encode(places).decode(),)).fetchall()
    times = dict(found)
    return [times[place] for place in places]


def failures(tx: SqliteTransaction, message_id: int) -> list[dict[str, Any]]:
    """What went wrong in this life so far, oldest first."""
    rows = tx.execute(SQL["failures"], (message_id,)).fetchall()
    return [{"attempt": attempt, "at": at, "error": error} for attempt, at, error in rows]


def error_details(tx: SqliteTransaction, tried: Iterable[tuple[int, bool]]) -> list[bytes] | None:
    """For each message the errors of its life, if it was tried before; None if none was."""
    told = [encode_detail(errors=failures(tx, message_id)) if again else b"" for message_id, again in tried]
    return told if any(told) else None
