"""The SQLite store: one writing connection a process, one for reading, one transaction for each batch of commands."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from penstock.commands import (
    Ack,
    CatchUp,
    Command,
    Configure,
    Drop,
    Extend,
    Lease,
    Nack,
    Pause,
    Purge,
    Push,
    Redrive,
    Release,
    Remove,
    Settled,
    SettledAll,
    Sweep,
    Take,
    Transact,
    Transacted,
)
from penstock.errors import LeaseLost, PenstockError, StoreClosed, UnknownMessage
from penstock.model import Clock, Message, QueueInfo, QueueStats, State, system_clock
from penstock.store.protocol import Progress
from penstock.store.sqlite.admin import purge, redrive, remove, sweep
from penstock.store.sqlite.backup import backup
from penstock.store.sqlite.checkpoint import Checkpointer
from penstock.store.sqlite.configure import configure, drop, pause
from penstock.store.sqlite.connection import MEMORY, connect, patiently, translated
from penstock.store.sqlite.lease import catch_up, lease, take
from penstock.store.sqlite.push import push
from penstock.store.sqlite.read import Reader
from penstock.store.sqlite.schema import migrate
from penstock.store.sqlite.settle import ack, extend, nack, release
from penstock.store.sqlite.transaction import Transaction

T = TypeVar("T")
Durability = Literal["full", "relaxed"]
BUSY_MS = 30_000

_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_inherited: list[object] = []
"""Connections that a child process got by fork: SQLite forbids to use them there, or even to close them."""


class SqliteStore:
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = system_clock,
        durability: Durability = "full",
        busy_ms: int = BUSY_MS,
    ) -> None:
        self.path = os.fspath(path)
        self.durability: Durability = durability
        self._clock = clock
        self._busy_ms = busy_ms
        self._closed = False
        self._open()
        _stores.add(self)

    def _open(self) -> None:
        self._lock = threading.RLock()
        self._read_lock = threading.RLock()
        self._writer = connect(self.path, busy_ms=self._busy_ms)
        try:
            with translated(self.path):
                self.salt = migrate(self._writer, self._clock(), self._busy_ms)
        except BaseException:
            self._writer.close()
            raise
        if self.path == MEMORY:
            self._reader, self._read_lock = self._writer, self._lock
        else:
            self._reader = connect(self.path, busy_ms=self._busy_ms)
        self._transaction = Transaction(self._writer, self.salt, carry_out)
        self._version = -1
        self._synchronous = ""
        self._checkpointer = Checkpointer(self.path, self._writer, self._lock, self._busy_ms)

    def _after_fork(self) -> None:
        if not self._closed:
            _inherited.extend((self._writer, self._reader, self._transaction, self._checkpointer))
            self._open()

    def apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        with self._lock, translated(self.path):
            self._check_open()
            try:
                return self._apply(commands)
            except sqlite3.Error:
                raise
            except Exception:
                # Something no command foresees. Alone, it fails by itself; together, it must not take others with it.
                if len(commands) == 1:
                    raise
            return [self._apply_alone(command) for command in commands]

    def _apply_alone(self, command: Command[Any]) -> Any:
        try:
            return self._apply([command])[0]
        except sqlite3.Error:
            raise
        except Exception as error:
            return error

    def _apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        tx = self._transaction
        self._begin(durable=any(command.durable for command in commands))
        try:
            outcomes = []
            for command in commands:
                try:
                    outcomes.append(carry_out(tx, command))
                except PenstockError as error:
                    outcomes.append(error)
            tx.write_counters()
            self._writer.execute("COMMIT")
        except BaseException:
            tx.forget()
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise
        self._checkpointer.committed(commands)
        return outcomes

    def _begin(self, *, durable: bool) -> None:
        synchronous = "FULL" if durable and self.durability == "full" else "NORMAL"
        if synchronous != self._synchronous:
            self._writer.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        patiently(lambda: self._writer.execute("BEGIN IMMEDIATE"), self._busy_ms)
        (version,) = self._writer.execute("PRAGMA data_version").fetchone()
        self._transaction.begin(self._clock(), fresh=version == self._version)
        self._version = version

    def apply_on(self, connection: sqlite3.Connection, commands: Sequence[Command[Any]]) -> list[Any]:
        """Carry out commands inside a transaction of the caller's own, on the caller's own connection to this file."""
        with translated(self.path):
            tx = Transaction(connection, self.salt, carry_out)
            tx.begin(self._clock(), fresh=False)
            outcomes = [carry_out(tx, command) for command in commands]
            tx.write_counters()
            return outcomes

    def version(self) -> int:
        with self._reading(snapshot=False) as reader:
            return int(reader.execute("PRAGMA data_version").fetchone()[0])

    def peek(
        self, queue: str, *, state: State = State.READY, limit: int = 1, after: str | None = None
    ) -> tuple[list[Message], str | None]:
        return self._read(lambda reader: reader.peek(queue, state, limit, after))

    def get(self, queue: str, message_id: int) -> Message | None:
        return self._read(lambda reader: reader.get(queue, message_id))

    def find_queue(self, queue: str) -> QueueInfo | None:
        found = self._read(lambda reader: reader.find(queue))
        return None if found is None else found.info()

    def list_queues(self, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[QueueInfo]:
        return self._read(lambda reader: reader.list_queues(prefix, after, limit))

    def stats(self, queue: str) -> QueueStats:
        return self._read(lambda reader: reader.stats(queue))

    def _read(self, look: Callable[[Reader], T]) -> T:
        with self._reading() as connection:
            return look(Reader(connection, self.salt, self._clock()))

    @contextmanager
    def _reading(self, *, snapshot: bool = True) -> Iterator[sqlite3.Connection]:
        """The reading connection; with `snapshot`, all reads see one moment."""
        with self._read_lock, translated(self.path):
            self._check_open()
            if snapshot:
                patiently(lambda: self._reader.execute("BEGIN"), self._busy_ms)
            try:
                yield self._reader
            finally:
                if snapshot:
                    self._reader.execute("ROLLBACK")

    def export(self, queue: str) -> Iterator[Message]:
        if self.path == MEMORY:
            yield from self._read(lambda reader: list(reader.export(queue)))
            return
        self._check_open()
        with closing(connect(self.path, busy_ms=self._busy_ms)) as connection, translated(self.path):
            connection.execute("BEGIN")
            yield from Reader(connection, self.salt, self._clock()).export(queue)

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        self._check_open()
        backup(self.path, self._reader if self.path == MEMORY else None, Path(target), self._busy_ms, progress)

    def compact(self) -> None:
        with self._lock, translated(self.path):
            self._check_open()
            patiently(lambda: self._writer.execute("VACUUM"), self._busy_ms)
            self._writer.execute("PRAGMA optimize")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Safe to call again."""
        with self._lock, self._read_lock:
            if not self._closed:
                self._closed = True
                self._checkpointer.stop()
                self._reader.close()
                self._writer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the queue on {self.path} has been closed")


