"""Concurrency primitives of the SDK on an event loop.

`_concurrency_threads` has the same names for threads, which the synchronous twins use.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

# Never contended: between two awaits no other task runs.
Mutex = threading.Lock


class OneShotEvent:
    """Wakes a single waiter; a `set` before the `wait` is kept."""

    __slots__ = ("_future", "_set")

    def __init__(self) -> None:
        self._set = False
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        else:
            self._set = True

    def wait(self, seconds: float | None = None) -> Awaitable[None]:
        """Wait until set or until the time has passed. May wake spuriously."""
        if self._set:
            self._set = False
            return _AT_ONCE
        self._future = asyncio.get_running_loop().create_future()
        return self._future if seconds is None else _within(self._future, max(0.0, seconds))


class ThreadsafeEvent(OneShotEvent):
    """A OneShotEvent that any thread may set."""

    __slots__ = ()

    def set(self) -> None:
        # Each side writes its own flag before reading the other's, so at least one of them sees the other.
        self._set = True
        future = self._future
        if future is not None:
            with suppress(RuntimeError):  # The waiter's loop is closed.
                future.get_loop().call_soon_threadsafe(_wake, future)

    def wait(self, seconds: float | None = None) -> Awaitable[None]:
        self._future = asyncio.get_running_loop().create_future()
        if self._set:
            self._set = False
            return _AT_ONCE
        return self._future if seconds is None else _within(self._future, max(0.0, seconds))


class _AtOnce:
    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_AT_ONCE = _AtOnce()


async def _within(future: asyncio.Future[None], seconds: float) -> None:
    timer = asyncio.get_running_loop().call_later(seconds, _wake, future)
    try:
        await future
    finally:
        timer.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_running: set[asyncio.Task[Any]] = set()


async def shielded(work: Callable[[], Awaitable[None]]) -> None:
    """Run work that other callers depend on; it continues if its caller is cancelled."""
    task = asyncio.ensure_future(work())
    _running.add(task)
    task.add_done_callback(_running.discard)
    await asyncio.shield(task)


async def offload(call: Callable[[], T]) -> T:
    """Run a blocking call in a thread."""
    return await asyncio.to_thread(call)


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


class BackgroundTasks:
    """A background task."""

    def __init__(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        self._task = asyncio.ensure_future(work())
        self._task.set_name(name)

    @property
    def running(self) -> bool:
        return not self._task.done()

    async def join(self, seconds: float | None = None) -> bool:
        """Wait for the end; return False after the timeout."""
        if not self._task.done():  # A finished task may belong to a closed loop, which cannot be awaited.
            await asyncio.wait([self._task], timeout=seconds)
        if self._task.done() and not self._task.cancelled():
            self._task.result()
        return self._task.done()

    def cancel(self) -> None:
        self._task.cancel()


CAN_CANCEL = True
# The application that runs the event loop, such as uvicorn, handles signals.
HANDLES_SIGNALS = False


async def within(seconds: float | None, work: Callable[[], Awaitable[T]]) -> T:
    """Run the work; cancel it and raise TimeoutError if it takes longer."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work()
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"took longer than {seconds:g} s") from None
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("a task that the handler awaited was cancelled") from error
