"""The SQLite store: one writing connection a process, one transaction for each batch of commands.

What only looks at the file is in `looks.py`.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from penstock.core import fork_safety
from penstock.core.commands import Command, ForgetJournal, Push, PushOutcome, SwitchJournal
from penstock.core.model import Clock, Progress, PushReceipt, system_clock
from penstock.errors import InvalidInput, PenstockError, StoreBusy, StoreError, StoreUnreachable, WrongType
from penstock.group_commit.interface import SingleLane
from penstock.store.request_dedup import RequestWindow
from penstock.store.sqlite.autocommit import ALONE, Alone, prepare_acks
from penstock.store.sqlite.backup import backup
from penstock.store.sqlite.connection import (
    JOURNAL_WAL_PAGES,
    MEMORY,
    WAL_PAGES,
    as_we_read,
    commits_itself,
    connect,
    full_path,
    is_busy,
    mapping_errors,
    retry_while_busy,
    translate,
)
from penstock.store.sqlite.dispatch import execute, execute_batch
from penstock.store.sqlite.fsync_recovery import FsyncFailure
from penstock.store.sqlite.reads import ReadMixin
from penstock.store.sqlite.schema import has_journal, migrate
from penstock.store.sqlite.settle import NotAsRemembered
from penstock.store.sqlite.transaction import SqliteTransaction

log = logging.getLogger("penstock.store")
Durability = Literal["full", "relaxed"]
BUSY_MS = 30_000
LOCKED_OUT = "another process holds the write lock of the file"
JOURNAL_BACKLOG_BYTES = 2 << 20
UNSYNCED_MAX = 1_000
SQLITE_DRIVERS = "of sqlite3 or aiosqlite, or SQLAlchemy's or Django's over one of them"
TAKE_WRITE_LOCK = "UPDATE penstock_counter SET last_id = last_id WHERE queue_id = 0"


class SqliteStore(ReadMixin, SingleLane):
    """A file has one writer at a time."""

    durability_warnings: Sequence[str] = ()

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = system_clock,
        monotonic: Callable[[], float] = time.monotonic,
        durability: Durability = "full",
        busy_ms: int = BUSY_MS,
        journal: bool | None = None,
    ) -> None:
        """With `journal` the file gets or loses its journal, for all who share it; None leaves that as it is."""
        self.path = full_path(path)
        self.durability: Durability = durability
        self.commit_is_instant = durability == "relaxed"
        self._clock = clock
        self._past_requests = RequestWindow(monotonic)
        self._busy_ms = busy_ms
        self._journal = journal
        self._closed = self._writer_open = self._reader_open = False
        self._openings = 0
        self._make_locks()
        fork_safety.register(self)
        with self._lock, self._read_lock:
            self._open_writer()
            try:
                self._open_reader()
                self._go_on_with_journal()
            except BaseException:
                self._close_connections()
                raise

    def _make_locks(self) -> None:
        self._lock = threading.RLock()
        self._read_lock = self._lock if self.path == MEMORY else threading.RLock()
        self._doubt = FsyncFailure(self.path)

    def _open_writer(self) -> None:
        """Under the lock, and again after each fork."""
        self._check_open()
        if self._writer_open:
            return
        writer = connect(self.path, busy_ms=self._busy_ms)
        try:
            with mapping_errors(self.path):
                self.salt = retry_while_busy(lambda: migrate(writer, self._clock(), self._busy_ms), self._busy_ms)
                journals = has_journal(writer) if self._journal is None else self._journal
                self._wal_pages = JOURNAL_WAL_PAGES if journals else WAL_PAGES[self.durability]
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        prepare_acks(writer)
        self._transaction = SqliteTransaction(writer, self.salt, self._past_requests)
        self._version = -1
        self._synchronous: bool | None = None
        # Whether an error comes from a commit, which may have been written all the same.
        self._committing = False
        # Commits since the last that waited for the disk.
        self._unsynced = 0
        self._writer_open = True
        self._held = False
        self._is_locked_out = False
        self._openings += 1

    def _go_on_with_journal(self) -> None:
        """With one or without, as was wished."""
        with mapping_errors(self.path):
            had = has_journal(self._writer)
        wanted = had if self._journal is None else self._journal
        if wanted:
            self._go_on_after_log()
        if wanted != had:
            self._apply_held([SwitchJournal(on=wanted)])

    def _go_on_after_log(self) -> None:
        """An older state of the file may have been put back: what happens from now on comes after all that its log has,
        and must not be given an offset before that is known.
        """
        if self.path != MEMORY:
            from penstock.journal.drainer import log_end  # It needs the store.

            end = log_end(self.path)
            # The log is looked at first: while others write and drain, it is never ahead.
            if end > self.journal_bounds()[1]:
                self._apply_held([ForgetJournal(before=end)])

    def before_fork(self) -> None:
        self._lock.acquire()
        self._read_lock.acquire()
        if self.path != MEMORY:
            self._close_connections()

    def after_fork_in_parent(self) -> None:
        self._read_lock.release()
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._make_locks()

    def _close_connections(self) -> None:
        if self._reader_open:
            self._reader.close()
        if self._writer_open:
            self._writer.close()
        self._writer_open = self._reader_open = False

    @property
    def clock(self) -> Clock:
        return self._clock

    def apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        outcomes = self._apply_held(commands)
        if self._transaction.noted_bytes > JOURNAL_BACKLOG_BYTES:
            self._relieve()
        return outcomes

    def _relieve(self) -> None:
        """The file must not grow because nobody drains its journal. Whoever is not drained by a server does it here."""
        from penstock.journal.drainer import drain_once  # It needs the store.

        self._transaction.noted_bytes = 0
        try:
            if self.path == MEMORY:
                # There is nowhere to keep it.
                self._apply_held([ForgetJournal(before=self._transaction.next_offset)])
            else:
                drain_once(self, self.path)
        except PenstockError as error:
            # No matter of whoever asked for what is done already; and the file keeps what was not copied.
            log.warning("the journal of %s could not be copied, and waits in the file: %s", self.path, error)

    def _apply_held(self, commands: Sequence[Command[Any]]) -> list[Any]:
        with self._lock:
            if not self._writer_open:
                self._open_writer()
            try:
                if (
                    len(commands) == 1
                    and self._transaction.is_writer
                    and not self._doubt
                    and (alone := ALONE.get(type(commands[0])))
                ):
                    outcome = self._carry_out_alone(alone, commands[0])
                    if outcome is not None:
                        return [outcome]
                return self._apply(commands)
            except sqlite3.Error as error:
                raise self._translate(error) from error
            except StoreUnreachable:
                raise
            except Exception as error:
                # Something no command foresees. Alone, it fails by itself; together, it must not take others with it.
                if len(commands) == 1 and not isinstance(error, NotAsRemembered):
                    raise
            with self._mapping_errors():
                return [self._apply_alone(command) for command in commands]

    def _translate(self, error: sqlite3.Error) -> StoreError:
        self._doubt.learn(error)
        committing, self._committing = self._committing, False
        return translate(error, self.path, committing=committing)

    @contextmanager
    def _mapping_errors(self) -> Iterator[None]:
        """For what writes."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _carry_out_alone(self, alone: Alone, command: Command[Any]) -> Any:
        """The outcome, or None where this command needs a transaction."""
        tx = self._transaction
        durable = command.durable and self.durability == "full"
        self._wait_for_disk(durable)
        tx.now = tx.journal.now = self._clock()
        try:
            self._committing = True
            outcome = alone(tx, command)
            self._committing = False
            if durable and outcome is not None:
                self._doubt.check()
            return outcome
        except BaseException as error:
            # It may have been interrupted between the commit and what is remembered of it.
            tx.forget()
            if isinstance(error, sqlite3.IntegrityError) or (
                isinstance(error, sqlite3.OperationalError) and is_busy(error)
            ):
                return None
            raise

    def _apply_alone(self, command: Command[Any]) -> Any:
        try:
            return self._apply([command])[0]
        except sqlite3.Error:
            raise
        except Exception as error:
            return error

    def _apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        try:
            outcomes = self._run(commands, self._busy_ms)
            self._commit(durable=self._durable(commands))
        except BaseException:
            self._roll_back()
            raise
        return outcomes

    def _commit(self, *, durable: bool) -> None:
        self._committing = True
        self._writer.execute("COMMIT")
        self._committing = False
        if durable:
            self._doubt.check()

    def _run(self, commands: Sequence[Command[Any]], busy_ms: int) -> list[Any]:
        """Everything of a batch but its commit. Whoever calls rolls back what fails."""
        tx = self._transaction
        self._begin(busy_ms, self._durable(commands))
        outcomes = execute_batch(tx, commands)
        tx.finish()
        return outcomes

    def _durable(self, commands: Sequence[Command[Any]]) -> bool:
        """Whether this batch's answers wait for the disk."""
        if self.durability == "full":
            for command in commands:
                if command.durable:
                    return True
        return False

    def _roll_back(self) -> None:
        self._transaction.forget()
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def prepare(self, commands: Sequence[Command[Any]]) -> PreparedTransaction | None:
        """Run a batch's statements here and now, and leave its commit to the caller.

        None when that cannot be done without waiting; `apply` waits. Until the batch is finished the store is held.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            with self._mapping_errors():
                self._open_writer()
                try:
                    outcomes = self._run(commands, 0)
                except BaseException:
                    self._roll_back()
                    raise
        except StoreBusy:
            self._lock.release()
            return None
        except BaseException as error:
            self._lock.release()
            if isinstance(error, StoreError) or (len(commands) == 1 and not isinstance(error, NotAsRemembered)):
                raise
            return None
        self._held = True
        return PreparedTransaction(self, outcomes, self.path != MEMORY and self._durable(commands))

    def _begin(self, busy_ms: int, durable: bool) -> None:
        execute = self._writer.execute
        self._committing = False
        self._wait_for_disk(durable)
        try:
            execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            self._is_locked_out = True
            try:
                retry_while_busy(lambda: execute("BEGIN IMMEDIATE"), busy_ms)
            finally:
                self._is_locked_out = False
        if self._doubt:
            self._doubt.end()
        (version,) = execute("PRAGMA data_version").fetchone()
        if version != self._version:
            # Somebody else has written since this connection last did.
            self._transaction.forget()
            self._version = version
        self._transaction.start(self._clock())

    def _wait_for_disk(self, durable: bool) -> None:
        """Whether the commit that follows does. Now and then it does in any case, so that the log cannot grow."""
        if not durable and self.durability == "full":
            self._unsynced += 1
            durable = self._unsynced > UNSYNCED_MAX
        if durable:
            self._unsynced = 0
        if durable is not self._synchronous:
            # A commit that copies the log syncs it first, and would not tell if that failed: only one that has just
            # synced it does.
            pages = self._wal_pages if durable or self.durability != "full" else 0
            self._writer.execute("PRAGMA synchronous = " + ("FULL" if durable else "NORMAL"))
            self._writer.execute(f"PRAGMA wal_autocheckpoint = {pages}").fetchall()
            self._synchronous = durable

    def push_on(self, connection: sqlite3.Connection, command: Push) -> list[PushReceipt]:
        """Push in the transaction of the caller's own connection to this file."""
        pushed: PushOutcome = self.apply_on(connection, [command])[0]
        return pushed.receipts

    def apply_on(self, connection: sqlite3.Connection, commands: Sequence[Command[Any]]) -> list[Any]:
        """Carry out commands inside a transaction of the caller's own, on the caller's own connection to this file."""
        self._check_open()
        if not isinstance(connection, sqlite3.Connection):
            raise WrongType(
                f"conn is a SQLite connection, not {type(connection).__name__}", field="conn", hint=SQLITE_DRIVERS
            )
        with mapping_errors(self.path), as_we_read(connection):
            self._check_same_file(connection)
            alone = not connection.in_transaction
            # What is read here must still hold when it is written: take the write lock first.
            connection.execute("BEGIN IMMEDIATE" if alone else TAKE_WRITE_LOCK)
            connection.execute("SAVEPOINT penstock")
            try:
                tx = SqliteTransaction(connection, self.salt, self._past_requests)
                tx.start(self._clock())
                outcomes = [execute(tx, command) for command in commands]
                tx.finish()
                self._transaction.noted_bytes += tx.noted_bytes
                connection.execute("RELEASE penstock")
                if alone and commits_itself(connection):
                    with mapping_errors(self.path, committing=True):
                        connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    for undo in ("ROLLBACK",) if alone else ("ROLLBACK TO penstock", "RELEASE penstock"):
                        connection.execute(undo)
                raise
            return outcomes

    def _check_same_file(self, connection: sqlite3.Connection) -> None:
        (file,) = [row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main"]
        if not file or not Path(file).samefile(self.path):
            raise InvalidInput(
                f"conn is open on {file or 'a database in memory'}, not on {self.path}",
                field="conn",
                hint="open it with sqlite3.connect on the queue's own file",
            )

    def write_obstacle(self) -> str | None:
        if self.path == MEMORY:
            return None
        [free] = map(self._lock.acquire, [False])
        if not free:
            # This store is at work on a batch: it writes, unless that batch waits for the file.
            return LOCKED_OUT if self._is_locked_out else None
        try:
            with mapping_errors(self.path):
                self._open_writer()
                if not self._writer.in_transaction:
                    self._writer.execute("BEGIN IMMEDIATE")
                    self._writer.execute("ROLLBACK")
        except StoreBusy:
            return LOCKED_OUT
        except StoreError as error:
            return str(error)
        finally:
            self._lock.release()
        return None

    def commits(self) -> int:
        # The writer's connection cannot be asked while it waits for the lock.
        with self._read_lock, mapping_errors(self.path):
            self._open_reader()
            (version,) = self._reader.execute("PRAGMA data_version").fetchone()
        return int(version)

    def listen(self, listener: Callable[[], None]) -> None:
        """Always None: a file does not say that it was written to."""

    def version(self, topic: str | None = None) -> int:
        # The writer's own commits do not count for it: those who make them know whom they concern.
        # A batch on its way to the disk looked when it began; to ask its connection would be to wait for it.
        if self._held:
            return self._openings << 32 | self._version
        # Not by a plain call: an interrupt may come right after one, and leave it locked for ever.
        [free] = map(self._lock.acquire, [False])
        if not free:
            return self._openings << 32 | self._version
        try:
            with mapping_errors(self.path):
                self._open_writer()
                row = retry_while_busy(lambda: self._writer.execute("PRAGMA data_version").fetchone(), self._busy_ms)
                # Each connection counts for itself.
                return self._openings << 32 | int(row[0])
        finally:
            self._lock.release()

    @property
    def journal_waits(self) -> bool:
        return bool(self._transaction.journal)

    def sync(self) -> None:
        self._doubt.sync()

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        self._check_open()
        backup(self.path, self._reader if self.path == MEMORY else None, Path(target), self._busy_ms, progress)

    def compact(self) -> None:
        with self._lock, self._mapping_errors():
            self._open_writer()
            retry_while_busy(lambda: self._writer.execute("VACUUM"), self._busy_ms)
            self._writer.execute("PRAGMA optimize")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def shorten_log(self) -> None:
        """Copy the write-ahead log into the database and cut it, as far as readers allow."""
        if self.path != MEMORY:
            self._check_open()
            with (
                self._lock,
                closing(connect(self.path, busy_ms=self._busy_ms)) as connection,
                self._mapping_errors(),
            ):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Safe to call again."""
        try:
            if not self._closed and (self.journal_waits or self._transaction.noted_bytes):
                self._relieve()
        finally:
            with self._lock, self._read_lock:
                self._closed = True
                self._close_connections()


class PreparedTransaction:
    """A batch whose statements have run. `commit` may be called on any thread, `release` on the one that prepared."""

    __slots__ = ("_store", "outcomes", "waits_for_disk")

    def __init__(self, store: SqliteStore, outcomes: list[Any], waits_for_disk: bool) -> None:
        self._store = store
        self.outcomes = outcomes
        self.waits_for_disk = waits_for_disk

    def commit(self) -> None:
        store = self._store
        with store._mapping_errors():
            try:
                store._commit(durable=self.waits_for_disk)
            except BaseException:
                store._roll_back()
                raise

    def release(self) -> None:
        self._store._held = False
        self._store._lock.release()
