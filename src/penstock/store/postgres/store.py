"""The PostgreSQL store: a few connections, one transaction for each batch of commands."""

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
from penstock.core.model import (
    Ages,
    ApiKey,
    Clock,
    DeadError,
    Latencies,
    Progress,
    PushReceipt,
    QueueInfo,
    QueueStats,
    RollUp,
    State,
    StoredMessage,
    Window,
    WorkerInfo,
)
from penstock.errors import PenstockError, StoreBusy, StoreError, StoreUnreachable, TryLater, Unsupported, WrongType
from penstock.group_commit.interface import PendingReply, PreparedBatch
from penstock.journal.postgres_outbox import JournalOutbox
from penstock.postgres.connection import (
    OUTCOME_SECONDS,
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
from penstock.store.postgres.access import api_key
from penstock.store.postgres.caller_transaction import (
    NO_PENSTOCK,
    POSTGRES_DRIVERS,
    in_use,
    other_database,
    push_statement,
    receipts,
)
from penstock.store.postgres.context import BUSY_MS, SLACK_MS, StoreContext
from penstock.store.postgres.dispatch import along, execute, is_durable, needs_of, runs
from penstock.store.postgres.fastpath.eligibility import plan
from penstock.store.postgres.fastpath.runner import RETRIED, UNFOLDED_MAX, FastPath
from penstock.store.postgres.queries import PostgresQueries
from penstock.store.postgres.settle import forget_settled
from penstock.store.postgres.sweep import fold, forget_marks
from penstock.store.postgres.transaction import PostgresTransaction
from penstock.store.postgres.workers import list_workers

T = TypeVar("T")
Durability = Literal["full", "relaxed"]
CONNECTIONS = 6
"""One for each lane, and two to read with."""
TRIES = 20
FORGOTTEN_MAX = 10_000
"""Old notes of settled messages that one transaction deletes, if no sweeper does."""
SPOOLED_MAX = 2_000
"""Transactions noted for the journal after which a store gives them their offsets itself, if no server does."""
LANES: dict[type[Command[Any]], int] = {Push: 0, Lease: 1, CatchUp: 1, Release: 1, Ack: 2, Nack: 2, Extend: 2}


class CommitLost(Exception):
    """The connection was lost between the word to commit and its answer."""

    def __init__(self, xid: str | None, life: str, outcomes: list[Any] | None, cause: psycopg.Error) -> None:
        super().__init__(str(cause))
        self.xid = xid
        self.life = life
        self.outcomes = outcomes
        self.cause = cause


OF_ONE_COMMAND = ("22", "54")
"""Classes of errors: a value that cannot be stored, or is too large to."""


class PostgresStore:
    lanes = 4
    """Batches that may be on their way at once: pushes, leases, settling, and the rest."""
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
        """With `journal` the database gets or loses its journal, for all who share it; None leaves that as it is."""
        self.target = DatabaseTarget(url, schema)
        self.durability: Durability = durability
        self._busy_ms = busy_ms
        first = self._connect()
        try:
            try:
                salt = migrate(first, self.target.schema)
                had_journal = has_journal(first, self.target.schema)
                self.durability_warnings = unsafe_settings(first)
            except psycopg.Error as error:
                raise translate(error, self.target) from error
            self._context = StoreContext(self.target.schema, salt, clock, monotonic, busy_ms)
            self._outbox, self._draining = JournalOutbox(self._context), threading.Lock()
            self._pool = Pool(self._open_wire, connections, self.target.shown)
            channel = f"penstock.{self.target.schema}"
            self._notifier = Notifier(self._connect, channel, on_late_commit=self._context.rescan_soon)
            self._notifier.start()
            self._short_way = FastPath(
                self._context, self._pool, self._notifier, self.target, self._apply_in_steps, self._look_after
            )
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
    def salt(self) -> int:
        return self._context.salt

    @property
    def where(self) -> str:
        return f"{self.target.shown} (schema {self.target.schema})"

    def clock(self) -> int:
        """The database's, as far as the last transaction told."""
        return self._context.now()

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return connect(self.target, busy_ms=self._busy_ms, relaxed=self.durability == "relaxed")

    def _open_wire(self) -> PipelinedConnection:
        connection = self._connect()
        try:
            return PipelinedConnection(
                connection, life=server_start_id(connection), answer_ms=self.target.answer_ms + self._busy_ms
            )
        except psycopg.Error as error:
            connection.close()
            raise translate(error, self.target) from error

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        # The connections are the parent's: left alone, never closed here, which would end them there.
        self._pool.start_over()
        self._notifier.start_over()
        self._draining = threading.Lock()

    def lane(self, command: Command[Any]) -> int:
        """Commands of one lane share batches; leases need not wait for the disk, and wait for none who do."""
        return LANES.get(type(command), 3)

    def apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        try:
            return self._apply(commands)
        except psycopg.Error as error:
            # What a command holds may be what the database cannot: that is no matter of the others.
            if len(commands) == 1 or (error.sqlstate or "")[:2] not in OF_ONE_COMMAND:
                raise translate(error, self.target) from error
        except PenstockError as error:
            # Only the command that waits for an application's transaction is refused.
            if len(commands) == 1 or not isinstance(error, TryLater):
                raise
        except Exception:
            # Something no command foresees. Alone, it fails by itself; together, it must not take others with it.
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
        except StoreError:
            raise
        except Exception as error:
            return error

    def _apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        if not commands:
            return []
        short = plan(self._context, commands)
        return self._apply_in_steps(commands) if short is None else self._short_way.carry_out(short, commands)

    def _apply_in_steps(self, commands: Sequence[Command[Any]]) -> list[Any]:
        trouble: Exception | None = None
        for _ in range(TRIES):
            try:
                with self._pool.wire() as wire:
                    tx = PostgresTransaction(wire, self._context)
                    outcomes = self._run(tx, commands)
                    # What goes wrong with this is no matter of those who asked for that, which is done.
                    with suppress(psycopg.Error, StoreError):
                        self._look_after(wire)
                return outcomes
            except CommitLost as lost:
                self._pool.drop_idle()
                if self._was_kept(lost):
                    self._notifier.notify_later()
                    if lost.outcomes is not None:
                        return lost.outcomes
                    # The ids that were given came with the answer.
                    raise translate(psycopg.OperationalError(str(lost)), self.target, maybe_done=True) from lost
                trouble = lost
            except (Restart, *RETRIED) as error:
                trouble = error
            except psycopg.errors.LockNotAvailable as error:
                if tx.gives_up_soon:
                    raise in_use() from error
                raise
            except psycopg.Error as error:
                if not is_lost(error):
                    raise
                # Nothing of it was kept: once more, on a connection made anew.
                self._pool.drop_idle()
                trouble = error
        raise StoreBusy(f"{self.target.shown}: {TRIES} attempts were in vain, the last because: {trouble}") from trouble

    def _run(self, tx: PostgresTransaction, commands: Sequence[Command[Any]]) -> list[Any]:
        wire, begun = tx.wire, time.monotonic()
        in_runs = runs(commands)
        try:
            tx.begin(needs_of(commands), durable=is_durable(commands), along=along(tx, in_runs[0]))
            outcomes = execute(tx, in_runs)
            told = bool(tx.wakes) and self._notifier.may_send_now()
            for word in self._notifier.words(tx.wakes) if told else ():
                tx.write("begin.notify", self._notifier.channel, word)
        except BaseException:
            self._roll_back(wire)
            raise
        try:
            tx.commit()
        except psycopg.Error as error:
            if is_lost(error) or wire.broken:
                raise CommitLost(tx.xid, wire.life, None if tx.answers_with_commit else outcomes, error) from error
            self._roll_back(wire)
            raise
        late = tx.schedules and time.monotonic() - begun > SLACK_MS / 1000
        if late or (tx.wakes and not told):
            self._notifier.notify_later(tx.wakes, late=late)
        return outcomes

    def _roll_back(self, wire: PipelinedConnection) -> None:
        with suppress(psycopg.Error):
            if not wire.broken and wire.in_transaction:
                wire.run([Statement(self._context.sql["begin.rollback"])])

    def _was_kept(self, lost: CommitLost) -> bool:
        """Ask the database, when it is there again, what became of a commit.

        A crash takes back the numbers of transactions that left no trace on disk, and others get them: after one, it
        may be another's commit that it knows of.
        """
        deadline = time.monotonic() + OUTCOME_SECONDS
        while lost.xid is not None and time.monotonic() < deadline:
            try:
                with self._pool.wire() as wire:
                    (((status,),),) = wire.run([Statement(self._context.sql["begin.was_committed"], (lost.xid,))])
                if status == "aborted":
                    return False
                if status == "committed":
                    if wire.life == lost.life:
                        return True
                    break
            except psycopg.errors.InvalidParameterValue:
                return False  # It is of the future: no trace of it outlived the database's crash.
            except (StoreUnreachable, psycopg.Error):
                pass
            time.sleep(0.05)
        raise translate(psycopg.OperationalError(str(lost.cause)), self.target, maybe_done=True) from lost.cause

    def _look_after(self, wire: PipelinedConnection) -> None:
        """What a server does in the background, for when there is none."""
        context = self._context
        if context.uncompacted_counters > UNFOLDED_MAX:
            self._fold(wire)
        if context.spooled > SPOOLED_MAX and self._draining.acquire(blocking=False):
            try:
                context.spooled = 0
                while self._outbox.step(wire, []):
                    pass
            finally:
                self._roll_back(wire)
                self._draining.release()

    def _fold(self, wire: PipelinedConnection) -> None:
        """Of the queues last used; a server's sweeper does it for all. One bounded step: a caller waits for it."""
        tx = PostgresTransaction(wire, self._context)
        try:
            tx.begin({}, durable=False)
            fold(tx, list(dict.fromkeys(self._context.ids.values())))
            forget_marks(tx)
            forget_settled(tx, FORGOTTEN_MAX)
            tx.commit()
        except BaseException:
            self._roll_back(wire)
            raise

    def prepare(self, commands: Sequence[Command[Any]]) -> PreparedBatch | None:
        """Always None: every statement is a wait for the database."""
        return None

    def ask(self, commands: Sequence[Command[Any]]) -> PendingReply | None:
        short = plan(self._context, commands)
        return None if short is None else self._short_way.ask(short, commands)

    def push_statement(self, command: Push) -> PushStatement:
        """A push in a transaction of the caller's own, for any driver; `pushed` reads its answer."""
        self._pool.check_open()
        return push_statement(self._context, command, durable=self.durability == "full")

    def pushed(self, command: Push, answer: str) -> list[PushReceipt]:
        return receipts(self._context, self.target, command, answer)

    def driver_error(self, error: Exception) -> Exception:
        """An error of any driver, on the caller's connection: as it is, unless the database is another one."""
        return other_database(self.target) if getattr(error, "sqlstate", None) in NO_PENSTOCK else error

    def push_on(self, connection: psycopg.Connection[Any], command: Push) -> list[PushReceipt]:
        """Push in the transaction of the caller's own connection."""
        if not isinstance(connection, psycopg.Connection):
            raise WrongType(
                f"conn is a PostgreSQL connection, not {type(connection).__name__}", field="conn", hint=POSTGRES_DRIVERS
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

    def peek(
        self, queue: str, *, state: State = State.READY, limit: int = 1, after: str | None = None
    ) -> tuple[list[StoredMessage], str | None]:
        return self._read(lambda reader: reader.peek(queue, state, limit, after))

    def dead_errors(
        self, queue: str, *, contains: str = "", limit: int = 1_000, after: str | None = None
    ) -> tuple[list[DeadError], str | None]:
        return self._read(lambda reader: reader.dead_errors(queue, contains, limit, after))

    def get(self, queue: str, message_id: int) -> StoredMessage | None:
        return self._read(lambda reader: reader.get(queue, message_id))

    def locate(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        return self._read(lambda reader: reader.locate(names))

    def held(self, queue: str, uuids: Sequence[str]) -> set[str]:
        return self._read(lambda reader: reader.held(queue, uuids))

    def find_queue(self, queue: str) -> QueueInfo | None:
        found = self._read(lambda reader: reader.find(queue))
        return None if found is None else found.info()

    def list_queues(self, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[QueueInfo]:
        return self._read(lambda reader: reader.list_queues(prefix, after, limit))

    def forwarders(self, target: str | None = None) -> list[str]:
        return self._read(lambda reader: reader.forwarders(target))

    def stats(self, queue: str) -> QueueStats:
        return self._read(lambda reader: reader.stats(queue))

    def write_obstacle(self) -> str | None:
        ((is_read_only,),) = self._read(lambda reader: reader.fetch("queries.is_read_only"))
        return "the database is read-only" if is_read_only else None

    def commits(self) -> int:
        return 0

    def ages(self, queues: Sequence[str]) -> dict[str, Ages]:
        return self._read(lambda reader: reader.ages(queues))

    def roll_ups(self, window: Window, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[RollUp]:
        return self._read(lambda reader: reader.roll_ups(window, prefix, after, limit))

    def latencies(
        self, window: Window, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> list[Latencies]:
        return self._read(lambda reader: reader.latencies(window, prefix, after, limit))

    def find_key(self, key_id: str) -> ApiKey | None:
        rows = self._read(lambda reader: reader.fetch("access.find_key", key_id))
        return api_key(rows[0]) if rows else None

    def list_stream_keys(self, stream: str) -> list[ApiKey]:
        return [api_key(row) for row in self._read(lambda reader: reader.fetch("access.list_stream_keys", stream))]

    def list_keys(self, queue: str) -> list[ApiKey]:
        return [api_key(row) for row in self._read(lambda reader: reader.fetch("access.list_keys", queue))]

    def find_secret(self, queue: str) -> str | None:
        rows = self._read(lambda reader: reader.fetch("access.secret", queue))
        return rows[0][0] if rows else None

    def workers(self, *, after: str | None = None, limit: int = 100) -> list[WorkerInfo]:
        return self._read(lambda reader: list_workers(reader, after, limit))

    def _read(self, look: Callable[[PostgresQueries], T]) -> T:
        """Look at one moment of the database; once more, if the connection turns out to be lost."""
        for last in (False, True):
            try:
                with self._pool.wire() as wire:
                    try:
                        return look(PostgresQueries(wire, self._context))
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
            "a PostgreSQL store is not copied to a file",
            hint=f"pg_dump --schema={self.target.schema} makes a copy as of one moment, while others go on working",
        )

    def compact(self) -> None:
        """Give the space of what is gone back for new messages; PostgreSQL does so by itself, a little later."""
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
        """Nothing to do: the write-ahead log is PostgreSQL's own affair."""

    def close(self) -> None:
        """Safe to call again."""
        self._notifier.close()
        self._pool.close()
