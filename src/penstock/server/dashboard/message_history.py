"""The history of one message from the journal: `/queues/{queue}/messages/{id}/events`.

The journal has no index of messages. The search starts at the time of the push and reads only the heads of records, for
at most a quarter of a second; the response says where to continue.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from penstock.broker.broker import Broker
from penstock.journal.events import Event, head_of, ids_of
from penstock.journal.reader import Journal, events_of
from penstock.log.model import LogRecord
from penstock.server.api.queues.mapping import message_id
from penstock.server.http.messages import Request, Response, reply
from penstock.server.routing import Route
from penstock.wire.journal import EventView, event_view
from penstock.wire.queue_views import message_view
from penstock.wire.queues import MessageView

SECONDS_MAX = 0.25
PAGE_RECORDS = 2_000
PAGE_BYTES = 4 << 20
EVENTS_MAX = 500
# Records are in commit order, in which timestamps may be slightly out of order.
MARGIN_MS = 2_000
ENDS = {"acked", "expired", "removed", "forgotten", "dead"}


class MessageHistoryQuery(Struct, forbid_unknown_fields=True):
    at: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Time of the push (part of the UUID), for a message that no longer exists."""
    from_: Annotated[int, Meta(ge=0, le=2**53)] | None = field(name="from", default=None)
    """The `next` of an earlier response."""


class MessageHistory(Struct):
    message: MessageView | None
    """Current state; null if the message no longer exists."""
    events: list[EventView]
    next: int | None
    """Offset at which to continue; null when the history is complete."""
    end: int
    """End of the searched range; later events are found from here on."""
    searched_until: int | None
    """Time of the last record searched."""


# Events, next, end and searched_until of a `MessageHistory`.
Found = tuple[list[EventView], int | None, int, int | None]


class MessageHistories:
    def __init__(self, broker: Broker, reader: Journal, call: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._broker = broker
        self._reader = reader
        self._call = call

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/queues/{queue}/messages/{id}/events",
                self.events,
                "Show a message's history from the journal, also after its removal",
                "consume",
                tag="queues",
                query=MessageHistoryQuery,
                answers={200: MessageHistory},
                errors=(410,),
            )
        ]

    async def events(self, request: Request) -> Response:
        query = request.query(MessageHistoryQuery)
        queue, number = message_id(request)
        message = await self._broker.get(queue, number)
        pushed_at = query.at if message is None else message.created_at
        search = partial(self._search, queue, number, query.from_, pushed_at, message is None)
        history = MessageHistory(None if message is None else message_view(message), *await self._call(search))
        return reply(history, rows=len(history.events))

    def _search(self, queue: str, number: int, offset: int | None, pushed_at: int | None, is_removed: bool) -> Found:
        reader = self._reader
        end, deadline = reader.next_offset(), time.monotonic() + SECONDS_MAX
        if offset is None:
            offset = reader.first_offset if pushed_at is None else self._offset_at(pushed_at - MARGIN_MS, end)
        found: list[Event] = []
        until: int | None = None
        while offset < end:
            page = reader.records(offset, limit=PAGE_RECORDS, bytes_max=PAGE_BYTES)
            for record in page.records:
                if _concerns(record, queue, number):
                    found += [event for event in events_of([record], queue, None) if event.id == number]
            if page.records:
                until = page.records[-1].time_ms
            offset = page.next
            over = is_removed and any(_is_end(event) for event in found)
            if over or page.next >= end:
                return [event_view(event) for event in found], None, offset, until
            if time.monotonic() > deadline or len(found) >= EVENTS_MAX:
                break
        more = offset if offset < end else None
        return [event_view(event) for event in found], more, offset, until

    def _offset_at(self, at: int, end: int) -> int:
        """Return the offset of the first record at or after this time."""
        low, high = self._reader.first_offset, end
        while low < high:
            middle = (low + high) // 2
            page = self._reader.records(middle, limit=1)
            if page.records and page.records[0].time_ms < at:
                low = middle + 1
            else:
                high = middle
        return low


def _concerns(record: LogRecord, queue: str, number: int) -> bool:
    return head_of(record.data)[0] == queue and number in ids_of(record.data)


def _is_end(event: Event) -> bool:
    return event.kind in ENDS and "kept" not in event.marks and (event.kind != "dead" or "gone" in event.marks)
