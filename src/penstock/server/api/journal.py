"""The journal API, `/journal`: all events of messages and queues in order, with long polling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from penstock.config import Settings
from penstock.journal.drainer import NAME
from penstock.journal.reader import EARLIEST, Journal
from penstock.log.model import READ_RECORDS_MAX
from penstock.server.api.streams.pages import ARROW, PAGE_BYTES, answer_page, arrow_page, chosen, wants_arrow
from penstock.server.http.messages import Request, Response, reply
from penstock.server.log_waiters import LogWaiters
from penstock.server.routing import Route
from penstock.wire.journal import EventPage, JournalView, event_view
from penstock.wire.queues import Done
from penstock.wire.streams import Columns, ConsumerView, Position, consumer_view

T = TypeVar("T")
ARROW_RECORDS_MAX = 100_000
LIMIT_DEFAULT = 1_000
_position = msgspec.json.Decoder(Position)


class EventsQuery(Struct, forbid_unknown_fields=True):
    from_: Annotated[int, Meta(ge=0, le=2**53)] | None = msgspec.field(name="from", default=None)
    """First offset; by default the earliest in the journal."""
    limit: Annotated[int, Meta(ge=1, le=ARROW_RECORDS_MAX)] | None = None
    """Limit of records, each of which has one event of one or many messages."""
    wait_ms: Annotated[int, Meta(ge=0, le=600_000)] = 0
    queue: str | None = None
    kind: str | None = None
    """Event kinds, separated by commas."""
    columns: Columns | None = None
    """Columns of an Arrow response, separated by commas; `offset` is always included."""


class JournalApi:
    def __init__(
        self, reader: Journal, settings: Settings, call: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        self.reader = reader
        self._settings = settings
        self._call = call
        self.log_waiters = LogWaiters(reader, call)

    def routes(self) -> list[Route]:
        at = partial(Route, tag="journal")
        one = "/journal/consumers/{consumer}"
        return [
            at("GET", "/journal", self.show, "Show offsets, size and consumers", answers={200: JournalView}),
            at(
                "GET",
                "/journal/events",
                self.events,
                "Read events in order from any retained offset; wait_ms waits for new ones",
                query=EventsQuery,
                answers={200: (EventPage, ARROW)},
                errors=(406, 410),
            ),
            at("PUT", one, self.commit, "Commit a position", body=Position, answers={200: ConsumerView}, errors=(409,)),
            at("DELETE", one, self.forget, "Forget a consumer", answers={200: Done}),
        ]

    async def show(self, request: Request) -> Response:
        reader = self.reader

        def read_page() -> Response:
            segments = reader.segments()
            size = sum(segment.bytes for segment in segments)
            consumers = [consumer_view(each) for each in reader.consumers()]
            return reply(
                JournalView(reader.uid, reader.first_offset, reader.next_offset(), size, len(segments), consumers)
            )

        answer: Response = await self._call(read_page)
        return answer

    async def events(self, request: Request) -> Response:
        query = request.query(EventsQuery)
        offset = EARLIEST if query.from_ is None else query.from_
        read_page = partial(self._arrow if wants_arrow(request) else self._json, offset, query)
        return await answer_page(request, self.log_waiters, self._settings, NAME, read_page, query.wait_ms)

    def _json(self, offset: int, query: EventsQuery) -> tuple[Response, int | None]:
        limit = min(query.limit or LIMIT_DEFAULT, READ_RECORDS_MAX)
        kinds = None if query.kind is None else query.kind.split(",")
        page = self.reader.read(offset, limit=limit, bytes_max=PAGE_BYTES, queue=query.queue, kinds=kinds)
        nothing_new = page.next == max(offset, 0) and not page.events
        view = EventPage([event_view(event) for event in page.events], page.next)
        return reply(view, rows=len(page.events)), page.next if nothing_new else None

    def _arrow(self, offset: int, query: EventsQuery) -> tuple[Response, int | None]:
        from penstock.journal.arrow import SCHEMA

        if offset == EARLIEST:
            offset = self.reader.first_offset
        end = max(offset, min(self.reader.next_offset(), offset + (query.limit or ARROW_RECORDS_MAX)))
        shape = chosen(SCHEMA, query.columns)
        return arrow_page(shape, partial(self.reader.read_arrow, columns=shape.names), offset, end)

    async def commit(self, request: Request) -> Response:
        body, consumer = await request.json(_position), request.params["consumer"]
        commit = partial(self.reader.commit, consumer, body.offset, force=body.force, kind=body.kind)
        return reply(consumer_view(await self._call(commit)))

    async def forget(self, request: Request) -> Response:
        await self._call(partial(self.reader.forget, request.params["consumer"]))
        return reply(Done())
