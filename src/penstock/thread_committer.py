"""Group commit among threads: the twin of `penstock.committer` for programs without an event loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Any, TypeVar

from penstock import forks
from penstock.commands import Command
from penstock.errors import PenstockError, StoreError
from penstock.store.protocol import BATCH_COMMANDS_MAX, Store

T = TypeVar("T")
Undo = Callable[[Command[Any], Any], None]
INTERRUPTED = StoreError(
    "the commit was interrupted in another thread", hint="look whether it was kept before trying again"
)


class _Waiting:
    """One command on its way, and what became of it."""

    __slots__ = ("command", "done", "outcome")

    def __init__(self, command: Command[Any]) -> None:
        self.command = command
        self.outcome: Any = None
        self.done = False


class ThreadCommitter:
    """The first thread to come commits for all who wait; the others find their answer when they get the lock."""

    def __init__(self, store: Store, undo: Undo | None = None) -> None:
        self._store = store
        self.after_fork_in_child()
        forks.register(self)

    def submit(self, command: Command[T]) -> T:
        if not self._waiting and self._lead.acquire(blocking=False):
            # Nobody else is here: no need to queue up.
            try:
                outcome: Any = self._store.apply((command,))[0]
            finally:
                self._lead.release()
        else:
            outcome = self._queue_up(command)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    def _queue_up(self, command: Command[Any]) -> Any:
        mine = _Waiting(command)
        self._waiting.append(mine)
        try:
            with self._lead:
                while not mine.done:
                    self._commit()
        except BaseException:
            # Interrupted while waiting: whoever has gone asks for nothing any more.
            with suppress(ValueError):
                self._waiting.remove(mine)
            raise
        return mine.outcome

    def _commit(self) -> None:
        batch: list[_Waiting] = []
        outcomes: list[Any] = []
        try:
            while self._waiting and len(batch) < BATCH_COMMANDS_MAX:
                if not self._waiting[0].done:
                    batch.append(self._waiting[0])
                self._waiting.popleft()
            outcomes = self._store.apply([waiting.command for waiting in batch])
        except PenstockError as error:
            outcomes = [copy(error) for _ in batch]
        except Exception as error:
            outcomes = [error] * len(batch)
        finally:
            # Ctrl-C in the thread that commits, which may come before or after the commit, is for that thread alone.
            for waiting, outcome in zip(batch, outcomes or [INTERRUPTED] * len(batch), strict=True):
                waiting.outcome = outcome
                waiting.done = True

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._lead = threading.Lock()

    def post(self, command: Command[T], done: Callable[[T], None]) -> None:
        done(self.submit(command))

    def call(self, look: Callable[[], T], *, long: bool = False) -> T:
        """Read from the store."""
        return look()

    def close(self) -> None:
        pass
