"""PostgreSQL store: a connection pool, and one transaction per batch of commands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import psycopg
from psycopg.rows import scalar_row

from penstock.core import fork_safety
from penstock.core.commands import Ack, CatchUp, Command, Extend, Lease, Nack, Push, Release, SwitchJournal
from penstock.core.model import Clock, Progress, PushReceipt, StoredMessage, WorkerInfo
from penstock.errors import (
    InvariantBroken,
    PenstockError,
    StoreBusy,
    StoreError,
    StoreUnreachable,
    TryLater,
    Unsupported,
    WrongType,
)
from penstock.group_commit.interface import PreparedBatch
from penstock.journal.postgres_outbox import JournalOutbox
from penstock.postgres.connection import (
    MAYBE,
    DatabaseTarget,
    Pool,
    connect,
    is_lost,
    server_start_id,
    translate,
    unsafe_settings,
)
from penstock.postgres.notifier import Notifier
from penstock.postgres.pipeline import PipelinedConnection, Restart, Statement
from penstock.postgres.schema import has_journal, migrate
from penstock.store.interface import PushStatement
from penstock.store.postgres.assumptions import WRONG, assumed
from penstock.store.postgres.caller_transaction import (
    NO_PENSTOCK,
    POSTGRES_DRIVERS,
    in_use,
    other_database,
    push_statement,
    receipts,
)
from penstock.store.postgres.context import BUSY_MS, SLACK_MS, StoreContext
from penstock.store.postgres.dispatch import early_statements, execute, is_durable, needs_of, runs
from penstock.store.postgres.lost_commits import CommitLost, was_committed
from penstock.store.postgres.queries import PostgresQueries
from penstock.store.postgres.settled_tokens import forget_settled
from penstock.store.postgres.sweep import compact_counters, forget_marks
from penstock.store.postgres.transaction import PostgresTransaction
from penstock.store.postgres.workers import list_workers
from penstock.store.reads import StoreReads

T = TypeVar("T")
Durability = Literal["full", "relaxed"]
# One per lane, and two for reads.
CONNECTIONS = 6
TRIES = 20
# Errors of concurrent transactions: the same batch may succeed when it is repeated.
RETRIED = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure, psycopg.errors.UniqueViolation)
# Counter rows after which a store compacts them itself, if no sweeper does.
UNCOMPACTED_MAX = 2_000
# Old rows about settled tokens that one transaction deletes, if no sweeper does.
FORGOTTEN_MAX = 10_000
# Journalled transactions after which a store assigns their offsets itself, if no server does.
SPOOLED_MAX = 2_000
# SQLSTATE classes of errors caused by one command: a value that cannot be stored or is too large.
OF_ONE_COMMAND = ("22", "54")
LANES: dict[type[Command[Any]], int] = {Push: 0, Lease: 1, CatchUp: 1, Release: 1, Ack: 2, Nack: 2, Extend: 2}


class PostgresStore(StoreReads):
    lanes = 4
    """Batches that may run at the same time: pushes, leases, settles, and the rest."""
    commit_is_instant = False

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        clock: Clock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        durability: Durability = "full",
        busy_ms: int = BUSY_MS,
        connections: int = CONNECTIONS,
        journal: bool | None = None,
    ) -> None:
        """Open a store. `journal` turns the journal of the database on or off for all processes; None keeps it."""
        self.target = DatabaseTarget(url, schema)
        self.durability: Durability = durability
        self._busy_ms = busy_ms
        first = self._connect()
        try:
            try:
                store_id = migrate(first, self.target.schema)
                had_journal = has_journal(first, self.target.schema)
                self.durability_warnings = unsafe_settings(first)
            except psycopg.Error as error:
                raise translate(error, self.target) from error
            self._context = StoreContext(self.target.schema, store_id, clock, monotonic, busy_ms)
            self._outbox, self._draining = JournalOutbox(self._context), threading.Lock()
            self._pool = Pool(self._open_wire, connections, self.target.shown)
            channel = f"penstock.{self.target.schema}"
            self._notifier = Notifier(self._connect, channel, on_late_commit=self._context.rescan_soon)
            self._notifier.start()
        finally:
            first.close()
        fork_safety.register(self)
        if journal is not None and journal != had_journal:
            try:
                self.apply([SwitchJournal(on=journal)])
            except BaseException:
                self.close()
                raise

    @property
    def store_id(self) -> int:
        return self._context.store_id

    @property
    def where(self) -> str:
        return f"{self.target.shown} (schema {self.target.schema})"

    def clock(self) -> int:
        """Return the database's time, estimated from the last transaction."""
        return self._context.now()

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return connect(self.target, busy_ms=self._busy_ms, relaxed=self.durability == "relaxed")

    def _open_wire(self) -> PipelinedConnection:
        connection = self._connect()
        try:
            return PipelinedConnection(
                connection,
                server_start_id=server_start_id(connection),
                answer_ms=self.target.answer_ms + self._busy_ms,
            )
        except psycopg.Error as error:
            connection.close()
            raise translate(error, self.target) from error

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        # The connections belong to the parent: closing them here would end them there.
        self._pool.start_over()
        self._notifier.start_over()
        self._draining = threading.Lock()

    def lane(self, command: Command[Any]) -> int:
        """Return the lane of a command. Leases have their own: they need no fsync and must not wait for others'."""
        return LANES.get(type(command), 3)

    def apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        try:
            return self._apply(commands)
        except psycopg.Error as error:
            # The database rejects a value of one command: the others run without it.
            if len(commands) == 1 or (error.sqlstate or "")[:2] not in OF_ONE_COMMAND:
                raise translate(error, self.target) from error
        except PenstockError as error:
            # Only the command that waits for an application's transaction, or finds damaged data, fails.
            if len(commands) == 1 or not isinstance(error, (TryLater, InvariantBroken)):
                raise
        except Exception:
            # An unexpected error of one command must not fail the rest of the batch.
            if len(commands) == 1:
                raise
        return [self._apply_alone(command) for command in commands]

    def _apply_alone(self, command: Command[Any]) -> Any:
        try:
            return self._apply([command])[0]
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] in OF_ONE_COMMAND:
                return translate(error, self.target)
            raise translate(error, self.target) from error
        except InvariantBroken as error:
            return error
        except StoreError:
            raise
        except Exception as error:
            return error

    def _apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        if not commands:
            return []
        last_error: Exception | None = None
        may_assume, may_be_done = True, False
        for _ in range(TRIES):
            try:
                with self._pool.wire() as wire:
                    tx = PostgresTransaction(wire, self._context)
                    outcomes = self._run(tx, commands, may_assume)
                    # The batch is committed: an error in maintenance must not reach its callers.
                    with suppress(psycopg.Error, StoreError):
                        self._maintain(wire)
                return outcomes
            except CommitLost as lost:
                self._pool.drop_idle()
                if was_committed(lost, self._pool, self.target):
                    self._notifier.notify_later()
                    if lost.is_complete:
                        return lost.outcomes
                    # The assigned ids were in the lost reply.
                    raise translate(psycopg.OperationalError(str(lost)), self.target, maybe_done=True) from lost
                may_be_done |= lost.tx.parts is not None
                last_error = lost
            except StoreUnreachable as error:
                if not may_be_done:
                    raise
                raise StoreUnreachable(str(error.args[0]), maybe_done=True, hint=MAYBE) from error
            except (Restart, *RETRIED) as error:
                last_error = error
            except psycopg.errors.LockNotAvailable as error:
                if tx.gives_up_soon:
                    raise in_use() from error
                raise
            except psycopg.Error as error:
                if error.sqlstate == WRONG:
                    self._context.doubt(needs_of(commands))
                    may_assume = False
                elif is_lost(error):
                    # Nothing was committed: retry on a new connection.
                    self._pool.drop_idle()
                else:
                    raise
                last_error = error
        if isinstance(last_error, psycopg.Error) and last_error.sqlstate == WRONG:
            raise InvariantBroken(f"{self.target.shown}: {last_error}") from last_error
        raise StoreBusy(f"{self.target.shown}: giving up after {TRIES} attempts: {last_error}") from last_error

    def _run(self, tx: PostgresTransaction, commands: Sequence[Command[Any]], may_assume: bool) -> list[Any]:
        wire, started = tx.wire, time.monotonic()
        in_runs, needs = runs(commands), needs_of(commands)
        known = assumed(self._context, commands, needs) if may_assume else None
        if all(isinstance(command, Push) for command in commands):
            tx.leave_mark()
        try:
            if known is not None:
                tx.assume(known.queues, needs, known.parts)
            else:
                tx.begin(needs, durable=is_durable(commands), early=early_statements(tx, in_runs[0]))
            outcomes = execute(tx, in_runs)
            notifies = bool(tx.wakes) and self._notifier.may_send_now()
            for payload in self._notifier.payloads(tx.wakes) if notifies else ():
                tx.write("begin.notify", self._notifier.channel, payload)
        except BaseException:
            tx.lower_floors()
            self._roll_back(wire)
            raise
        try:
            tx.commit()
        except psycopg.Error as error:
            tx.lower_floors()
            if is_lost(error) or wire.broken:
                raise CommitLost(tx, outcomes, error) from error
            self._roll_back(wire)
            raise
        for done in tx.on_commit:
            done()
        self._context.recent_leases.add(tx.granted)
        self._context.recent_leases.settled(tx.parts or ())
        late = tx.schedules and time.monotonic() - started > SLACK_MS / 1000
        if late or (tx.wakes and not notifies):
            self._notifier.notify_later(tx.wakes, late=late)
        return outcomes

    def _roll_back(self, wire: PipelinedConnection) -> None:
        with suppress(psycopg.Error):
            if not wire.broken and wire.in_transaction:
                wire.run([Statement(self._context.sql["begin.rollback"])])

    def _maintain(self, wire: PipelinedConnection) -> None:
        """Do the background work of a server, in case there is none."""
        context = self._context
        if context.uncompacted_counters > UNCOMPACTED_MAX:
            self._compact_counters(wire)
        if context.spooled > SPOOLED_MAX and self._draining.acquire(blocking=False):
            try:
                context.spooled = 0
                while self._outbox.step(wire, []):
                    pass
            finally:
                self._roll_back(wire)
                self._draining.release()

    def _compact_counters(self, wire: PipelinedConnection) -> None:
        """Compact the counters of recently used queues, in one bounded step, because a caller waits for it."""
        tx = PostgresTransaction(wire, self._context)
        try:
            tx.begin({}, durable=False)
            compact_counters(tx, list(dict.fromkeys(self._context.ids.values())))
            forget_settled(tx, FORGOTTEN_MAX)
            forget_marks(tx)
            tx.commit()
        except BaseException:
            self._roll_back(wire)
            raise

    def prepare(self, commands: Sequence[Command[Any]]) -> PreparedBatch | None:
        """Return None always: every statement waits for the database."""
        return None

    def apply_now(self, command: Command[Any]) -> None:
        """Return None always, like `prepare`."""

    def push_statement(self, command: Push) -> PushStatement:
        """Return a statement that pushes in a transaction of the caller; `pushed` reads its result."""
        self._pool.check_open()
        return push_statement(self._context, command, durable=self.durability == "full")

    def pushed(self, command: Push, answer: str) -> list[PushReceipt]:
        return receipts(self._context, self.target, command, answer)

    def driver_error(self, error: Exception) -> Exception:
        """Return the error of the caller's driver, or one that says that the connection is to another database."""
        return other_database(self.target) if getattr(error, "sqlstate", None) in NO_PENSTOCK else error

    def push_on(self, connection: psycopg.Connection[Any], command: Push) -> list[PushReceipt]:
        """Push in the transaction of the caller's connection."""
        if not isinstance(connection, psycopg.Connection):
            raise WrongType(
                f"conn: expected a PostgreSQL connection, got {type(connection).__name__}",
                field="conn",
                hint=POSTGRES_DRIVERS,
            )
        statement = self.push_statement(command)
        try:
            with psycopg.RawCursor(connection, row_factory=scalar_row) as cursor:
                answer: Any = cursor.execute(statement.sql.encode(), statement.params).fetchone()
        except psycopg.Error as error:
            raise self.driver_error(error) from error
        return self.pushed(command, answer)

    def version(self, topic: str | None = None) -> int:
        self._pool.check_open()
        self._notifier.start()
        return self._notifier.changes if topic is None else self._notifier.version(topic)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        return self._notifier.listen(listener)

    def write_obstacle(self) -> str | None:
        ((is_read_only,),) = self._read(lambda reader: reader.fetch("queries.is_read_only"))
        return "the database is read-only" if is_read_only else None

    def commits(self) -> int:
        return 0

    def workers(self, *, after: str | None = None, limit: int = 100) -> list[WorkerInfo]:
        return self._read(lambda reader: list_workers(reader, after, limit))

    def _read(self, query: Callable[[PostgresQueries], T]) -> T:
        """Run queries on one snapshot of the database; retry once if the connection was lost."""
        for last in (False, True):
            try:
                with self._pool.wire() as wire:
                    try:
                        return query(PostgresQueries(wire, self._context))
                    finally:
                        self._roll_back(wire)
            except psycopg.Error as error:
                if last or not is_lost(error):
                    raise translate(error, self.target) from error
                self._pool.drop_idle()
        raise AssertionError

    def export(self, queue: str) -> Generator[StoredMessage, None, None]:
        self._pool.check_open()
        wire = self._open_wire()
        try:
            yield from PostgresQueries(wire, self._context).export(queue)
        except psycopg.Error as error:
            raise translate(error, self.target) from error
        finally:
            wire.close()

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        raise Unsupported(
            "a PostgreSQL store cannot be backed up to a file",
            hint=f"use pg_dump --schema={self.target.schema}, which makes a consistent copy while the store is in use",
        )

    def compact(self) -> None:
        """Free the space of deleted rows for new messages; PostgreSQL's autovacuum does so too, a little later."""
        self._pool.check_open()
        with self._connect() as connection:
            try:
                tables = connection.execute(
                    "SELECT format('%%I.%%I', schemaname, tablename) FROM pg_tables WHERE schemaname = %s",
                    (self.target.schema,),
                ).fetchall()
                for (table,) in tables:
                    connection.execute(f"VACUUM {table}".encode())
            except psycopg.Error as error:
                raise translate(error, self.target) from error

    def shorten_log(self) -> None:
        """Do nothing: PostgreSQL manages its write-ahead log."""

    def close(self) -> None:
        """Close all connections. Safe to call again."""
        self._notifier.close()
        self._pool.close()
