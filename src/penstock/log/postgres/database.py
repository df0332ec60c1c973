"""Database access of streams: a small pool, one round trip per call, and a retry after a lost connection."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from penstock.core import fork_safety
from penstock.core.model import Clock, system_clock
from penstock.errors import StoreUnreachable
from penstock.log.postgres.listener import Listeners
from penstock.postgres.connection import DatabaseTarget, Pool, connect, is_lost, translate
from penstock.postgres.context import STREAM_LOCK, DatabaseContext
from penstock.postgres.notifier import Notifier
from penstock.postgres.pipeline import PipelinedConnection, Rows, Statement
from penstock.postgres.schema import migrate

COME_BACK_SECONDS = 10.0


class Lost(Exception):
    """The connection was lost before the result arrived, so the statements may have been executed."""


class Database:
    def __init__(
        self,
        target: DatabaseTarget,
        *,
        clock: Clock | None,
        relaxed: bool,
        busy_ms: int,
        connections: int,
        listens: bool = True,
    ) -> None:
        """Open the pool; a reader that does not wait need not listen, which takes a connection and a thread."""
        self.target = target
        self._relaxed = relaxed
        self._busy_ms = busy_ms
        first = self._connect()
        try:
            store_id = migrate(first, target.schema)
        except psycopg.Error as error:
            raise translate(error, target) from error
        finally:
            first.close()
        self.context = DatabaseContext(target.schema, store_id, clock)
        self._pool = Pool(self._open_wire, connections, target.shown)
        self.listeners = Listeners(self)
        self._notifier = Notifier(self._connect, f"penstock.{target.schema}.streams", self.listeners.check_for_appends)
        if listens:
            self._notifier.start()
        fork_safety.register_reset(self)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return connect(self.target, busy_ms=self._busy_ms, relaxed=self._relaxed)

    def _open_wire(self) -> PipelinedConnection:
        return PipelinedConnection(self._connect(), answer_ms=self.target.answer_ms + self._busy_ms)

    def after_fork_in_child(self) -> None:
        self.listeners.start_over()
        self._pool.start_over()
        self._notifier.start_over()

    def clock(self) -> int:
        """Return the database's time, estimated from the last append."""
        clock = self.context.clock
        return system_clock() + self.context.ahead_ms if clock is None else clock()

    def learn_time(self, sent_ms: int, told_ms: int) -> None:
        """Update the bounds of the clock offset from the database's time between sending and now."""
        least, most = told_ms - system_clock(), told_ms - sent_ms
        self.context.ahead_ms = min(max(self.context.ahead_ms, least), most)

    def lock_key(self, stream_id: int) -> int:
        return self.context.lock_key(STREAM_LOCK, stream_id)

    def statement(self, name: str, *params: Any) -> Statement:
        return Statement(self.context.sql[name], params)

    def ask(self, name: str, *params: Any) -> Rows:
        return self.transact([self.statement(name, *params)])[0]

    def transact(self, statements: Sequence[Statement]) -> list[Rows]:
        """Run idempotent statements in one transaction; repeat it if the connection was lost."""
        try:
            return self.transact_once(statements)
        except Lost:
            try:
                return self.transact_once(statements)
            except Lost as error:
                raise self.unreachable(error, maybe_done=True) from error

    def transact_once(self, statements: Sequence[Statement]) -> list[Rows]:
        """Run a whole transaction in one round trip."""
        sql, clock = self.context.sql, self.context.clock
        start = [Statement(sql["begin.begin"])]
        if clock is not None:
            start.append(Statement(sql["begin.move_clock"], (clock(),)))
        with self.wire() as wire:
            answers = wire.run([*start, *statements, Statement(sql["begin.commit"])])
        return answers[len(start) : -1]

    @contextmanager
    def wire(self) -> Generator[PipelinedConnection, None, None]:
        """Borrow a connection; an open transaction on it is rolled back."""
        wire = self._pool.acquire()
        try:
            yield wire
        except psycopg.Error as error:
            if is_lost(error) or wire.broken:
                self._pool.drop_idle()
                raise Lost(str(error)) from error
            raise translate(error, self.target) from error
        finally:
            with suppress(psycopg.Error):
                if not wire.broken and wire.in_transaction:
                    wire.run([Statement(self.context.sql["begin.rollback"])])
            self._pool.release(wire)

    def ask_patiently(self, statements: Sequence[Statement]) -> list[Rows]:
        """Run a transaction, retrying while the database is unavailable."""
        deadline = time.monotonic() + COME_BACK_SECONDS
        while True:
            try:
                return self.transact_once(statements)
            except (Lost, StoreUnreachable) as error:
                if time.monotonic() >= deadline:
                    raise self.unreachable(error, maybe_done=True) from error
                time.sleep(0.05)

    def unreachable(self, error: Exception, *, maybe_done: bool) -> Exception:
        return translate(psycopg.OperationalError(str(error)), self.target, maybe_done=maybe_done)

    def word(self) -> list[Statement]:
        """Return the NOTIFY that goes with a commit, or nothing shortly after one: then call `notify_later`."""
        if not self._notifier.may_send_now():
            return []
        return [self.statement("begin.notify", self._notifier.channel, self._notifier.sender)]

    def notify_later(self) -> None:
        self._notifier.notify_later()

    def listen(self) -> None:
        """Reopen in a forked child."""
        self._pool.check_open()
        self._notifier.start()

    def close(self) -> None:
        self._notifier.close()
        self._pool.close()
