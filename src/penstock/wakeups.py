"""Who waits for which queue, and who is woken by what: pushes here, writes of other processes, and time.

A push wakes as many waiters as it has messages, in the order they came. Whoever was woken and leaves messages behind,
or goes away, wakes the next. Writes of other processes show in the store's version, looked at only while someone waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from penstock.errors import StoreError

WATCH_SECONDS = 0.01
WAIT_SECONDS_MAX = 3600.0


def interests(queue: str) -> Iterator[str]:
    """What a poll may be waiting for when this queue gets a message: the queue, its task, its namespace."""
    yield queue
    while "/" in queue:
        queue = queue.rpartition("/")[0]
        yield queue + "/"


class Wakeups:
    """For coroutines of one event loop."""

    def __init__(self, version: Callable[[], int]) -> None:
        self._version = version
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._watcher: asyncio.Task[None] | None = None
        self.closed = False

    @property
    def count(self) -> int:
        return sum(len(waiters) for waiters in self._waiting.values())

    async def wait(self, interest: str, seconds: float) -> None:
        """Until woken, or until the time has passed."""
        if self.closed:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(interest, deque()).append(future)
        if self._watcher is None:
            self._watcher = loop.create_task(self._watch())
        timer = loop.call_later(min(seconds, WAIT_SECONDS_MAX), _wake, future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.wake_one(interest)
            raise
        finally:
            timer.cancel()
            self._forget(interest, future)

    def wake(self, queue: str, count: int) -> None:
        """`count` messages may be ready in this queue."""
        if not self._waiting:
            return
        for interest in interests(queue):
            while count and self.wake_one(interest):
                count -= 1

    def wake_one(self, interest: str) -> bool:
        waiters = self._waiting.get(interest)
        while waiters:
            future = waiters.popleft()
            if not future.done():
                future.set_result(None)
                return True
        return False

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def close(self) -> None:
        """Everyone goes home."""
        self.closed = True
        for waiters in self._waiting.values():
            for future in waiters:
                _wake(future)
        if self._watcher is not None:
            self._watcher.cancel()

    def _forget(self, interest: str, future: asyncio.Future[None]) -> None:
        waiters = self._waiting.get(interest)
        if waiters is None:
            return
        if future in waiters:
            waiters.remove(future)
        if not waiters:
            del self._waiting[interest]

    async def _watch(self) -> None:
        try:
            seen = self._version()
            while self._waiting:
                await asyncio.sleep(WATCH_SECONDS)
                version = self._version()
                if version != seen:
                    seen = version
                    for interest in list(self._waiting):
                        self.wake_one(interest)
        except StoreError:
            pass  # The waiters' own time limits hold; their next lease reports the trouble.
        finally:
            self._watcher = None


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class ThreadWakeups:
    """For threads. Each waiting thread looks at the store's version itself."""

    def __init__(self, version: Callable[[], int]) -> None:
        self._version = version
        self._changed = threading.Condition()
        self._pushes = 0
        self.closed = False

    def wait(self, interest: str, seconds: float) -> None:
        deadline = time.monotonic() + min(seconds, WAIT_SECONDS_MAX)
        seen = self._version()
        with self._changed:
            pushes = self._pushes
            while not self.closed and self._pushes == pushes:
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(min(left, WATCH_SECONDS))
                if self._version() != seen:
                    return

    def wake(self, queue: str, count: int) -> None:
        with self._changed:
            self._pushes += 1
            self._changed.notify_all()

    def wake_one(self, interest: str) -> bool:
        return False

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()
