"""Leases messages ahead of a worker's handlers, so that none of them waits for a round trip.

How far ahead follows from the handler's pace. Messages that do not start in time go back to the queue.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable

from penstock.client._async.message import LeasedMessage
from penstock.client._concurrency_async import Mutex, OneShotEvent
from penstock.client.handler_pace import HandlerPace
from penstock.client.stop import StopSignal

Messages = list[LeasedMessage]


class Prefetcher:
    def __init__(
        self,
        lease: Callable[[int, bool], Awaitable[Messages]],
        release: Callable[[Messages], Awaitable[None]],
        *,
        lanes: int,
        lease_ms: int,
        prefetch: int,
    ) -> None:
        """`lease(limit, wait)` leases messages, with `wait` also those still to come; `release` returns them."""
        self._lease = lease
        self._release = release
        self._pace = HandlerPace(lease_ms, lanes, prefetch)
        self._lease_seconds = lease_ms / 1000
        self._mutex = Mutex()
        self._buffer: deque[tuple[float, LeasedMessage]] = deque()  # With the time of its lease.
        self._idle: deque[OneShotEvent] = deque()  # Lanes that wait for a message.
        self._room = OneShotEvent()
        # True if the queue had too few messages for the last request; reset when the buffer is empty.
        self._is_queue_empty = False
        self._stopped = False

    async def take(self) -> LeasedMessage | None:
        """Return the next message, or None after a stop."""
        while True:
            with self._mutex:
                message = self._pop()
                if self._stopped or message is not None:
                    self._ask_for_more()
                    return message
                waiter = OneShotEvent()
                self._idle.append(waiter)
                self._ask_for_more()
            await waiter.wait()

    def _pop(self) -> LeasedMessage | None:
        while self._buffer and not self._stopped:
            leased_at, message = self._buffer.popleft()
            # After a pause of the whole process another consumer may have the message.
            if time.monotonic() - leased_at < self._lease_seconds:
                return message
        return None

    def finished(self, message: LeasedMessage, seconds: float) -> None:
        """Record how long the handler took."""
        with self._mutex:
            self._pace.finished(message.size, seconds)

    async def run(self, stop: StopSignal) -> None:
        """Keep the buffer filled until stopped; then release what was not started."""
        watch = stop.watch(self._on_stop)
        try:
            while not stop.is_set:
                wanted = self._wanted()
                if wanted:
                    # A long poll would keep this task from releasing messages that are buffered for too long.
                    wait = not self._buffer
                    messages = await self._lease(wanted, wait)
                    self._is_queue_empty = len(messages) < wanted
                    self._add(messages)
                else:
                    await self._room.wait(self._pace.hold_seconds if self._buffer else None)
                    await self._release_overdue()
        finally:
            stop.unwatch(watch)
            self._on_stop()
            await self._release(self._drain())

    def _can_refill(self) -> bool:
        """Return True if the buffer is half empty, or empty if the queue had no more: each refill is one request."""
        return len(self._buffer) <= (0 if self._is_queue_empty else self._pace.ahead() // 2)

    def _ask_for_more(self) -> None:
        if self._can_refill():
            self._room.set()

    def _wanted(self) -> int:
        with self._mutex:
            return max(0, len(self._idle) + self._pace.ahead() - len(self._buffer)) if self._can_refill() else 0

    def _add(self, messages: Messages) -> None:
        now = time.monotonic()
        with self._mutex:
            self._buffer.extend((now, message) for message in messages)
            woken = [self._idle.popleft() for _ in range(min(len(messages), len(self._idle)))]
        for waiter in woken:
            waiter.set()

    async def _release_overdue(self) -> None:
        with self._mutex:
            if not self._buffer or time.monotonic() - self._buffer[0][0] < self._pace.hold_seconds:
                return
            self._pace.overdue()
        await self._release(self._drain())

    def _drain(self) -> Messages:
        with self._mutex:
            messages = [message for _, message in self._buffer]
            self._buffer.clear()
        return messages

    def _on_stop(self) -> None:
        with self._mutex:
            self._stopped = True
            woken = list(self._idle)
            self._idle.clear()
        for waiter in woken:
            waiter.set()
        self._room.set()
