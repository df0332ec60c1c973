"""Wakes long polls: by local pushes, by writes of other processes, and by time.

A push wakes as many waiters as it has messages, in order of arrival. A waiter that leaves messages behind or is
cancelled wakes the next. A poll that is checking the store while a push finds no waiter checks once more, because a
store with several commit lanes may commit the push before a check that has not seen it. Writes of other processes show
in the store's version, which is polled only while there are waiters; a store with notifications calls instead, and
names the queues.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from penstock.core.ids import DLQ_SUFFIX, topics
from penstock.core.limits import POLL_SECONDS, WAIT_SECONDS_MAX
from penstock.errors import StoreError
from penstock.store.interface import Store

# A write of another process may concern any waiter, so all must check: the more there are, the less often.
POLL_SECONDS_PER_TOPIC = 0.0002
# How long nobody need wait before the watching ends: longer than a poll is on its way to the store.
LINGER_SECONDS = 1.0


class _TopicWaiters:
    """The waiters for one topic, and the time at which one of them must check by itself."""

    __slots__ = ("alarm", "alarm_at", "futures", "version")

    def __init__(self, version: int) -> None:
        # Version of the topic at which one of them was last woken by a change.
        self.version = version
        self.futures: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self.alarm: asyncio.TimerHandle | None = None
        self.alarm_at = 0.0

    def clear_alarm(self) -> None:
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None


class Ticket:
    """Tracks one check of a queue, and if something was pushed that it may have missed."""

    __slots__ = ("missed", "topic", "version")

    def __init__(self, topic: str, version: int) -> None:
        self.topic = topic
        self.version = version
        self.missed = False


class Waiters:
    """Waiters as coroutines of one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop_listening: Callable[[], None] | None = None
        self._waiting: dict[str, _TopicWaiters] = {}
        self._checking: dict[str, set[Ticket]] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._changes = 1
        self.closed = False

    def ticket(self, topic: str) -> Ticket:
        """Return a ticket to take before checking for messages; anything pushed since ends the following `wait`."""
        if self._watcher is None:
            self._start_watching()
        ticket = Ticket(topic, self._version(topic))
        self._checking.setdefault(topic, set()).add(ticket)
        return ticket

    def finish_check(self, ticket: Ticket) -> None:
        """Finish a check; if nothing was found, `wait` follows at once."""
        checking = self._checking[ticket.topic]
        checking.remove(ticket)
        if not checking:
            del self._checking[ticket.topic]

    async def wait(self, ticket: Ticket, seconds: float, check_in_seconds: float | None = None) -> None:
        """Wait until woken or timed out; one of the waiters checks again in `check_in_seconds`."""
        topic, loop = ticket.topic, asyncio.get_running_loop()
        if self.closed or ticket.missed or ticket.version != self._version(topic):
            return
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(topic, _TopicWaiters(ticket.version)).futures[future] = None
        self.schedule_check(topic, check_in_seconds)
        timer = loop.call_later(min(seconds, WAIT_SECONDS_MAX), _wake, future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.wake_next(topic)
            raise
        finally:
            timer.cancel()
            self._forget(topic, future)

    def schedule_check(self, topic: str, seconds: float | None) -> None:
        """Set one timer that wakes one waiter; a waiter that finds something wakes the next."""
        if seconds is None or not self._waiting:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + min(seconds, WAIT_SECONDS_MAX)
        # Waiters for the task or the namespace may remain when the last waiter for the queue has left.
        for each in topics(topic):
            waiters = self._waiting.get(each)
            if waiters is not None and (waiters.alarm is None or at < waiters.alarm_at):
                waiters.clear_alarm()
                waiters.alarm_at = at
                waiters.alarm = loop.call_at(at, self._ring, each)

    def _ring(self, topic: str) -> None:
        waiters = self._waiting.get(topic)
        if waiters is not None:
            waiters.alarm = None
            self.wake_one(topic)

    def wake(self, queue: str, count: int) -> None:
        """Wake up to `count` waiters, because messages may be ready in this queue."""
        if not self._waiting and not self._checking:
            return
        if queue.endswith(DLQ_SUFFIX):
            # A leased dead letter counts as in flight in its queue, and a redriven one is ready there.
            self.wake(queue.removesuffix(DLQ_SUFFIX), count)
        for topic in topics(queue):
            while count and self.wake_one(topic):
                count -= 1

    def wake_next(self, topic: str) -> None:
        """Pass a wake-up on to the next waiter, which may wait for more than this queue."""
        self.wake(topic, 1)

    def wake_one(self, topic: str) -> bool:
        waiters = self._waiting.get(topic)
        while waiters and waiters.futures:
            future, _ = waiters.futures.popitem(last=False)
            if not future.done():
                future.set_result(None)
                return True
        for ticket in self._checking.get(topic, ()):
            ticket.missed = True
        return False

    async def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond `close`."""
        deadline = time.monotonic() + seconds
        while not self.closed and (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.1))

    def close(self) -> None:
        """Wake all waiters; nobody waits from now on."""
        self.closed = True
        for waiters in self._waiting.values():
            waiters.clear_alarm()
            for future in waiters.futures:
                _wake(future)
        if self._watcher is not None:
            self._watcher.cancel()

    def _forget(self, topic: str, future: asyncio.Future[None]) -> None:
        waiters = self._waiting.get(topic)
        if waiters is None:
            return
        waiters.futures.pop(future, None)
        if not waiters.futures:
            waiters.clear_alarm()
            del self._waiting[topic]

    def _start_watching(self) -> None:
        loop, stirred = asyncio.get_running_loop(), asyncio.Event()

        def stir() -> None:
            loop.call_soon_threadsafe(stirred.set)

        self._stop_listening = self._store.listen(stir)
        self._watcher = loop.create_task(self._watch(self._store.version(), stirred))

    def _version(self, topic: str) -> int:
        """Return the topic's version; without notifications a negative one of the whole store, which no topic has."""
        return -self._changes if self._stop_listening is None else self._store.version(topic)

    async def _watch(self, seen: int, stirred: asyncio.Event) -> None:
        try:
            busy_at = time.monotonic()
            while time.monotonic() - busy_at < LINGER_SECONDS:
                await self._sleep(stirred)
                if self._waiting:
                    busy_at = time.monotonic()
                version = self._store.version()
                if version != seen:
                    seen = version
                    self._changes += 1
                    self._wake_changed()
        except StoreError:
            pass  # The waiters' timeouts still apply, and their next lease reports the error.
        finally:
            if self._stop_listening is not None:
                self._stop_listening()
                self._stop_listening = None
            self._watcher = None
            self._changes += 1  # Polling has stopped, so earlier tickets are no longer valid.

    async def _sleep(self, stirred: asyncio.Event) -> None:
        """Wait until the next poll of the store's version."""
        if self._stop_listening is None:
            await asyncio.sleep(max(POLL_SECONDS, len(self._waiting) * POLL_SECONDS_PER_TOPIC))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                await stirred.wait()
        stirred.clear()

    def _wake_changed(self) -> None:
        for topic, waiters in list(self._waiting.items()):
            version = self._version(topic)
            if version != waiters.version:
                waiters.version = version
                self.wake_one(topic)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
