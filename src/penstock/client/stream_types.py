"""What the SDK takes and answers of streams, the same for sync and async."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from msgspec import Struct

from penstock.client import payloads
from penstock.core.model import Content
from penstock.log.model import LogPage as StoredPage
from penstock.log.model import NewRecord

Commit = Literal["batch", "record", "manual"]


class Record(Struct, frozen=True):
    """One entry of a stream."""

    offset: int
    timestamp: int
    """When it was appended, in milliseconds since 1970."""
    data: Any
    """What was appended: bytes, a string, or another JSON value."""


class Records(list[Record]):
    """A page of a stream; read on from `next`."""

    def __init__(self, records: list[Record], next: int, lost: int = 0) -> None:
        super().__init__(records)
        self.next = next
        self.lost = lost
        """Offsets passed over because a repair found their records beyond help."""


class Appended(Struct, frozen=True):
    """Where the records of an append went. Between the parts of a very large one there may be records of others."""

    first: int
    last: int
    records: int


class StreamChanges(TypedDict, total=False):
    """A stream's options, as `penstock.StreamOptions` has them."""

    segment_bytes: int
    retention_bytes: int | None
    retention_ms: int | None
    consumer_expire_ms: int
    hold_bytes: int | None
    record_bytes: int


def to_record(data: Any) -> NewRecord:
    """Bytes are kept as they are, a string as its text, anything else as JSON."""
    if isinstance(data, str):
        try:
            return NewRecord(data.encode(), Content.TEXT)
        except UnicodeEncodeError:
            pass  # Refused below, with the reason.
    return NewRecord(*payloads.encode(data))


def to_records(page: StoredPage) -> Records:
    records = [
        Record(record.offset, record.time_ms, payloads.decode(record.data, record.content)) for record in page.records
    ]
    return Records(records, page.next, page.lost)


def joined(parts: list[Appended]) -> Appended:
    return Appended(parts[0].first, parts[-1].last, sum(part.records for part in parts))
