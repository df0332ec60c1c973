"""A running transaction: its time, its locks, its queues and its pending writes.

Writes are sent together with the next query or with the commit, so a batch takes two round trips, or one if it begins
with cached queues and reads nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from penstock.core.ids import DLQ_SUFFIX
from penstock.core.model import system_clock
from penstock.errors import UnknownQueue
from penstock.journal.recorder import Recorder
from penstock.postgres.context import quoted, statements
from penstock.postgres.pipeline import PipelinedConnection, Restart, Row, Rows, Statement, ints, ints_or_nulls, texts
from penstock.store.common import ByteBudget
from penstock.store.postgres.context import KnownQueue, StoreContext
from penstock.store.postgres.queues import COUNTED, PostgresQueue
from penstock.store.postgres.recent_leases import RangePart, RecentLease

# What a command needs of a queue: all its columns, and the exclusive right to push, to lease or to change it.
WHOLE, PUSH, LEASE, ADMIN = 1, 2, 4, 8
# Kinds of locks, in the order in which they are taken. The first is shared, except by commands that change or drop the
# queue. The last is a single lock under which queues are created.
ALIVE, PUSHING, LEASING, CREATING = 0, 1, 2, 3
# How long a change of a queue waits for open transactions that pushed to it. All other commands queue up behind it.
CHANGE_WAIT_MS = 1_000
# How long a push waits for an application's open transaction that pushed the same key. Other pushes wait behind it.
KEY_WAIT_MS = 200
# How far an assumed time may be ahead of and behind the time at which the database verifies it.
AHEAD_MS, BEHIND_MS = 50, 1_000
# Random bits of a mark, behind its time.
MARK_BITS = 20
# Longer than a push whose reply was lost tries to find out what happened.
MARKS_KEPT_MS = 5 * 60_000
NOT_LOADED = (None,) * 7
Needs = Mapping[str, int]


def home(name: str) -> str:
    """Return the queue of a name that may also address its dead letters."""
    return name.removesuffix(DLQ_SUFFIX)


class PostgresTransaction:
    def __init__(self, wire: PipelinedConnection, context: StoreContext) -> None:
        self.wire = wire
        self.context = context
        self.store_id = context.store_id
        self.now = 0
        # Payload bytes that the leases of this batch may still return.
        self.room = ByteBudget()
        self.journal = Recorder(context.store_id)
        self.journals = context.journals
        # True if no later command in the batch takes message ids.
        self.final = True
        # Number of pushed messages whose journal records do not have their ids yet.
        self.unnumbered = 0
        # Transaction id, loaded for durable batches to find out their outcome after a lost connection.
        self.xid: str | None = None
        # Mark that a batch of pushes leaves, to find out its outcome and ids after a lost connection.
        self.mark: int | None = None
        # Completes the receipts of the pushes, given the row of their first id; None if one id is not enough.
        self.on_numbered: Callable[[Rows], None] | None = None
        # Rows of the statements sent along with `begin`, for the first run only.
        self.early_rows: list[Rows] = []
        # Ranges that this batch leases, and those that it acknowledges as remembered; None if it reads them.
        self.granted: list[RecentLease] = []
        self.parts: list[RangePart] | None = None
        # True inside Transact: only a current lease settles, not a repeated token, as other commands depend on it.
        self.fenced = False
        # Queues whose consumers may wait for this batch.
        self.wakes: set[str] = set()
        # True if it scheduled messages.
        self.schedules = False
        # True if it waits only briefly for some lock, which an application's transaction may hold for long.
        self.gives_up_soon = False
        # True if the round trip of the commit returns a part of the outcomes.
        self.answers_with_commit = False
        # Called after the commit.
        self.on_commit: list[Callable[[], None]] = []
        self._pending: list[Statement] = []
        # The BEGIN that waits for the first statements.
        self._unsent: Statement | None = None
        self._queues: dict[str, PostgresQueue | None] = {}
        self._needs: dict[str, int] = {}
        # Id under which each queue was locked; another thread may have changed the cached id meanwhile.
        self._locked: dict[str, int] = {}
        self._stale = False
        # Positions in the journal at which open savepoints began.
        self._marks: list[int] = []

    # Beginning

    def begin(self, needs: Needs, *, durable: bool, early: Sequence[Statement] = ()) -> None:
        """Take the locks and load the queues that the batch needs."""
        start = [self._statement("begin.begin")]
        if not durable:
            start.append(self._statement("begin.without_waiting"))
        self._enter(start, needs, durable, early)

    @property
    def is_assumed(self) -> bool:
        """True if the queues are cached ones, whose due messages and expired leases were not searched for."""
        return self._unsent is not None

    def leave_mark(self) -> None:
        self.mark = self.context.now() << MARK_BITS | secrets.randbits(MARK_BITS)

    def assume(self, known: Sequence[KnownQueue], needs: Needs, parts: list[RangePart] | None) -> None:
        """Begin with cached queues and an estimated time, which the database verifies before the first statement."""
        context, self.parts = self.context, parts
        context.rescan_if_due()
        self.now = self.journal.now = context.now()
        self._unsent = self._statement("begin.begin")
        self._pending.append(self._unsent)
        if context.clock is not None:
            self.write("begin.move_clock", self.now)
        keys = ints(self._lock_keys(needs))
        pushes = any(flags & PUSH for flags in needs.values())
        names, ids, options = zip(*(each[:3] for each in known), strict=True)
        assumed = (self.now, AHEAD_MS, BEHIND_MS, context.journals, pushes, texts(names), ints(ids), texts(options))
        self.write("begin.verify", keys, *assumed, then=self._verified, needed=False)
        for each in known:
            self._queues[each.name] = PostgresQueue((*each[:5], *NOT_LOADED, context.journals))
        self._needs.update(needs)

    def _verified(self, rows: Rows) -> None:
        # The reply came later than the time in it, so the largest difference is the best estimate.
        self.context.ahead_ms = max(self.context.ahead_ms, rows[0][0] - system_clock())

    def join(self, needs: Needs) -> None:
        """Do the same as `begin` inside an open transaction."""
        self._enter([], needs, False, ())

    def _enter(self, start: list[Statement], needs: Needs, durable: bool, early: Sequence[Statement]) -> None:
        context = self.context
        context.rescan_if_due()
        if context.clock is not None:
            start.append(self._statement("begin.move_clock", context.clock()))
        keys = self._lock_keys(needs)
        if keys:
            enter = self._statement("begin.enter", ints(keys))
            is_change = any(flags & ADMIN for flags in needs.values())
            start += [*self._wait(CHANGE_WAIT_MS), enter, *self._wait(None)] if is_change else [enter]
        if needs:
            start.append(self._load_statement(needs, durable))
        else:
            start.append(self._statement("begin.now"))
        answers = self.wire.run([*start, *early])
        self.early_rows = answers[len(start) :]
        self._loaded(answers[len(start) - 1], needs)

    def enter_also(self, needs: Needs) -> None:
        """Lock and load further queues."""
        self.write_counters()
        unknown = [name for name in needs if name not in self.context.ids]
        if unknown:
            for name, queue_id in self.fetch("admin.ids", texts(unknown)):
                self.context.learn(name, queue_id)
        self.flush()
        keys = self._lock_keys({name: flags for name, flags in needs.items() if name in self.context.ids})
        answers = self.wire.run([self._statement("begin.enter", ints(keys)), self._load_statement(needs, False)])
        self._loaded(answers[1], needs)

    def _lock_keys(self, needs: Needs) -> list[int]:
        keys: dict[tuple[int, int], int] = {}
        for name, flags in needs.items():
            queue_id = self.context.ids.get(name)
            if queue_id is None:
                continue
            self._locked[name] = queue_id
            alive = self.context.lock_key(ALIVE, queue_id)
            if flags & ADMIN or keys.get((ALIVE, alive), 0) > 0:
                keys[ALIVE, alive] = alive
            else:
                keys[ALIVE, alive] = -alive
            if flags & PUSH:
                pushing = self.context.lock_key(PUSHING, queue_id)
                keys[PUSHING, pushing] = pushing
            if flags & LEASE:
                leasing = self.context.lock_key(LEASING, queue_id)
                keys[LEASING, leasing] = leasing
        return [keys[order] for order in sorted(keys)]

    def _load_statement(self, needs: Needs, durable: bool) -> Statement:
        context = self.context
        floors = [context.floor(context.ids.get(name)) for name in needs]
        return self._statement(
            "begin.load",
            texts(list(needs)),
            ints(flags & WHOLE for flags in needs.values()),
            ints(due for due, _ in floors),
            ints(lease_expiry for _, lease_expiry in floors),
            durable,
        )

    def _loaded(self, rows: Rows, needs: Needs) -> None:
        self.now = self.journal.now = rows[0][0]
        if not needs:
            return
        context = self.context
        self.journals = context.journals = rows[0][-1]
        context.ahead_ms = rows[0][0] - system_clock()
        moved = False
        for _, xid, name, queue_id, *rest in rows:
            self.xid = xid or self.xid
            if queue_id is None:
                context.forget(name)
                self._queues[name] = None
                continue
            if self._locked.get(name) != queue_id:
                context.learn(name, queue_id)
                moved = True
            queue = self._queues[name] = PostgresQueue((name, queue_id, *rest))
            before = context.known.get(name)
            checked_at = 0 if before is None else before.checked_at
            if needs[name] & WHOLE:
                context.raise_floor(queue_id, self.now, queue.due_at, queue.lease_expiry_at)
                checked_at = self.now
            options, paused, created_at = rest[:3]
            context.known[name] = KnownQueue(name, queue_id, options, paused, created_at, checked_at)
        self._needs.update(needs)
        if moved:
            raise Restart("a queue was locked under an outdated id")

    # Queues

    def find(self, name: str) -> PostgresQueue | None:
        if self._stale:
            self._stale = False
            (rows,) = self.wire.run([self._load_statement(self._needs, False)])
            with suppress(Restart):  # The locks were taken under the right ids, before the savepoint.
                self._loaded(rows, dict(self._needs))
        try:
            return self._queues[name]
        except KeyError:
            return self._queues[home(name)]

    def queue(self, name: str) -> PostgresQueue:
        queue = self.find(name)
        if queue is None:
            raise UnknownQueue(name)
        return queue

    def itself(self, name: str) -> PostgresQueue:
        """Return the queue of exactly this name: the name of its dead letters does not address the whole queue."""
        queue = self.queue(name)
        if queue.name != name:
            raise UnknownQueue(name)
        return queue

    def reload(self) -> None:
        """Load the queues again when they are next needed."""
        self.flush()
        self._stale = True

    def created(self, queue_row: Row) -> PostgresQueue:
        queue = self._queues[queue_row[0]] = PostgresQueue(queue_row)
        self.context.learn(queue.name, queue.id)
        known = queue.name, queue.id, queue.stored_options, queue.paused, queue.created_at
        self.context.known[queue.name] = KnownQueue(*known, checked_at=self.now)
        return queue

    def dropped(self, queue: PostgresQueue) -> None:
        self._queues[queue.name] = None
        self.context.forget(queue.name)

    # Statements

    def _statement(self, name: str, *params: Any, then: Callable[[Rows], None] | None = None) -> Statement:
        return Statement(self.context.sql[name], params, then)

    def write(self, name: str, *params: Any, then: Callable[[Rows], None] | None = None, needed: bool = True) -> None:
        self._pending.append(Statement(self.context.sql[name], params, then, needed))

    @contextmanager
    def waiting_briefly(self, wait_ms: int) -> Generator[None]:
        """Limit the wait for locks of the statements written inside, which an application's transaction may hold."""
        self._pending += self._wait(wait_ms)
        yield
        self._pending += self._wait(None)

    def _wait(self, wait_ms: int | None) -> list[Statement]:
        """Return a statement that limits the wait for locks; None restores the usual limit."""
        self.gives_up_soon = True
        return [self._statement("begin.wait_at_most", f"{wait_ms or self.context.busy_ms}ms")]

    def fetch(self, name: str, *params: Any) -> Rows:
        pending, self._pending = self._pending, []
        return self.wire.run([*pending, Statement(self.context.sql[name], params)])[-1]

    def fetch_all(self, *wanted: tuple[Any, ...]) -> list[Rows]:
        """Run several queries in one round trip."""
        pending, self._pending = self._pending, []
        queries = [Statement(self.context.sql[name], params) for name, *params in wanted]
        return self.wire.run([*pending, *queries])[len(pending) :]

    def flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            self.wire.run(pending)

    # Savepoints

    def save(self) -> None:
        self.write_counters()
        self._marks.append(self.journal.mark())
        self.write("begin.savepoint")

    def undo(self) -> None:
        """Roll back to the last savepoint, and load the queues again when they are next needed."""
        self.flush()
        self.write("begin.undo")
        self.write("begin.release")
        self.flush()
        for queue in self.touched():
            queue.changes = {}
        self.lower_floors()
        self.journal.roll_back_to(self._marks.pop())
        self._stale = True

    def lower_floors(self) -> None:
        """Scan everything again: what this transaction moved, so that scans found nothing, is back after a rollback."""
        for queue in self.touched():
            self.context.floors.pop(queue.id, None)

    def keep(self) -> None:
        self._marks.pop()
        self.release()

    def release(self) -> None:
        """Release a savepoint and keep its changes."""
        self.write_counters()
        self.write("begin.release")

    # Ending

    def write_counters(self) -> None:
        """Write one row per changed queue, with the changed columns only."""
        statement = self._counter_statement()
        if statement is not None:
            self._pending.append(statement)

    def _counter_statement(self, *note: Any) -> Statement | None:
        """Return the statement that writes the counters, together with a row of journal events if one is given."""
        changed = [queue for queue in self._queues.values() if queue is not None and queue.changes]
        if not changed:
            return None
        names = tuple(filter(changed[0].changes.get, COUNTED))
        if len(changed) > 1:
            names = tuple(name for name in COUNTED if any(queue.changes.get(name) for queue in changed))
        cursors = [queue.cursor if queue.cursor_moved else None for queue in changed]
        newest = [queue.newest_at if queue.pushed_to else None for queue in changed]
        columns = [ints(queue.changes.get(name, 0) for queue in changed) for name in names]
        sql = counter_statement(self.context.schema, names, noted=bool(note))
        ids = ints(queue.id for queue in changed)
        params = (*note, self.now // 60_000, ids, ints_or_nulls(cursors), ints_or_nulls(newest), *columns)
        self.context.uncompacted_counters += len(changed)
        for queue in changed:
            queue.written()
        return Statement(sql, params)

    def write_journal(self) -> None:
        """Write the journal events last, so that a transaction that saw this one's changes is recorded after it."""
        records = self.journal.take()
        if records:
            note = self.unnumbered, b"".join(records)
            together = self._counter_statement(*note)
            self._pending.append(together or self._statement("journal.note", *note))
            self.context.spooled += 1

    def commit(self) -> None:
        self.write_journal()
        self.write_counters()
        pending, self._pending = self._pending, []
        if pending and pending[0] is self._unsent:
            # Statements of one round trip are one transaction anyway.
            del pending[0]
        else:
            pending.append(self._statement("begin.commit"))
        self.answers_with_commit = any(statement.then and statement.needed for statement in pending)
        self.wire.run(pending)

    def touched(self) -> Iterable[PostgresQueue]:
        return (queue for queue in self._queues.values() if queue is not None)


@lru_cache(maxsize=256)
def counter_statement(schema: str, names: tuple[str, ...], *, noted: bool) -> bytes:
    """Return the statement that adds counter rows and, if `noted`, the journal events in its first two parameters."""
    first = 3 if noted else 1
    columns = "".join(f", {name}" for name in names)
    arrays = "".join(f", ${number}::bigint[]" for number in range(first + 4, first + 4 + len(names)))
    values = "".join(f", r.{name}" for name in names)
    insert = (
        f"INSERT INTO {quoted(schema)}.counter (minute, queue_id, cursor, newest_at{columns})\n"
        f"SELECT ${first}::bigint, r.queue_id, r.cursor, r.newest_at{values}\n"
        f"  FROM unnest(${first + 1}::bigint[], ${first + 2}::bigint[], ${first + 3}::bigint[]{arrays})\n"
        f"    AS r(queue_id, cursor, newest_at{columns})"
    )
    if noted:
        insert = f"WITH counted AS (\n{insert})\n{statements(schema)['journal.note'].decode()}"
    return insert.encode()
