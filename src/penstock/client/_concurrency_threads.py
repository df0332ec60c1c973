"""What the SDK needs of threads, under the names that `tasks` has for an event loop."""

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
    """Wakes the one who waits for it; a wake-up that comes first is kept."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        # Only a signal handler or a second waker can find it free already.
        with suppress(RuntimeError):
            self._lock.release()

    def wait(self, seconds: float | None = None) -> None:
        """Until woken, or until the time has passed."""
        left = threading.TIMEOUT_MAX if seconds is None else max(0.0, min(seconds, threading.TIMEOUT_MAX))
        # In steps: the handler of a signal that comes in the moment before one runs only after it.
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
    """Work on the side, in a thread that does not keep the program alive."""

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
        """Wait for its end; False when that took too long."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def cancel(self) -> None:
        """A thread cannot be made to stop."""


CAN_CANCEL = False
# A blocking run() in the main thread is the whole program.
HANDLES_SIGNALS = True


def within(seconds: float | None, work: Callable[[], T]) -> T:
    """A thread cannot be made to stop: whoever set the limit sees to it that what comes late has no effect."""
    return work()
