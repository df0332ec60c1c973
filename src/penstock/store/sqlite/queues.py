"""Queues as a transaction sees them: options, counters and bounds, cached while no other process writes the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from penstock.core.ids import ID_BITS, ID_MAX, QUEUE_SHIFT
from penstock.core.model import QueueInfo, QueueOptions, Totals, decode_options
from penstock.core.sql_files import load_sql
from penstock.errors import InvariantBroken
from penstock.store.common import GAUGES, TOTALS

# Most pushes, and most leases, that a process has to count when it loads a queue.
UNCOUNTED_MAX = 256
SQL = load_sql("penstock.store.sqlite", "counter", UNCOUNTED_MAX=UNCOUNTED_MAX)
LAST_ID, END_MINUTE = SQL["last_id"], SQL["end_minute"]
LOAD = SQL["queue"] + " WHERE q.name = ?"
LIST = SQL["queue"] + " WHERE q.name > ? AND q.name >= ? AND substr(q.name, 1, length(?2)) = ?2 ORDER BY q.name LIMIT ?"

KEPT = (*GAUGES, *(f"n_{name}" for name in TOTALS), "cursor", "newest_at", "minute", "last_id")

# What a transaction changed in a queue, so that only these counters are written. PUSHED and LEASED: plain messages.
PUSHED, LEASED, SETTLED, ANYTHING = 1, 2, 4, 8
COUNTED_LATER = PUSHED | LEASED
_COLUMNS = {
    PUSHED: ("ready", "n_pushed", "newest_at", "last_id"),
    LEASED: ("ready", "leased", "n_leased", "cursor"),
    SETTLED: ("leased", "archived", "n_acked"),
    ANYTHING: KEPT,
}


def _statement(changed: int) -> tuple[str, Callable[[Any], tuple[int, ...]]]:
    """Return an UPDATE of the changed columns, and a getter of their values."""
    columns = sorted({name for what, names in _COLUMNS.items() if changed & what for name in names})
    assignments = ", ".join(f"{name} = ?" for name in columns)
    return f"UPDATE penstock_counter SET {assignments} WHERE queue_id = ?", attrgetter(*columns, "id")


_STATEMENTS = [_statement(changed) for changed in range(16)]


class SqliteQueue:
    """A queue inside a running transaction. Counters are written once, when the transaction ends."""

    __slots__ = (
        "_was_busy",
        "archived",
        "changed",
        "created_at",
        "cursor",
        "dead",
        "due_at",
        "expiry_at",
        "has_indexed_rows",
        "has_ranges",
        "id",
        "journals",
        "last_id",
        "lease_expiry_at",
        "leased",
        "minute",
        "n_acked",
        "n_dead",
        "n_expired",
        "n_lapsed",
        "n_leased",
        "n_leases_counted",
        "n_nacked",
        "n_pushed",
        "n_pushes_counted",
        "n_redriven",
        "n_removed",
        "name",
        "name_bytes",
        "newest_at",
        "only",
        "options",
        "paused",
        "plain_end",
        "plain_start",
        "ready",
        "scheduled",
        "stored_options",
        "tokens",
        "tokens_at",
        "uncounted_leases",
        "uncounted_pushes",
    )

    def __init__(self, row: tuple[Any, ...]) -> None:
        (
            self.id,
            self.name,
            options,
            paused,
            self.created_at,
            self.last_id,
            self.cursor,
            self.newest_at,
            self.minute,
            self.tokens,
            self.tokens_at,
            self.ready,
            self.scheduled,
            self.leased,
            self.dead,
            self.archived,
            self.n_pushed,
            self.n_leased,
            self.n_acked,
            self.n_nacked,
            self.n_lapsed,
            self.n_dead,
            self.n_expired,
            self.n_redriven,
            self.n_removed,
            self.uncounted_pushes,
            newest_uncounted_at,
            last_uncounted_id,
            self.uncounted_leases,
            uncounted_cursor,
            journal,
        ) = row
        self.n_pushes_counted, self.n_leases_counted = self.n_pushed, self.n_leased
        if self.uncounted_pushes:
            self.ready += self.uncounted_pushes
            self.n_pushed += self.uncounted_pushes
            self.newest_at = max(self.newest_at, newest_uncounted_at)
            self.last_id = last_uncounted_id
        if self.uncounted_leases:
            self.ready -= self.uncounted_leases
            self.leased += self.uncounted_leases
            self.n_leased += self.uncounted_leases
            self.cursor = uncounted_cursor
        self.stored_options: str = options
        self.options: QueueOptions = decode_options(options)
        self.paused = bool(paused)
        # True if the file has a journal. An option of each queue decides what it records there.
        self.journals = bool(journal)
        self.name_bytes: bytes = self.name.encode()
        self.plain_start = self.id << QUEUE_SHIFT
        self.plain_end = self.plain_start + (1 << ID_BITS)
        # Lower bounds of the times of the next transitions; 0 means unknown.
        self.due_at = self.lease_expiry_at = self.expiry_at = 0
        # True if the ready table may hold rows of this queue.
        self.has_indexed_rows = True
        # True if leases of this queue may be stored as ranges.
        self.has_ranges = True
        # Row of the only ready message, if this process has just pushed it.
        self.only: tuple[Any, ...] | None = None
        self.changed = 0
        self._was_busy = self.unfinished > 0

    @property
    def is_journalled(self) -> bool:
        """True if events of its messages go into the journal."""
        return self.journals and self.options.journal != "off"

    @property
    def pending_counts(self) -> bool:
        return bool(self.uncounted_pushes or self.uncounted_leases)

    def row_key(self, message_id: int, *, plain: bool) -> int:
        lane: int = self.plain_start if plain else self.plain_end
        return lane | message_id

    @property
    def unfinished(self) -> int:
        return int(self.ready + self.scheduled + self.leased)

    def check_next(self, row_key: int) -> None:
        """Check that a plain message that is about to be leased or taken lies behind all that were before."""
        if not self.cursor < row_key < self.plain_end:
            raise InvariantBroken(f"{self.name!r}: message {row_key & ID_MAX} was leased before")

    def check_new_ids(self, first: int, count: int) -> None:
        """Check that new ids are higher than all ids of the queue, and fit into a row key."""
        if not self.last_id < first <= ID_MAX - count + 1:
            raise InvariantBroken(f"{self.name!r}: the new id {first} does not follow {self.last_id}")

    def _check_counts(self) -> None:
        if self.ready < 0 or self.leased < 0 or self.archived < 0:
            counts = f"{self.ready} ready, {self.leased} leased and {self.archived} archived messages"
            raise InvariantBroken(f"{self.name!r} would have {counts}")

    def count_leased(self, cursor: int, count: int, until: int) -> None:
        """Count leases of plain messages up to the cursor."""
        self.cursor = cursor
        self.ready -= count
        self.leased += count
        self.n_leased += count
        if until < self.lease_expiry_at:
            self.lease_expiry_at = until

    def may_push_uncounted(self, now: int) -> bool:
        """Return True if the counting of one more plain push can be deferred, and no transition is due."""
        return self.uncounted_pushes < UNCOUNTED_MAX and self.newest_at <= now and self._may_wait(now)

    def may_lease_uncounted(self, now: int) -> bool:
        """Return True if the counting of one more plain lease can be deferred, and no transition is due."""
        return bool(self.leased < UNCOUNTED_MAX) and self._may_wait(now)

    def _may_wait(self, now: int) -> bool:
        return (
            now < self.lease_expiry_at
            and now < self.due_at
            and now < self.expiry_at
            and now < (self.minute + 1) * 60_000
            and (self._was_busy or "/" not in self.name)
        )

    def may_ack_alone(self, now: int) -> bool:
        """Return True if one ack changes only the counters of this queue."""
        return now < (self.minute + 1) * 60_000 and ("/" not in self.name or (self._was_busy and self.unfinished > 1))

    def leave_uncounted(self, now: int) -> bool:
        """Defer the counting of this transaction's pushes and leases to the next other change of the queue.

        Returns False if they belong to another minute than the row, or if counting them at load would take too long.
        """
        pushes = self.n_pushed - self.n_pushes_counted
        leases = self.n_leased - self.n_leases_counted
        if (
            pushes > UNCOUNTED_MAX
            or (leases and self.leased > UNCOUNTED_MAX)
            or now >= (self.minute + 1) * 60_000
            or (not self._was_busy and "/" in self.name)
        ):
            return False
        self.uncounted_pushes, self.uncounted_leases = pushes, leases
        self.changed = 0
        return True

    def write(self, connection: sqlite3.Connection, now: int) -> None:
        """Write the changed counters, after closing the minute if it is over."""
        minute = now // 60_000
        if minute > self.minute:
            if self.uncounted_pushes or self.uncounted_leases:
                pending_counts = (self.uncounted_pushes, self.uncounted_leases, self.id)
                connection.execute(SQL["count_before_minute"], pending_counts)
            connection.execute(END_MINUTE, (self.id,))
            self.minute = minute
            self.changed = ANYTHING
        if self.uncounted_pushes:
            self.changed |= PUSHED
        if self.uncounted_leases:
            self.changed |= LEASED
        # A sweep goes through all queues, and one with wrong counters must not stop it.
        if self.changed < ANYTHING:
            self._check_counts()
        update, values = _STATEMENTS[self.changed]
        connection.execute(update, values(self))
        self.all_counted()
        if "/" in self.name and self._was_busy != (self.unfinished > 0):
            if self._was_busy:
                connection.execute(SQL["idle"], (self.name,))
            else:
                connection.execute(SQL["busy"], (self.name, self.id))
            self._was_busy = not self._was_busy

    def counts(self) -> tuple[int, ...]:
        """Return the counters that plain pushes, leases and acks change, sorted by name, and the queue's id."""
        self._check_counts()
        return _STATEMENTS[PUSHED | LEASED | SETTLED][1](self)

    def all_counted(self) -> None:
        """Mark all changes as written."""
        self.n_pushes_counted, self.n_leases_counted = self.n_pushed, self.n_leased
        self.uncounted_pushes = self.uncounted_leases = self.changed = 0

    def info(self) -> QueueInfo:
        return QueueInfo(
            name=self.name,
            options=self.options,
            paused=self.paused,
            created_at=self.created_at,
            totals=Totals(**{name: getattr(self, f"n_{name}") for name in TOTALS}),
            **{name: getattr(self, name) for name in GAUGES},
        )
