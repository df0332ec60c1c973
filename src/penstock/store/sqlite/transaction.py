"""A running transaction: its connection, its time and the queues it uses."""

from __future__ import annotations

import secrets
import sqlite3
from typing import NamedTuple

from penstock.core.ids import DLQ_SUFFIX
from penstock.core.model import LEASE_BYTES_MAX
from penstock.core.sql_files import load_sql
from penstock.errors import UnknownQueue
from penstock.journal.recorder import Recorder
from penstock.store.common import ByteBudget, LeaseChecks
from penstock.store.request_dedup import RequestWindow
from penstock.store.sqlite.journal import record_deferred
from penstock.store.sqlite.latency import LatencyCounters
from penstock.store.sqlite.queues import ANYTHING, COUNTED_LATER, LAST_ID, LOAD, PUSHED, SQL, SqliteQueue

# First lease of a plain message: expiry time, token, time of the lease, and time of the push.
RecentLease = tuple[int, bytes, int, int]
# Messages in cached leases, and as many again in cached ranges.
RECENT_LEASES_MAX = 10_000
# Rows about settled tokens after which old ones are deleted.
FORGET_EVERY = 500

JOURNAL = load_sql("penstock.store.sqlite", "journal")


class NotAsRemembered(Exception):
    """Raised when the cached leases turned out to be outdated; the batch is rolled back and run without the cache."""


class RecentRange(NamedTuple):
    """A range of plain messages as it is stored, with all that an ack of its first messages or of all needs."""

    queue_id: int
    until: int
    token: bytes
    leased_at: int
    ids: list[int]
    pushed: list[int]
    """Push times."""


