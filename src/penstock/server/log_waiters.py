"""Long polls for records of a log, without a thread per waiter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from penstock.core.limits import POLL_SECONDS
from penstock.errors import PenstockError

T = TypeVar("T")
# Polling many logs that other processes write must stay a small part of the work.
POLL_SECONDS_PER_LOG = 0.000_2
# Returns what it read and, if that is nothing, the offset to wait for.
PageRead = Callable[[], tuple[T, int | None]]


class WaitCall(Protocol):
    """Runs a function on a thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class WaitableLog(Protocol):
    """A log to wait for: a stream or the journal."""

    def next_offset(self, name: str) -> int: ...

    def listen(self, name: str, listener: Callable[[], None]) -> Callable[[], None] | None: ...


class _WaitedLog:
    """A log with waiters."""

    def __init__(self, listening: asyncio.Future[Callable[[], None] | None]) -> None:
        self.listening = listening
        self.waiting: set[asyncio.Future[None]] = set()
        self.seen = -1


class LogWaiters:
    """Wakes waiters at appends: this process's are notified, those of others are polled while there are waiters."""

    def __init__(self, logs: WaitableLog, call: WaitCall) -> None:
        self._logs = logs
        self._call = call
        self._waited: dict[str, _WaitedLog] = {}
        self._watching: asyncio.Task[None] | None = None
        self.waiting = 0
        self.closed = False

    async def read(
        self, name: str, read_page: PageRead[T], seconds: float, on_wait: Callable[[], None] | None = None
    ) -> T:
        """Read on a thread; if there is nothing, read again after each append, until the timeout.

        `on_wait` is called once before waiting and may raise.
        """
        deadline = time.monotonic() + seconds
        while True:
            found, awaited = await self._call(read_page)
            left = deadline - time.monotonic()
            if awaited is None or left <= 0 or self.closed:
                return found
            if on_wait is not None:
                on_wait()
                on_wait = None
            await self.wait(name, awaited, left)

    async def wait(self, name: str, offset: int, seconds: float) -> None:
        """Wait until there is a record at this offset, the log is deleted or closed, or the time is up."""
        if self.closed:
            return
        loop = asyncio.get_running_loop()
        log = self._waited.get(name)
        if log is None:
            log = self._waited[name] = _WaitedLog(asyncio.ensure_future(self._listen(name)))
        future: asyncio.Future[None] = loop.create_future()
        log.waiting.add(future)
        self.waiting += 1
        timer = loop.call_later(seconds, _wake, future)
        try:
            listener = await asyncio.shield(log.listening)
            log.seen = await self._call(partial(self._logs.next_offset, name))
            if log.seen > offset:
                return
            if listener is None and self._watching is None:
                self._watching = loop.create_task(self._watch())
            await future
        finally:
            timer.cancel()
            self.waiting -= 1
            log.waiting.discard(future)
            if not log.waiting and self._waited.get(name) is log:
                del self._waited[name]
                log.listening.add_done_callback(_unlisten)

    async def _listen(self, name: str) -> Callable[[], None] | None:
        loop = asyncio.get_running_loop()

        def grown() -> None:
            loop.call_soon_threadsafe(self.wake, name)

        listening: Callable[[], None] | None = await self._call(lambda: self._logs.listen(name, grown))
        return listening

    def wake(self, name: str) -> None:
        log = self._waited.get(name)
        if log is not None:
            for future in log.waiting:
                _wake(future)

    async def _watch(self) -> None:
        try:
            while names := [name for name, log in self._waited.items() if _needs_polling(log)]:
                await asyncio.sleep(max(POLL_SECONDS, POLL_SECONDS_PER_LOG * len(names)))
                for name, offset in (await self._call(partial(self._next_offsets, names))).items():
                    log = self._waited.get(name)
                    if log is not None and offset != log.seen:
                        log.seen = offset
                        self.wake(name)
        finally:
            self._watching = None

    def _next_offsets(self, names: list[str]) -> dict[str, int]:
        found = {}
        for name in names:
            try:
                found[name] = self._logs.next_offset(name)
            except PenstockError:
                found[name] = -2  # Each waiter reads for itself and reports the error.
        return found

    def close(self) -> None:
        """Wake all waiters; nobody waits from now on."""
        self.closed = True
        for name in self._waited:
            self.wake(name)


def _needs_polling(log: _WaitedLog) -> bool:
    listening = log.listening
    return listening.done() and not listening.cancelled() and not listening.exception() and listening.result() is None


def _unlisten(listening: asyncio.Future[Callable[[], None] | None]) -> None:
    if not listening.cancelled() and listening.exception() is None and (stop := listening.result()) is not None:
        stop()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
