"""Group commit: commands that wait at the same time share one transaction and one fsync.

There is no timer: while one batch commits, the next gathers. `Committer` does this for coroutines, `ThreadCommitter`
for threads; both answer a command only when the commit that holds it is on disk.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.commands import Command
from penstock.errors import StoreClosed
from penstock.store.protocol import Store

T = TypeVar("T")
BATCH_COMMANDS_MAX = 512


class _Waiting:
    """One command on its way, and what became of it."""

    __slots__ = ("command", "done", "outcome")

    def __init__(self, command: Command[Any]) -> None:
        self.command = command
        self.outcome: Any = None
        self.done = False


class ThreadCommitter:
    """The first thread to come commits for all who wait; the others find their answer when they get the lock."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[_Waiting] = deque()
        self._lead = threading.Lock()

    def submit(self, command: Command[T]) -> T:
        mine = _Waiting(command)
        self._waiting.append(mine)
        with self._lead:
            if not mine.done:
                self._commit()
        if isinstance(mine.outcome, BaseException):
            raise mine.outcome
        return mine.outcome  # type: ignore[no-any-return]

    def _commit(self) -> None:
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < BATCH_COMMANDS_MAX:
            batch.append(self._waiting.popleft())
        try:
            outcomes = self._store.apply([waiting.command for waiting in batch])
        except BaseException as error:
            outcomes = [error] * len(batch)
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.outcome = outcome
            waiting.done = True

    def call(self, look: Callable[[], T]) -> T:
        """Read from the store."""
        return look()

    def close(self) -> None:
        pass


class Committer:
    """One batch is with the store at any time, on a thread of its own; the event loop gathers the next."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[tuple[Command[Any], asyncio.Future[Any]]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="penstock-commit")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="penstock-read")
        self._closed = False

    @property
    def depth(self) -> int:
        """Commands that wait for a batch."""
        return len(self._waiting)

    async def submit(self, command: Command[T]) -> T:
        if self._closed:
            raise StoreClosed("the broker is shutting down")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append((command, future))
        if self._running is None:
            self._running = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch: list[tuple[Command[Any], asyncio.Future[Any]]] = []
                while self._waiting and len(batch) < BATCH_COMMANDS_MAX:
                    command, future = self._waiting.popleft()
                    # Whoever has gone before the batch was taken asks for nothing any more.
                    if not future.cancelled():
                        batch.append((command, future))
                if not batch:
                    continue
                commands = [command for command, _ in batch]
                try:
                    outcomes = await loop.run_in_executor(self._writer, self._store.apply, commands)
                except Exception as error:
                    outcomes = [error] * len(batch)
                for (_, future), outcome in zip(batch, outcomes, strict=True):
                    if future.cancelled():
                        continue
                    if isinstance(outcome, BaseException):
                        future.set_exception(outcome)
                    else:
                        future.set_result(outcome)
        finally:
            self._running = None

    async def call(self, look: Callable[[], T]) -> T:
        """Read from the store, without holding up the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, look)

    async def close(self) -> None:
        """Finish what was accepted, then stop."""
        self._closed = True
        while self._running is not None:
            await asyncio.wait([self._running])
        self._writer.shutdown()
        self._reader.shutdown()
