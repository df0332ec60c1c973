"""Live queue events for subscribers, read from the journal, so that every server reports what any server did.

One task reads the journal for all subscribers, and only while there are any. It merges consecutive events of the same
queue and kind into one with a count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.events import Events, QueueEvent, Subscription
from penstock.errors import PenstockError
from penstock.journal.drainer import NAME
from penstock.journal.events import Event
from penstock.journal.reader import Journal
from penstock.server.log_waiters import LogWaiters

PAGE_RECORDS = 100
# A subscriber that is further behind skips to the end and receives a `missed` event.
BEHIND_RECORDS_MAX = 10_000
LOOK_SECONDS = 60.0
RETRY_SECONDS = 1.0
QUEUE_EVENT_NAMES = {"removed": "dropped"}


class EventBroadcaster:
    """Delivers journal events to the subscribers of each queue."""

    def __init__(self, broker: Broker, reader: Journal, log_waiters: LogWaiters, drain_now: Callable[[], None]) -> None:
        """Create a broadcaster; `drain_now` makes the drainer copy this server's events to the journal at once."""
        self._broker = broker
        self._reader = reader
        self._log_waiters = log_waiters
        self._drain_now = drain_now
        self._events = Events()
        self._following: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[int] | None = None

    @asynccontextmanager
    async def subscribe(self, queue: str) -> AsyncIterator[Subscription]:
        """Subscribe to a queue's events from now on; without a journal, only to what happens on this server."""
        info = await self._broker.find_queue(queue)
        if info is not None and info.options.journal == "off":
            with self._broker.events.subscribe(queue) as subscription:
                yield subscription
            return
        with self._events.subscribe(queue) as subscription, self._broker.events.listen(queue, self._drain_now):
            if self._following is None:
                self._begun = asyncio.ensure_future(asyncio.to_thread(self._reader.next_offset))
                self._following = asyncio.create_task(self._follow(self._begun))
            assert self._begun is not None
            await asyncio.shield(self._begun)
            try:
                yield subscription
            finally:
                self._log_waiters.wake(NAME)

    async def next_offset(self) -> int:
        """Return the offset of the journal's next record."""
        return await asyncio.to_thread(self._reader.next_offset)

    async def since(self, queue: str, offset: int) -> AsyncIterator[tuple[list[QueueEvent], int]]:
        """Yield a queue's journal events from `offset` on, page by page, each page with the offset after it."""
        first, end = await asyncio.to_thread(lambda: (self._reader.first_offset, self._reader.next_offset()))
        at = max(offset, first)
        if end - at > BEHIND_RECORDS_MAX:
            at = end
        if at > offset:
            yield [("missed", {"records": at - offset}, at - 1)], at
        while at < end:
            page = await asyncio.to_thread(partial(self._reader.read, at, limit=PAGE_RECORDS, queue=queue))
            at = page.next
            yield [(kind, {"queue": queue, **data}, last) for _, kind, data, last in _joined(page.events)], at

    def close(self) -> None:
        self._events.close()

    async def _follow(self, begun: asyncio.Future[int]) -> None:
        try:
            offset = await begun
            while self._events.has_listeners and not self._log_waiters.closed:
                try:
                    offset = await self._step(offset)
                except PenstockError:
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._following = None

    async def _step(self, offset: int) -> int:
        end = await asyncio.to_thread(self._reader.next_offset)
        if end - offset > BEHIND_RECORDS_MAX:
            self._events.broadcast("missed", {"records": end - offset})
            return end
        page = await asyncio.to_thread(lambda: self._reader.read(offset, limit=PAGE_RECORDS))
        for queue, kind, data, last in _joined(page.events):
            self._events.publish(queue, kind, offset=last, **data)
        if page.next == offset:
            await self._log_waiters.wait(NAME, offset, LOOK_SECONDS)
        return page.next


def _joined(events: Iterable[Event]) -> list[tuple[str, str, dict[str, Any], int]]:
    """Merge consecutive events of the same queue and kind into one with a count and the last offset."""
    found: list[tuple[str, str, dict[str, Any], int]] = []
    for event in events:
        if event.kind == "queue":
            what = event.details["what"]
            found.append((event.queue, QUEUE_EVENT_NAMES.get(what, what), {}, event.offset))
        elif found and found[-1][:2] == (event.queue, event.kind):
            count = found[-1][2]["count"] + 1
            found[-1] = (event.queue, event.kind, {"count": count}, event.offset)
        else:
            found.append((event.queue, event.kind, {"count": 1}, event.offset))
    return found