class SqliteTransaction:
    __slots__ = (
        "_ahead",
        "_another_claims",
        "_changes_before",
        "_pushed_last",
        "_queues",
        "_recent_in_ranges",
        "_recent_ranges",
        "_touched",
        "_uncounted_in",
        "connection",
        "execute",
        "fenced",
        "is_writer",
        "journal",
        "journal_bytes",
        "last_id",
        "latencies",
        "lease_checks",
        "next_offset",
        "now",
        "past_requests",
        "recent_leases",
        "remembered",
        "room",
        "store_id",
        "trimmed_minute",
        "writer",
    )

    def __init__(self, connection: sqlite3.Connection, store_id: int, past_requests: RequestWindow) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.store_id = store_id
        self.now = 0
        # Payload bytes that the leases of this batch may still return.
        self.room = ByteBudget()
        self.journal = Recorder(store_id)
        self.latencies = LatencyCounters()
        self.lease_checks = LeaseChecks()
        self.past_requests = past_requests
        # Minute in which old history was last deleted.
        self.trimmed_minute = -1
        self.writer = secrets.randbits(62) | 1
        # Bytes written to the journal since this was last set to 0.
        self.journal_bytes = 0
        # True inside Transact: only a current lease settles, not a repeated token, as other commands depend on it.
        self.fenced = False
        # Rows about settled tokens written since old ones were deleted. Each process begins by deleting some.
        self.remembered = FORGET_EVERY
        self._pushed_last = 0
        self._uncounted_in: int
        # First leases of plain messages given out by this process, by message id, which can be ended without a lookup.
        self.recent_leases: dict[int, RecentLease] = {}
        # Ranges leased by this process that can be ended without a lookup, by token, and how many messages they have.
        self._recent_ranges: dict[str, RecentRange] = {}
        self._recent_in_ranges = 0
        self.forget()

    def start(self, now: int) -> None:
        self.now = self.journal.now = now
        self.room.left = LEASE_BYTES_MAX
        if self._uncounted_in < 0:
            self._uncounted_in, name, journal, writer = self.execute(SQL["uncounted_in"]).fetchone()
            self.is_writer = writer == self.writer
            self._another_claims = bool(writer) and not self.is_writer
            self._changes_before = self.connection.total_changes
            if name is not None and journal:
                # Its pending events come before everything recorded from now on.
                self.find(name)

    def forget(self) -> None:
        """Discard all cached state and pending changes."""
        self.journal.roll_back_to(0)
        # True if the file names another process as its last writer, which must be cleared with the first change.
        self._another_claims, self._changes_before = False, 0
        self.forget_queues()

    def mark(self) -> tuple[int, bool]:
        """Return a position for `roll_back_to`, together with a savepoint."""
        return self.journal.mark(), self._another_claims

    def roll_back_to(self, mark: tuple[int, bool]) -> None:
        """Discard changes after the database was rolled back to its savepoint."""
        is_journalled, self._another_claims = mark
        self.journal.roll_back_to(is_journalled)
        self.forget_leases()
        self.forget_queues()

    def forget_queues(self) -> None:
        self._queues: dict[str, SqliteQueue] = {}
        self._touched: dict[int, SqliteQueue] = {}
        # The journalled queue with deferred counts, whose events are not written yet either.
        self._ahead: SqliteQueue | None = None
        # True if the file names this process as its last writer.
        self.is_writer = False
        self.last_id = self.next_offset = -1
        self._uncounted_in = -1

    def find(self, name: str) -> SqliteQueue | None:
        queue = self._queues.get(name)
        if queue is None:
            row = self.execute(LOAD, (name,)).fetchone()
            if row is None:
                return None
            queue = self._queues[name] = SqliteQueue(row)
            if queue.pending_counts and queue.is_journalled:
                self._ahead = queue
                record_deferred(self, queue)
        return queue

    def ahead(self, name: str) -> SqliteQueue | None:
        """Return the queue of this name if it is cached and its counts may be deferred."""
        queue = self._queues.get(name)
        return queue if queue is not None and queue.id == self._uncounted_in else None

    def queue(self, name: str) -> SqliteQueue:
        queue = self.find(name)
        if queue is None:
            raise UnknownQueue(name)
        return queue

    def home(self, name: str) -> SqliteQueue:
        """Return the queue of a name that may also address its dead letters."""
        return self.find(name) or self.queue(name.removesuffix(DLQ_SUFFIX))

    def touch(self, queue: SqliteQueue, what: int = ANYTHING) -> None:
        queue.changed |= what
        self._touched[queue.id] = queue

    def remember(self, message_id: int, lease: RecentLease) -> None:
        if len(self.recent_leases) >= RECENT_LEASES_MAX:
            self.recent_leases.clear()
        self.recent_leases[message_id] = lease

    def remember_range(self, token: str, recent: RecentRange) -> None:
        self._recent_in_ranges += len(recent.ids)
        if self._recent_in_ranges > RECENT_LEASES_MAX:
            self._recent_ranges.clear()
            self._recent_in_ranges = len(recent.ids)
        self._recent_ranges[token] = recent

    def forget_leases(self) -> None:
        """Discard cached leases, which a transaction that was rolled back may have changed."""
        self.recent_leases.clear()
        self._recent_ranges.clear()
        self._recent_in_ranges = 0

    def has_recent_range(self, token: str) -> bool:
        return token in self._recent_ranges

    def pop_recent_range(self, token: str | None) -> RecentRange | None:
        recent = None if token is None else self._recent_ranges.pop(token, None)
        if recent is not None:
            self._recent_in_ranges -= len(recent.ids)
        return recent

    def dropped(self, queue: SqliteQueue) -> None:
        self._queues.pop(queue.name, None)
        self.latencies.forget(queue.id)
        self._touched.pop(queue.id, None)
        if self._ahead is queue:
            self._ahead = None

    def next_ids(self, count: int) -> int:
        """Return the first of `count` new message ids."""
        if self.last_id < 0:
            (self.last_id,) = self.execute(LAST_ID).fetchone()
        first = self.last_id + 1
        self.last_id += count
        return first

    def write_counters(self) -> None:
        if self._touched:
            alone = len(self._touched) == 1
            for queue in self._touched.values():
                if not (alone and queue.changed <= COUNTED_LATER and self._leave_uncounted(queue)):
                    queue.write(self.connection, self.now)
            self._touched.clear()

    def _leave_uncounted(self, queue: SqliteQueue) -> bool:
        """Defer the counts of plain pushes and leases if this is the one queue for which that is allowed."""
        if self._uncounted_in < 0:
            (self._uncounted_in, *_) = self.execute(SQL["uncounted_in"]).fetchone()
        if queue.id == self._uncounted_in:
            if not queue.leave_uncounted(self.now):
                return False
            self.defer_counts(queue)
            if not self.is_writer:
                self.execute(SQL["set_writer"], (self.writer,))
                self.is_writer, self._another_claims = True, False
            return True
        if queue.changed != PUSHED:
            return False
        if queue.id == self._pushed_last:
            self.flush_deferred()
            self.execute(SQL["leave_uncounted"], (queue.id,))
            self._uncounted_in = queue.id
        # A queue is chosen only after two pushes in a row, so that alternating queues do not keep switching it.
        self._pushed_last = queue.id
        return False

    def defer_counts(self, queue: SqliteQueue) -> None:
        if queue.is_journalled:
            self._ahead = queue

    def flush_deferred(self) -> None:
        """Write deferred counts, also those of other processes."""
        row = self.execute(SQL["name_of"], (self._uncounted_in,)).fetchone()
        if row is not None:
            queue = self.queue(row[0])
            if queue.pending_counts:
                queue.write(self.connection, self.now)

    def count(self) -> None:
        """Write all counters, including deferred ones."""
        self.write_counters()
        if self._ahead is not None and self._ahead.pending_counts:
            self._ahead.write(self.connection, self.now)

    def finish(self) -> None:
        """Write counters and journal, or defer both: they always cover the same events."""
        self._write_or_defer()
        if self._another_claims and self.connection.total_changes != self._changes_before:
            self.execute(SQL["set_writer"], (0,))
            self._another_claims = False

    def _write_or_defer(self) -> None:
        self.write_counters()
        if not self.journal:
            return
        if self._ahead is not None and self._ahead.pending_counts and self.journal.can_wait(self._ahead.id):
            return
        self.count()
        if row := self.next_journal_row():
            self.execute(JOURNAL["write"], row)

    def next_journal_row(self) -> tuple[int, int, bytes] | None:
        """Return the events of this commit as one row. The write lock makes offsets dense and in commit order."""
        records = self.journal.take()
        if not records:
            return None
        self.load_next_offset()
        row = (self.next_offset, len(records), b"".join(records))
        self.next_offset += len(records)
        self.journal_bytes += len(row[2])
        return row

    def load_next_offset(self) -> None:
        if self.next_offset < 0:
            row = self.execute(JOURNAL["next_offset"]).fetchone()
            self.next_offset = row[0] if row else 0
