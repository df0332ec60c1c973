"""Waiting for a queue in threads: the twin of `penstock.wakeups` for programs without an event loop."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Protocol

from penstock import forks
from penstock.identity import DLQ_SUFFIX

WATCH_SECONDS = 0.01
WAIT_SECONDS_MAX = 3600.0
DEAD_LOOK_SECONDS = 1.0
"""A lease wakes nobody, and may lapse into a dead letter."""
Ticket = tuple[int, int, str]
"""Pushes and the store's version when it was taken, and what for."""


class Watched(Protocol):
    def version(self, interest: str | None = None) -> int: ...


class ThreadWakeups:
    """For threads. Each waiting thread looks at the store's version itself."""

    def __init__(self, store: Watched) -> None:
        self._version = store.version
        self.closed = False
        self.after_fork_in_child()
        forks.register(self)

    def ticket(self, interest: str) -> Ticket:
        """To be taken before looking for messages: what is written from then on ends the `wait` that follows."""
        return self._pushes, self._version(interest), interest

    def looked(self, ticket: Ticket) -> None:
        pass

    def wait(self, ticket: Ticket, seconds: float, look_in_seconds: float | None = None) -> None:
        pushes, version, interest = ticket
        if look_in_seconds is not None:
            seconds = min(seconds, look_in_seconds)
        if interest.endswith(DLQ_SUFFIX):
            seconds = min(seconds, DEAD_LOOK_SECONDS)
        deadline = time.monotonic() + min(seconds, WAIT_SECONDS_MAX)
        # Not a `threading.Condition`, which an interrupt can leave locked for ever.
        bell = threading.Lock()
        try:
            self._bells.add(bell)
            bell.acquire()
            while self._version(interest) == version:
                left = deadline - time.monotonic()
                if left <= 0 or self.closed or self._pushes != pushes:
                    return
                bell.acquire(timeout=min(left, WATCH_SECONDS))
        finally:
            self._bells.discard(bell)

    def wake(self, queue: str, count: int) -> None:
        self._pushes += 1
        if self._bells:
            self._ring()

    def _ring(self) -> None:
        for bell in list(self._bells):
            with suppress(RuntimeError):
                bell.release()

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        self._bells: set[threading.Lock] = set()
        self._pushes = 0

    def wake_one(self, interest: str) -> None:
        """Who waits for dead letters looks by himself."""

    def pass_on(self, interest: str) -> None:
        """Every change wakes all."""

    def look_in(self, interest: str, seconds: float | None) -> None:
        pass

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self.closed = True
        self._ring()
