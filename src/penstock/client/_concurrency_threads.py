"""Concurrency primitives of the SDK on threads, with the names of `_concurrency_async`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

Mutex = threading.Lock
STEP_SECONDS = 1.0


class OneShotEvent:
    """Wakes a single waiter; a `set` before the `wait` is kept."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        # Only after a signal handler or a second `set` is the lock free already.
        with suppress(RuntimeError):
            self._lock.release()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until set or until the time has passed."""
        left = threading.TIMEOUT_MAX if seconds is None else max(0.0, min(seconds, threading.TIMEOUT_MAX))
        # Wait in steps: the handler of a signal that arrives just before a step runs only after it.
        while left > STEP_SECONDS:
            if self._lock.acquire(timeout=STEP_SECONDS):
                return
            left -= STEP_SECONDS
        self._lock.acquire(timeout=left)


ThreadsafeEvent = OneShotEvent


def shielded(work: Callable[[], None]) -> None:
    work()


def offload(call: Callable[[], T]) -> T:
    return call()


def sleep(seconds: float) -> None:
    time.sleep(seconds)


class BackgroundTasks:
    """A daemon thread."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float | None = None) -> bool:
        """Wait for the end; return False after the timeout."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def cancel(self) -> None:
        """Do nothing: a thread cannot be cancelled."""


CAN_CANCEL = False
# A blocking run() in the main thread is usually the whole program, so it handles signals.
HANDLES_SIGNALS = True


def within(seconds: float | None, work: Callable[[], T]) -> T:
    """Run the work without enforcing the limit: a thread cannot be cancelled.

    The caller makes sure that a late result has no effect.
    """
    return work()
