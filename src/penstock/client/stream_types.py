"""Stream types of the SDK, shared by the synchronous and the asynchronous client."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from msgspec import Struct

from penstock.client import payloads
from penstock.core.model import Content
from penstock.log.model import LogPage as StoredPage
from penstock.log.model import NewRecord
from penstock.wire.streams import Appended

Commit = Literal["batch", "record", "manual"]


class Record(Struct, frozen=True):
    """One entry of a stream."""

    offset: int
    timestamp: int
    """Time of the append, in milliseconds since 1970."""
    data: Any
    """The appended value: bytes, a string, or another JSON value."""


class Records(list[Record]):
    """A page of a stream; continue reading at `next`."""

    def __init__(self, records: list[Record], next: int, lost: int = 0) -> None:
        super().__init__(records)
        self.next = next
        self.lost = lost
        """Number of offsets skipped because a repair could not recover their records."""


class StreamChanges(TypedDict, total=False):
    """Options of a stream; `penstock.StreamOptions` describes them."""

    segment_bytes: int
    retention_bytes: int | None
    retention_ms: int | None
    consumer_expire_ms: int
    hold_bytes: int | None
    record_bytes: int


def to_record(data: Any) -> NewRecord:
    """Encode a record: bytes as they are, a string as text, anything else as JSON."""
    if isinstance(data, str):
        try:
            return NewRecord(data.encode(), Content.TEXT)
        except UnicodeEncodeError:
            pass  # Refused below, with a reason.
    return NewRecord(*payloads.encode(data))


def to_records(page: StoredPage) -> Records:
    records = [
        Record(record.offset, record.time_ms, payloads.decode(record.data, record.content)) for record in page.records
    ]
    return Records(records, page.next, page.lost)


def joined(parts: list[Appended]) -> Appended:
    return Appended(parts[0].first, parts[-1].last, sum(part.records for part in parts))
