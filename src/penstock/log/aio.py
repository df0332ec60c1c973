"""Streams for an event loop: appends are encoded and written on the loop; only the fsync runs on a thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, TypeVar

from penstock.errors import PenstockError, StoreClosed, TryLater
from penstock.log.interface import Streams
from penstock.log.model import AppendOutcome, Payload

T = TypeVar("T")
GROUP_MAX = 512
DEPTH_MAX = 20_000
_Waiting = tuple[Sequence[Payload], "asyncio.Future[AppendOutcome]"]


class AsyncStreams:
    """Streams for coroutines of one loop. Without a timer: while one group is fsynced, the next one collects."""

    def __init__(self, streams: Streams, *, threads: int = 8) -> None:
        self.streams = streams
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="penstock-streams")
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    async def append(self, name: str, payloads: Sequence[Payload]) -> AppendOutcome:
        """Append durably; concurrent appends to the same stream share the fsync."""
        if self._closed:
            raise StoreClosed("the streams are closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[AppendOutcome] = loop.create_future()
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = deque()
            task = loop.create_task(self._run(name, waiting))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        elif len(waiting) >= DEPTH_MAX:
            raise TryLater(f"{len(waiting)} appends wait for the disk already", retry_after_ms=1_000)
        waiting.append((payloads, future))
        return await future

    async def call(self, verb: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call any other method of `streams` without blocking the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: verb(*args, **options))

    async def _run(self, name: str, waiting: deque[_Waiting]) -> None:
        try:
            while waiting:
                group = [waiting.popleft() for _ in range(min(len(waiting), GROUP_MAX))]
                # Skip appends whose caller was cancelled before the group started.
                await self._commit(name, [each for each in group if not each[1].cancelled()])
        finally:
            del self._waiting[name]

    async def _commit(self, name: str, group: list[_Waiting]) -> None:
        if not group:
            return
        outcomes: Sequence[Any]
        try:
            outcomes = await self._execute(name, [payloads for payloads, _ in group])
        except PenstockError as error:
            outcomes = [copy(error) for _ in group]
        except Exception as error:
            outcomes = [error] * len(group)
        for (_, future), outcome in zip(group, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    async def _execute(self, name: str, batches: list[Sequence[Payload]]) -> Sequence[Any]:
        loop = asyncio.get_running_loop()
        prepared = self.streams.prepare(name, batches)
        if prepared is None:
            return await loop.run_in_executor(self._threads, self.streams.append_many, name, batches)
        try:
            await loop.run_in_executor(self._threads, prepared.commit)
        finally:
            prepared.release()
        return prepared.outcomes

    async def close(self) -> None:
        """Finish accepted appends, then stop."""
        self._closed = True
        if self._running:
            await asyncio.wait(self._running)
        self._threads.shutdown()
