"""In-process event subscriptions. Bounded: a slow subscriber loses events and receives a `missed` event."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

BACKLOG_MAX = 1_000

# Kind, details, and the journal offset, if there is one.
QueueEvent = tuple[str, dict[str, Any], int | None]


class Subscription:
    def __init__(self) -> None:
        import asyncio  # Imported here, because only subscribers need it; the embedded library does not.

        self._events: deque[QueueEvent] = deque()
        self._missed = 0
        self._wakeup = asyncio.Event()

    def put(self, event: QueueEvent) -> None:
        if len(self._events) >= BACKLOG_MAX:
            self._missed += 1
        else:
            self._events.append(event)
        self._wakeup.set()

    async def next(self, seconds: float) -> list[QueueEvent]:
        """Return the pending events, waiting up to `seconds` for the first."""
        if not self._events:
            try:
                import asyncio

                async with asyncio.timeout(seconds):
                    await self._wakeup.wait()
            except TimeoutError:
                return []
        self._wakeup.clear()
        events = list(self._events)
        self._events.clear()
        if self._missed:
            events.append(("missed", {"events": self._missed}, None))
            self._missed = 0
        return events

    def wake(self) -> None:
        self._wakeup.set()


class _Callback:
    """A subscriber that only needs to know that there are events."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify

    def put(self, event: QueueEvent) -> None:
        self._notify()

    def wake(self) -> None:
        pass


class Events:
    """Subscriptions by queue."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[Subscription | _Callback]] = {}

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    @contextmanager
    def subscribe(self, queue: str) -> Iterator[Subscription]:
        subscription = Subscription()
        with self._added(queue, subscription):
            yield subscription

    def listen(self, queue: str, notify: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `notify` on every event of a queue."""
        return self._added(queue, _Callback(notify))

    @contextmanager
    def _added(self, queue: str, listener: Subscription | _Callback) -> Iterator[None]:
        self._listeners.setdefault(queue, set()).add(listener)
        try:
            yield
        finally:
            listeners = self._listeners[queue]
            listeners.discard(listener)
            if not listeners:
                del self._listeners[queue]

    def publish(self, queue: str, kind: str, *, offset: int | None = None, **data: Any) -> None:
        listeners = self._listeners.get(queue)
        if listeners:
            for subscription in listeners:
                subscription.put((kind, {"queue": queue, **data}, offset))

    def broadcast(self, kind: str, data: dict[str, Any]) -> None:
        """Send an event to all subscribers of all queues."""
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.put((kind, data, None))

    def close(self) -> None:
        for listeners in self._listeners.values():
            for subscription in listeners:
                subscription.wake()
