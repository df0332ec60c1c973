"""Batches on the short way: carried out, asked by an event loop, and found out about when the answer was lost."""

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
AGAIN_SECONDS = 0.05
UNFOLDED_MAX = 2_000
"""Counter rows after which a store folds them itself, if no sweeper does."""
Commands = Sequence[Command[Any]]


class FastPath:
    def __init__(
        self,
        context: StoreContext,
        pool: Pool,
        notifier: Notifier,
        target: DatabaseTarget,
        run_transaction: Callable[[Commands], list[Any]],
        look_after: Callable[[PipelinedConnection], None],
    ) -> None:
        """`run_transaction` is the long way."""
        self.context = context
        self.pool = pool
        self._notifier = notifier
        self.target = target
        self._in_steps = run_transaction
        self._look_after = look_after

    def carry_out(self, short: FastBatch, commands: Commands) -> list[Any]:
        return self.finish(short, commands, self.word(short), None, sent=False)

    def ask(self, short: FastBatch, commands: Commands) -> PendingBatch | None:
        """None when no connection is free, or none that works."""
        wire = self.pool.acquire_idle()
        if wire is None:
            return None
        try:
            wire.check()
        except psycopg.Error:
            self.pool.release(wire)
            return None
        return PendingBatch(self, wire, short, commands)

    def word(self, short: FastBatch) -> list[Statement]:
        """To those who wait elsewhere, unless it is too soon after the last: then it is sent later."""
        if not short.wakes or not self._notifier.may_send_now():
            return []
        words = self._notifier.words(short.wakes)
        return [Statement(self.context.sql["begin.notify"], (self._notifier.channel, word)) for word in words]

    def finish(
        self, short: FastBatch, commands: Commands, word: list[Statement], trouble: Exception | None, *, sent: bool
    ) -> list[Any]:
        """From wherever it is: not begun, answered in part, or lost with some trouble."""
        try:
            if trouble is not None and not is_lost(trouble):
                raise trouble
            if trouble is not None or not sent:
                self._run(short, word, sent=sent)
            elif self.context.uncompacted_counters > UNFOLDED_MAX:
                with suppress(psycopg.Error, StoreError), self.pool.wire() as wire:
                    self._look_after(wire)
        except RETRIED:
            return self._in_steps(commands)
        self.tell(short, word)
        return short.outcomes(self._in_steps)

    def tell(self, short: FastBatch, word: list[Statement]) -> None:
        if short.wakes and not word:
            self._notifier.notify_later(short.wakes)

    def _run(self, short: FastBatch, word: list[Statement], *, sent: bool) -> None:
        """Until the outcome is known; `sent`: it may have been carried out already."""
        deadline = time.monotonic() + OUTCOME_SECONDS
        while True:
            try:
                with self.pool.wire() as wire:
                    wire.check()
                    if sent and short.what_became(wire, self.context.sql):
                        return
                    sent = True
                    short.answered(wire.run(short.statements(self.context, word)))
                    with suppress(psycopg.Error, StoreError):
                        self._look_after(wire)
                    return
            except psycopg.Error as error:
                if not is_lost(error):
                    raise
                self.pool.drop_idle()
                trouble = translate(error, self.target, maybe_done=sent)
            except StoreUnreachable as error:
                # A lease that was lost with its answer lapses; whoever asks again gets other messages.
                if not (sent and short.durable):
                    raise
                trouble = StoreUnreachable(str(error.args[0]), maybe_done=True, hint=MAYBE)
                time.sleep(AGAIN_SECONDS)
            if time.monotonic() > deadline:
                raise trouble


class PendingBatch:
    """A batch whose answer an event loop waits for. Only `finish` may wait."""

    def __init__(self, way: FastPath, wire: PipelinedConnection, short: FastBatch, commands: Commands) -> None:
        self._way = way
        self._wire = wire
        self._short = short
        self._commands = commands
        self._word = way.word(short)
        self._trouble: Exception | None = None
        self.socket = wire.socket
        self.patience_seconds = None if wire.answer_ms is None else wire.answer_ms / 1000
        try:
            wire.start(short.statements(way.context, self._word))
        except psycopg.Error as error:
            self._trouble = error

    @property
    def failed(self) -> bool:
        return self._trouble is not None

    def send(self) -> bool:
        if self._trouble is None:
            try:
                return self._wire.flush()
            except psycopg.Error as error:
                self._trouble = error
        return True

    def receive(self) -> bool:
        if self._trouble is None:
            try:
                answers = self._wire.receive()
                if answers is None:
                    return False
                self._short.answered(answers)
            except Exception as error:  # Whoever waits for it is told, whatever it is.
                self._trouble = error
        return True

    def abandon(self) -> None:
        self._trouble = self._wire.abandon()

    def let_go(self) -> None:
        self._way.pool.release(self._wire)

    def outcomes(self) -> list[Any] | None:
        if self._trouble is not None or not self._short.whole or self._way.context.uncompacted_counters > UNFOLDED_MAX:
            return None
        self._way.tell(self._short, self._word)
        return self._short.outcomes(list)

    def finish(self) -> list[Any]:
        try:
            return self._way.finish(self._short, self._commands, self._word, self._trouble, sent=True)
        except psycopg.Error as error:
            raise translate(error, self._way.target) from error
