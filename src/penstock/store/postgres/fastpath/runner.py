"""Runs batches on the fast path, blocking or on an event loop, and recovers their outcomes after a lost reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg

from penstock.core.commands import Command
from penstock.errors import StoreError, StoreUnreachable
from penstock.postgres.connection import MAYBE, OUTCOME_SECONDS, DatabaseTarget, Pool, is_lost, translate
from penstock.postgres.notifier import Notifier
from penstock.postgres.pipeline import PipelinedConnection, Statement
from penstock.store.postgres.context import StoreContext
from penstock.store.postgres.fastpath.calls import FastBatch

RETRIED = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure, psycopg.errors.UniqueViolation)
RETRY_SECONDS = 0.05
# Counter rows after which a store compacts them itself, if no sweeper does.
UNCOMPACTED_MAX = 2_000
Commands = Sequence[Command[Any]]


class FastPath:
    def __init__(
        self,
        context: StoreContext,
        pool: Pool,
        notifier: Notifier,
        target: DatabaseTarget,
        run_transaction: Callable[[Commands], list[Any]],
        maintain: Callable[[PipelinedConnection], None],
    ) -> None:
        """Take `run_transaction` for commands that the fast path cannot finish."""
        self.context = context
        self.pool = pool
        self._notifier = notifier
        self.target = target
        self._run_transaction = run_transaction
        self._maintain = maintain

    def execute(self, batch: FastBatch, commands: Commands) -> list[Any]:
        return self.finish(batch, commands, self.notify_statements(batch), None, sent=False)

    def begin_async(self, batch: FastBatch, commands: Commands) -> PendingBatch | None:
        """Send a batch without waiting; None if no working connection is idle."""
        wire = self.pool.acquire_idle()
        if wire is None:
            return None
        try:
            wire.check()
        except psycopg.Error:
            self.pool.release(wire)
            return None
        return PendingBatch(self, wire, batch, commands)

    def notify_statements(self, batch: FastBatch) -> list[Statement]:
        """Return the notifications to send with the commit; none if the last was just sent, and one follows later."""
        if not batch.wakes or not self._notifier.may_send_now():
            return []
        payloads = self._notifier.payloads(batch.wakes)
        return [Statement(self.context.sql["begin.notify"], (self._notifier.channel, text)) for text in payloads]

    def finish(
        self, batch: FastBatch, commands: Commands, notify: list[Statement], error: Exception | None, *, sent: bool
    ) -> list[Any]:
        """Return the outcomes of a batch that was not sent yet, was answered in part, or failed with an error."""
        try:
            if error is not None and not is_lost(error):
                raise error
            if error is not None or not sent:
                self._run(batch, notify, sent=sent)
            elif self.context.uncompacted_counters > UNCOMPACTED_MAX:
                with suppress(psycopg.Error, StoreError), self.pool.wire() as wire:
                    self._maintain(wire)
        except RETRIED:
            return self._run_transaction(commands)
        self.notify_later(batch, notify)
        return batch.outcomes(self._run_transaction)

    def notify_later(self, batch: FastBatch, notify: list[Statement]) -> None:
        """Send a notification later if none was sent with the commit."""
        if batch.wakes and not notify:
            self._notifier.notify_later(batch.wakes)

    def _run(self, batch: FastBatch, notify: list[Statement], *, sent: bool) -> None:
        """Retry until the outcome is known. With `sent`, an earlier attempt may have been committed."""
        deadline = time.monotonic() + OUTCOME_SECONDS
        while True:
            try:
                with self.pool.wire() as wire:
                    wire.check()
                    if sent and batch.recover_outcomes(wire, self.context.sql):
                        return
                    sent = True
                    batch.answered(wire.run(batch.statements(self.context, notify)))
                    with suppress(psycopg.Error, StoreError):
                        self._maintain(wire)
                    return
            except psycopg.Error as error:
                if not is_lost(error):
                    raise
                self.pool.drop_idle()
                failure = translate(error, self.target, maybe_done=sent)
            except StoreUnreachable as error:
                # A lease whose reply was lost expires, and a repeated request gets other messages.
                if not (sent and batch.durable):
                    raise
                failure = StoreUnreachable(str(error.args[0]), maybe_done=True, hint=MAYBE)
                time.sleep(RETRY_SECONDS)
            if time.monotonic() > deadline:
                raise failure


class PendingBatch:
    """A batch whose reply an event loop waits for. Only `finish` blocks."""

    def __init__(self, path: FastPath, wire: PipelinedConnection, batch: FastBatch, commands: Commands) -> None:
        self._path = path
        self._wire = wire
        self._batch = batch
        self._commands = commands
        self._notify = path.notify_statements(batch)
        self._error: Exception | None = None
        self.socket = wire.socket
        self.patience_seconds = None if wire.answer_ms is None else wire.answer_ms / 1000
        try:
            wire.start(batch.statements(path.context, self._notify))
        except psycopg.Error as error:
            self._error = error

    @property
    def failed(self) -> bool:
        return self._error is not None

    def send(self) -> bool:
        if self._error is None:
            try:
                return self._wire.flush()
            except psycopg.Error as error:
                self._error = error
        return True

    def receive(self) -> bool:
        if self._error is None:
            try:
                answers = self._wire.receive()
                if answers is None:
                    return False
                self._batch.answered(answers)
            except Exception as error:  # Any error is reported to the waiting caller by `finish`.
                self._error = error
        return True

    def abandon(self) -> None:
        self._error = self._wire.abandon()

    def release(self) -> None:
        self._path.pool.release(self._wire)

    def outcomes(self) -> list[Any] | None:
        if (
            self._error is not None
            or not self._batch.is_complete
            or self._path.context.uncompacted_counters > UNCOMPACTED_MAX
        ):
            return None
        self._path.notify_later(self._batch, self._notify)
        return self._batch.outcomes(list)

    def finish(self) -> list[Any]:
        try:
            return self._path.finish(self._batch, self._commands, self._notify, self._error, sent=True)
        except psycopg.Error as error:
            raise translate(error, self._path.target) from error
