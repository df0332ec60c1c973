"""JSON schemas of the journal API. Times are milliseconds since 1970."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from penstock.core.model import Content
from penstock.journal.events import Event
from penstock.wire.payloads import show
from penstock.wire.streams import ConsumerView


class EventView(Struct, kw_only=True, omit_defaults=True):
    offset: int
    number: int
    """Position among the events of its record."""
    at: int
    kind: str
    queue: str
    id: int | None = None
    uuid: str | None = None
    pushed_at: int | None = None
    first_leased_at: int | None = None
    leased_at: int | None = None
    until: int | None = None
    attempts: int = 0
    priority: int = 0
    marks: list[str] = []
    details: dict[str, Any] = {}
    payload: Any = None
    encoding: str | None = None


class EventPage(Struct):
    events: list[EventView]
    next: int


class JournalView(Struct):
    uid: str
    """The same for as long as offsets mean the same events; empty before the first."""
    first: int
    next: int
    bytes: int
    segments: int
    consumers: list[ConsumerView]


def event_view(event: Event) -> EventView:
    payload, encoding = (None, None) if event.body is None else show(event.body, event.content or Content.BYTES)
    return EventView(
        offset=event.offset,
        number=event.number,
        at=event.at,
        kind=event.kind,
        queue=event.queue,
        id=event.id,
        uuid=event.uuid,
        pushed_at=event.pushed_at,
        first_leased_at=event.first_leased_at,
        leased_at=event.leased_at,
        until=event.until,
        attempts=event.attempts,
        priority=event.priority,
        marks=event.marks,
        details=event.details,
        payload=payload,
        encoding=encoding,
    )
