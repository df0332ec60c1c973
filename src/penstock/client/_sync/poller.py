# Made by tools/unasync.py from the asynchronous twin: change that.
"""Shares long polls between callers that wait for messages of one queue.

One poll waits at the server. A caller that arrives meanwhile first checks without waiting, batched with others, and
then waits for the next poll. The callers never lease more than they requested together. A message for a caller that
has left goes to the next caller, or back to the queue.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable

from penstock.client._sync.batcher import RequestBatcher
from penstock.client._concurrency_threads import CAN_CANCEL, Mutex, OneShotEvent, shielded, sleep
from penstock.client.stop import StopSignal
from penstock.client.transport_errors import Interrupt
from penstock.core.model import BATCH_MAX, Delivery

# Longest wait of one poll; a longer wait takes several.
WAIT_SECONDS_MAX = 20.0
# Pause between polls that the server ends early, because it is shutting down.
EARLY_SECONDS = 0.05
Messages = list[Delivery]
Poll = Callable[[int, float, Interrupt | None], Messages]
Release = Callable[[Messages], None]


class Caller:
    __slots__ = (
        "covered",
        "deadline",
        "done",
        "error",
        "is_leader",
        "leading",
        "limit",
        "messages",
        "slot",
        "successor",
    )

    def __init__(self, limit: int, deadline: float) -> None:
        self.limit = limit
        self.deadline = deadline
        self.slot = OneShotEvent()
        self.covered = self.done = self.is_leader = self.leading = False
        self.successor: Caller | None = None  # The next leader, still to be woken.
        self.messages: Messages = []
        self.error: Exception | None = None


class Poller:
    def __init__(self, poll: Poll, release: Release) -> None:
        """`poll(limit, wait_seconds, interrupt)` sends one request; `release` returns messages to the queue."""
        self._poll = poll
        self._release = release
        self._mutex = Mutex()
        self._waiting: deque[Caller] = deque()
        self._polling = False
        self._gathering = False  # True while the next poll is about to be sent.
        self._interrupt: Interrupt | None = None
        self._checks: RequestBatcher[int, Messages] = RequestBatcher(
            lambda limits, _: self._check(limits), weigh=int, weight_max=BATCH_MAX, lanes=2, orphaned=self._pass_on
        )

    @property
    def idle(self) -> bool:
        return not self._polling and not self._waiting and self._checks.idle

    def check(self, limit: int) -> Messages:
        """Lease what is ready, without waiting."""
        return self._checks.join(limit)

    def lease(self, limit: int, wait_seconds: float, stop: StopSignal | None) -> Messages:
        """Lease what is ready or arrives in time."""
        mine = Caller(limit, time.monotonic() + wait_seconds)
        try:
            if not self._enter(mine, only_if_in_time=True):
                messages = self._checks.join(limit)
                if messages:
                    return messages
                self._enter(mine, only_if_in_time=False)
            watch = stop.watch(lambda: self._withdraw(mine, at_once=True)) if stop is not None else 0
            try:
                self._wait(mine)
            finally:
                if stop is not None:
                    stop.unwatch(watch)
            self._withdraw(mine)
        except BaseException:
            if not CAN_CANCEL:
                # A task goes on leading if its caller is cancelled; an interrupted thread does not.
                self._end(mine)
            self._withdraw(mine)
            if mine.messages:
                shielded(lambda: self._pass_on(mine.messages))
            raise
        if mine.error is not None:
            raise mine.error
        return mine.messages

    def _enter(self, mine: Caller, *, only_if_in_time: bool) -> bool:
        with self._mutex:
            if not self._polling:
                self._polling = self._gathering = mine.is_leader = True
            elif only_if_in_time and not self._gathering:
                return False
            self._waiting.append(mine)
            return True

    def _wait(self, mine: Caller) -> None:
        while not mine.done:
            if mine.is_leader:
                mine.leading = True
                shielded(lambda: self._lead(mine))
                continue
            left = mine.deadline - time.monotonic()
            # A caller covered by a poll leaves only with it, so that no message arrives for one that has just left.
            if left <= 0 and not mine.covered:
                return
            mine.slot.wait(None if mine.covered else left)

    def _lead(self, mine: Caller) -> None:
        """Send one poll for all callers that wait now."""
        interrupt = Interrupt()
        covered: list[Caller] = []
        try:
            now = time.monotonic()
            with self._mutex:
                self._gathering = False
                covered = [caller for caller in self._waiting if not caller.done]
                for caller in covered:
                    caller.covered = True
                self._interrupt = interrupt
            limit = min(BATCH_MAX, sum(caller.limit for caller in covered))
            patience = min((caller.deadline - now for caller in covered), default=0.0)
            if covered:
                wait_seconds = min(WAIT_SECONDS_MAX, max(0.0, patience))
                messages = self._poll(limit, wait_seconds, interrupt)
                self._pass_on(messages)
                if not messages and time.monotonic() - now < wait_seconds / 10:
                    sleep(EARLY_SECONDS)
        except Exception as error:
            if not interrupt.triggered:
                self._fail(covered, error)
        finally:
            self._end(mine)

    def _share(self, messages: Messages) -> Messages:
        """Hand messages to waiting callers in order of arrival; return what is left over."""
        with self._mutex:
            while messages and self._waiting:
                caller = self._waiting[0]
                if not caller.done:
                    caller.messages, messages = messages[: caller.limit], messages[caller.limit :]
                    caller.done = True
                caller.slot.set()
                if caller.leading:
                    self._end_poll()  # The leader has its messages and need not wait for its own poll.
                # Last, so that an interrupt before it leaves the caller for `_end` to wake.
                del self._waiting[0]
        return messages

    def _pass_on(self, messages: Messages) -> None:
        left_over = self._share(messages)
        if left_over:
            self._release(left_over)

    def _fail(self, covered: list[Caller], error: Exception) -> None:
        with self._mutex:
            for caller in covered:
                if not caller.done:
                    caller.error = copy.copy(error)
                    caller.done = True

    def _end(self, mine: Caller) -> None:
        """End this caller's poll, if it leads. After an interrupt, call it again to finish."""
        now = time.monotonic()
        with self._mutex:
            if mine.is_leader:
                self._interrupt = None
                for caller in self._waiting:
                    if caller.covered and caller.deadline <= now:
                        caller.done = True
                    caller.covered = False
                    if caller.done:
                        caller.slot.set()
                self._waiting = deque(caller for caller in self._waiting if not caller.done)
            self._next_leads(mine)

    def _next_leads(self, mine: Caller) -> None:
        if mine.is_leader:
            # No function call here, so an interrupt finds all of it done, or nothing.
            mine.successor = self._waiting[0] if self._waiting else None
            mine.is_leader = mine.leading = False
            if mine.successor is not None:
                mine.successor.is_leader = self._gathering = True
            else:
                self._polling = self._gathering = False
        if mine.successor is not None:
            mine.successor.slot.set()
            mine.successor = None

    def _withdraw(self, mine: Caller, *, at_once: bool = False) -> None:
        """Leave, with or without messages. Ends a poll that no caller waits for; `at_once`, also the caller's own."""
        with self._mutex:
            mine.done = True
            mine.slot.set()
            if mine in self._waiting:
                self._waiting.remove(mine)
            if not mine.leading:
                self._next_leads(mine)
            if (at_once and mine.leading) or not any(caller.covered for caller in self._waiting):
                self._end_poll()

    def _end_poll(self) -> None:
        if self._interrupt is not None:
            self._interrupt.trigger()

    def _check(self, limits: list[int]) -> list[Messages]:
        messages = self._poll(min(BATCH_MAX, sum(limits)), 0.0, None)
        shares: list[Messages] = []
        for limit in limits:
            shares.append(messages[:limit])
            messages = messages[limit:]
        return shares
