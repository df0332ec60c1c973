"""SQLite store: one writing connection per process, one transaction per batch of commands.

Read operations are in `reads.py`.
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
from penstock.errors import (
    InvariantBroken,
    PenstockError,
    StoreBusy,
    StoreError,
    StoreUnreachable,
)
from penstock.group_commit.interface import SingleLane
from penstock.store.request_dedup import RequestWindow
from penstock.store.sqlite.autocommit import AUTOCOMMIT, create_triggers
from penstock.store.sqlite.backup import backup
from penstock.store.sqlite.caller_transaction import joined
from penstock.store.sqlite.connection import (
    JOURNAL_WAL_PAGES,
    MEMORY,
    WAL_PAGES,
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
from penstock.store.sqlite.transaction import NotAsRemembered, SqliteTransaction

log = logging.getLogger("penstock.store")
Durability = Literal["full", "relaxed"]
BUSY_MS = 30_000
LOCKED_OUT = "another process holds the write lock of the file"
JOURNAL_BACKLOG_BYTES = 2 << 20
UNSYNCED_MAX = 1_000


class SqliteStore(ReadMixin, SingleLane):
    """Keeps queues in a SQLite file, which has one writer at a time."""

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
        """Open a store. `journal` turns the journal of the file on or off for all processes; None keeps it."""
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
                self._configure_journal()
            except BaseException:
                self._close_connections()
                raise

    def _make_locks(self) -> None:
        self._lock = threading.RLock()
        self._read_lock = self._lock if self.path == MEMORY else threading.RLock()
        self._fsync_failure = FsyncFailure(self.path)

    def _open_writer(self) -> None:
        """Open the writing connection under the lock, and again after each fork."""
        self._check_open()
        if self._writer_open:
            return
        writer = connect(self.path, busy_ms=self._busy_ms)
        try:
            with mapping_errors(self.path):
                self.store_id = retry_while_busy(lambda: migrate(writer, self._clock(), self._busy_ms), self._busy_ms)
                journals = has_journal(writer) if self._journal is None else self._journal
                self._wal_pages = JOURNAL_WAL_PAGES if journals else WAL_PAGES[self.durability]
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        create_triggers(writer)
        self._transaction = SqliteTransaction(writer, self.store_id, self._past_requests)
        self._version = -1
        self._synchronous: bool | None = None
        # True during a commit, which may take effect even if it returns an error.
        self._committing = False
        # Commits since the last fsync.
        self._unsynced = 0
        self._writer_open = True
        self._held = False
        self._is_locked_out = False
        self._openings += 1

    def _configure_journal(self) -> None:
        """Turn the journal on or off as requested."""
        with mapping_errors(self.path):
            had = has_journal(self._writer)
        wanted = had if self._journal is None else self._journal
        if wanted:
            self._skip_logged_offsets()
        if wanted != had:
            self._apply_held([SwitchJournal(on=wanted)])

    def _skip_logged_offsets(self) -> None:
        """Continue after the end of the log, in case an older copy of the file was restored.

        New events must not reuse offsets that the log already holds.
        """
        if self.path != MEMORY:
            from penstock.journal.drainer import log_end  # The drainer imports the store.

            end = log_end(self.path)
            # The log is read first: while other processes write and drain, it is never ahead of the file.
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
        if self._transaction.journal_bytes > JOURNAL_BACKLOG_BYTES:
            self._drain_journal()
        return outcomes

    def _drain_journal(self) -> None:
        """Drain the journal if no server does, so that the file does not grow."""
        from penstock.journal.drainer import drain_once  # The drainer imports the store.

        self._transaction.journal_bytes = 0
        try:
            if self.path == MEMORY:
                # A store in memory has no log to drain to.
                self._apply_held([ForgetJournal(before=self._transaction.next_offset)])
            else:
                drain_once(self, self.path)
        except PenstockError as error:
            # The caller's command is already committed, and the file keeps the events that were not drained.
            log.warning("cannot drain the journal of %s, its events stay in the file: %s", self.path, error)

    def _apply_held(self, commands: Sequence[Command[Any]]) -> list[Any]:
        with self._lock:
            if not self._writer_open:
                self._open_writer()
            try:
                if len(commands) == 1:
                    outcome = self._run_autocommit(commands[0])
                    if outcome is not None:
                        return [outcome]
                return self._apply(commands)
            except sqlite3.Error as error:
                raise self._translate(error) from error
            except StoreUnreachable:
                raise
            except Exception as error:
                # An unexpected error of one command must not fail the rest of the batch.
                if len(commands) == 1 and not isinstance(error, NotAsRemembered):
                    raise
            with self._mapping_errors():
                return [self._apply_alone(command) for command in commands]

    def _translate(self, error: sqlite3.Error) -> StoreError:
        self._fsync_failure.check_error(error)
        committing, self._committing = self._committing, False
        return translate(error, self.path, committing=committing)

    @contextmanager
    def _mapping_errors(self) -> Iterator[None]:
        """Map errors of statements that write."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def apply_now(self, command: Command[Any]) -> Any:
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._run_autocommit(command) if self._writer_open else None
        except sqlite3.Error as error:
            raise self._translate(error) from error
        finally:
            self._lock.release()

    def _run_autocommit(self, command: Command[Any]) -> Any:
        """Return the outcome, or None if this command needs a transaction."""
        tx = self._transaction
        handler = AUTOCOMMIT.get(type(command))
        if handler is None or not tx.is_writer or self._fsync_failure:
            return None
        durable = command.durable and self.durability == "full"
        self._set_durability(durable)
        tx.now = tx.journal.now = self._clock()
        try:
            self._committing = True
            outcome = handler(tx, command)
            self._committing = False
            if durable and outcome is not None:
                self._fsync_failure.check()
            return outcome
        except BaseException as error:
            # It may have been interrupted between the commit and the update of the cache.
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
            self._fsync_failure.check()

    def _run(self, commands: Sequence[Command[Any]], busy_ms: int) -> list[Any]:
        """Run a batch without its commit. The caller rolls back after an error."""
        tx = self._transaction
        self._begin(busy_ms, self._durable(commands))
        outcomes = execute_batch(tx, commands)
        tx.finish()
        return outcomes

    def _durable(self, commands: Sequence[Command[Any]]) -> bool:
        """Return True if the replies to this batch wait for the fsync."""
        if self.durability == "full":
            for command in commands:
                if command.durable:
                    return True
        return False

    def _roll_back(self) -> None:
        self._transaction.forget()
        self._transaction.forget_leases()
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def prepare(self, commands: Sequence[Command[Any]]) -> PreparedTransaction | None:
        """Run the statements of a batch and leave its commit to the caller.

        Returns None if that would block; use `apply` then. The store is locked until the batch is released.
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
            is_of_all = isinstance(error, StoreError) and not isinstance(error, InvariantBroken)
            if is_of_all or (len(commands) == 1 and not isinstance(error, NotAsRemembered)):
                raise
            return None
        self._held = True
        return PreparedTransaction(self, outcomes, self.path != MEMORY and self._durable(commands))

    def _begin(self, busy_ms: int, durable: bool) -> None:
        execute = self._writer.execute
        self._committing = False
        self._set_durability(durable)
        try:
            execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            self._is_locked_out = True
            try:
                retry_while_busy(lambda: execute("BEGIN IMMEDIATE"), busy_ms)
            finally:
                self._is_locked_out = False
        if self._fsync_failure:
            self._fsync_failure.recover()
        (version,) = execute("PRAGMA data_version").fetchone()
        if version != self._version:
            # Another connection has written since this one last did.
            self._transaction.forget()
            self._version = version
        self._transaction.start(self._clock())

    def _set_durability(self, durable: bool) -> None:
        """Set whether the next commit is fsynced. Once in a while it is in any case, so that the log cannot grow."""
        if not durable and self.durability == "full":
            self._unsynced += 1
            durable = self._unsynced > UNSYNCED_MAX
        if durable:
            self._unsynced = 0
        if durable is not self._synchronous:
            # A checkpoint fsyncs the log first and would not report a failure, so only commits that have just fsynced
            # it run one.
            pages = self._wal_pages if durable or self.durability != "full" else 0
            self._writer.execute("PRAGMA synchronous = " + ("FULL" if durable else "NORMAL"))
            self._writer.execute(f"PRAGMA wal_autocheckpoint = {pages}").fetchall()
            self._synchronous = durable

    def push_on(self, connection: sqlite3.Connection, command: Push) -> list[PushReceipt]:
        """Push in the transaction of the caller's connection to this file."""
        pushed: PushOutcome = self.apply_on(connection, [command])[0]
        return pushed.receipts

    def apply_on(self, connection: sqlite3.Connection, commands: Sequence[Command[Any]]) -> list[Any]:
        """Execute commands in the transaction of the caller's connection to this file."""
        self._check_open()
        with joined(connection, self.path):
            tx = SqliteTransaction(connection, self.store_id, self._past_requests)
            tx.start(self._clock())
            outcomes = [execute(tx, command) for command in commands]
            tx.finish()
            self._transaction.journal_bytes += tx.journal_bytes
            return outcomes

    def write_obstacle(self) -> str | None:
        if self.path == MEMORY:
            return None
        [free] = map(self._lock.acquire, [False])
        if not free:
            # This store is running a batch, so it can write, unless that batch waits for the file lock.
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
        # The writing connection cannot be used while it waits for the lock.
        with self._read_lock, mapping_errors(self.path):
            self._open_reader()
            (version,) = self._reader.execute("PRAGMA data_version").fetchone()
        return int(version)

    def listen(self, listener: Callable[[], None]) -> None:
        """Return None always: a file sends no notifications."""

    def version(self, topic: str | None = None) -> int:
        # The number does not change with commits of the writing connection, which this process knows about. A batch
        # read it when it began; reading it again during its commit would wait for the disk.
        if self._held:
            return self._openings << 32 | self._version
        # Acquired inside `map`: an interrupt after a plain call could leave the lock held forever.
        [free] = map(self._lock.acquire, [False])
        if not free:
            return self._openings << 32 | self._version
        try:
            with mapping_errors(self.path):
                self._open_writer()
                row = retry_while_busy(lambda: self._writer.execute("PRAGMA data_version").fetchone(), self._busy_ms)
                # Each connection has its own numbers.
                return self._openings << 32 | int(row[0])
        finally:
            self._lock.release()

    @property
    def journal_waits(self) -> bool:
        return bool(self._transaction.journal)

    def sync(self) -> None:
        self._fsync_failure.sync()

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
        """Checkpoint and truncate the write-ahead log, as far as readers allow."""
        if self.path != MEMORY:
            self._check_open()
            with (
                self._lock,
                closing(connect(self.path, busy_ms=self._busy_ms)) as connection,
                self._mapping_errors(),
            ):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Drain the journal and close the connections. Safe to call again."""
        try:
            if not self._closed and (self.journal_waits or self._transaction.journal_bytes):
                self._drain_journal()
        finally:
            with self._lock, self._read_lock:
                self._closed = True
                self._close_connections()


class PreparedTransaction:
    """A batch whose statements have run. Call `commit` on any thread, and `release` on the one that prepared it."""

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
