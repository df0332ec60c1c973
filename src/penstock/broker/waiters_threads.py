"""Waiters as threads: the twin of `penstock.broker.waiters_async` for programs without an event loop."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from penstock.core import fork_safety
from penstock.core.ids import DLQ_SUFFIX
from penstock.core.limits import POLL_SECONDS, WAIT_SECONDS_MAX
from penstock.store.interface import Store

# A lease notifies nobody, and its expiry may create a dead letter.
DEAD_CHECK_SECONDS = 1.0
# Push counter and store version when the ticket was taken, and its topic.
Ticket = tuple[int, int, str]


class ThreadWaiters:
    """Waiters as threads; each polls the store's version itself."""

    def __init__(self, store: Store) -> None:
        self._version = store.version
        self.closed = False
        self.after_fork_in_child()
        fork_safety.register_reset(self)

    def ticket(self, topic: str) -> Ticket:
        """Return a ticket to take before checking for messages; anything written since ends the following `wait`."""
        return self._pushes, self._version(topic), topic

    def finish_check(self, ticket: Ticket) -> None:
        pass

    def wait(self, ticket: Ticket, seconds: float, check_in_seconds: float | None = None) -> None:
        pushes, version, topic = ticket
        if check_in_seconds is not None:
            seconds = min(seconds, check_in_seconds)
        if topic.endswith(DLQ_SUFFIX):
            seconds = min(seconds, DEAD_CHECK_SECONDS)
        deadline = time.monotonic() + min(seconds, WAIT_SECONDS_MAX)
        # Not a `threading.Condition`, which an interrupt can leave locked forever.
        bell = threading.Lock()
        try:
            self._bells.add(bell)
            bell.acquire()
            while self._version(topic) == version:
                left = deadline - time.monotonic()
                if left <= 0 or self.closed or self._pushes != pushes:
                    return
                bell.acquire(timeout=min(left, POLL_SECONDS))
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

    def after_fork_in_child(self) -> None:
        self._bells: set[threading.Lock] = set()
        self._pushes = 0

    def wake_one(self, topic: str) -> None:
        """Do nothing: waiters for dead letters poll."""

    def wake_next(self, topic: str) -> None:
        """Do nothing: every change wakes all."""

    def schedule_check(self, topic: str, seconds: float | None) -> None:
        pass

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self.closed = True
        self._ring()
