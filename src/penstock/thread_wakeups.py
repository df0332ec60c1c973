"""Waiting for a queue in threads: the twin of `penstock.wakeups` for programs without an event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock import forks

WATCH_SECONDS = 0.01
WAIT_SECONDS_MAX = 3600.0


class ThreadWakeups:
    """For threads. Each waiting thread looks at the store's version itself."""

    def __init__(self, version: Callable[[], int]) -> None:
        self._version = version
        self.closed = False
        self.after_fork_in_child()
        forks.register(self)

    def ticket(self, interest: str) -> tuple[int, int]:
        """To be taken before looking for messages: what is written from then on ends the `wait` that follows."""
        return self._pushes, self._version()

    def looked(self, ticket: tuple[int, int]) -> None:
        pass

    def wait(self, ticket: tuple[int, int], seconds: float, look_in_seconds: float | None = None) -> None:
        pushes, version = ticket
        if look_in_seconds is not None:
            seconds = min(seconds, look_in_seconds)
        deadline = time.monotonic() + min(seconds, WAIT_SECONDS_MAX)
        with self._changed:
            self._waiting += 1
        try:
            while self._version() == version:
                with self._changed:
                    left = deadline - time.monotonic()
                    if left <= 0 or self.closed or self._pushes != pushes:
                        return
                    self._changed.wait(min(left, WATCH_SECONDS))
        finally:
            with self._changed:
                self._waiting -= 1

    def wake(self, queue: str, count: int) -> None:
        self._pushes += 1
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        self._changed = threading.Condition()
        self._pushes = self._waiting = 0

    def pass_on(self, interest: str) -> None:
        """Every change wakes all."""

    def look_in(self, interest: str, seconds: float | None) -> None:
        pass

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()
