"""Events of queues for those who listen to them, told from the journal: so on every server, whoever did it.

The journal is read once for all, and only while someone listens. Alike events that are read together are told as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.events import Events, Happening, Subscription
from penstock.errors import PenstockError
from penstock.journal.drainer import NAME
from penstock.journal.events import Event
from penstock.server.api.journal import Journal
from penstock.server.log_waiters import LogWaiters

PAGE_RECORDS = 100
# Further behind than this, what lies between is passed over, and those who listen are told so.
BEHIND_RECORDS_MAX = 10_000
LOOK_SECONDS = 60.0
RETRY_SECONDS = 1.0
QUEUE_WORDS = {"removed": "dropped"}


class EventBroadcaster:
    def __init__(self, broker: Broker, reader: Journal, log_waiters: LogWaiters, hurry: Callable[[], None]) -> None:
        """`hurry` makes the journal tell at once what this server has just done."""
        self._broker = broker
        self._reader = reader
        self._log_waiters = log_waiters
        self._hurry = hurry
        self._events = Events()
        self._following: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[int] | None = None

    @asynccontextmanager
    async def subscribe(self, queue: str) -> AsyncIterator[Subscription]:
        """From here on all that happens to the queue is told; a queue without a journal tells what happens here."""
        info = await self._broker.find_queue(queue)
        if info is not None and info.options.journal == "off":
            with self._broker.events.subscribe(queue) as subscription:
                yield subscription
            return
        with self._events.subscribe(queue) as subscription, self._broker.events.listen(queue, self._hurry):
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
        """The offset of what the journal tells next."""
        return await asyncio.to_thread(self._reader.next_offset)

    async def since(self, queue: str, offset: int) -> AsyncIterator[tuple[list[Happening], int]]:
        """Yield what the journal has told of a queue from `offset` on, page by page, each with the offset after it."""
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
            while self._events.listened and not self._log_waiters.closed:
                try:
                    offset = await self._step(offset)
                except PenstockError:
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._following = None

    async def _step(self, offset: int) -> int:
        end = await asyncio.to_thread(self._reader.next_offset)
        if end - offset > BEHIND_RECORDS_MAX:
            self._events.tell_all("missed", {"records": end - offset})
            return end
        page = await asyncio.to_thread(lambda: self._reader.read(offset, limit=PAGE_RECORDS))
        for queue, kind, data, last in _joined(page.events):
            self._events.publish(queue, kind, offset=last, **data)
        if page.next == offset:
            await self._log_waiters.wait(NAME, offset, LOOK_SECONDS)
        return page.next


def _joined(events: Iterable[Event]) -> list[tuple[str, str, dict[str, Any], int]]:
    """Neighbours that tell of the same, as one with a count and the offset of the last."""
    found: list[tuple[str, str, dict[str, Any], int]] = []
    for event in events:
        if event.kind == "queue":
            what = event.details["what"]
            found.append((event.queue, QUEUE_WORDS.get(what, what), {}, event.offset))
        elif found and found[-1][:2] == (event.queue, event.kind):
            count = found[-1][2]["count"] + 1
            found[-1] = (event.queue, event.kind, {"count": count}, event.offset)
        else:
            found.append((event.queue, event.kind, {"count": 1}, event.offset))
    return found