def carry_out(tx: Transaction, command: Command[Any]) -> Any:
    return HANDLERS[type(command)](tx, command)


def transact(tx: Transaction, command: Transact) -> Transacted:
    tx.write_counters()
    tx.execute("SAVEPOINT transact")
    try:
        outcomes = [carry_out(tx, each) for each in command.commands]
        for each, outcome in zip(command.commands, outcomes, strict=True):
            if isinstance(outcome, SettledAll):
                _require_settled(each, outcome)
    except PenstockError:
        tx.execute("ROLLBACK TO transact")
        tx.execute("RELEASE transact")
        tx.forget()
        raise
    tx.write_counters()
    tx.execute("RELEASE transact")
    return Transacted(outcomes)


def _require_settled(command: Any, outcome: SettledAll) -> None:
    for item, result in zip(command.items, outcome.results, strict=True):
        if result is Settled.STALE:
            raise LeaseLost(item.id)
        if result is Settled.UNKNOWN:
            raise UnknownMessage(command.queue, item.id)


HANDLERS: dict[type[Command[Any]], Callable[[Transaction, Any], Any]] = {
    Push: push,
    Lease: lease,
    Take: take,
    CatchUp: catch_up,
    Ack: ack,
    Nack: nack,
    Extend: extend,
    Release: release,
    Remove: remove,
    Purge: purge,
    Redrive: redrive,
    Sweep: sweep,
    Configure: configure,
    Pause: pause,
    Drop: drop,
    Transact: transact,
}


def _reopen_in_child() -> None:
    for store in _stores:
        store._after_fork()


os.register_at_fork(after_in_child=_reopen_in_child)
