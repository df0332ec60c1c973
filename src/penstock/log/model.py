"""Data types of the log: records, pages, options, streams and consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from penstock.core.model import DAY_MS, Content
from penstock.core.options import Options, options_decoder
from penstock.errors import BatchTooLarge, InvalidInput, PayloadTooLarge, WrongType

MIB = 1 << 20
SEGMENT_BYTES_MIN = 64 << 10
SEGMENT_BYTES_MAX = 64 * MIB
RECORD_BYTES_MAX = 16 * MIB
BATCH_RECORDS_MAX = 10_000
BATCH_BYTES_MAX = 32 * MIB
CONSUMERS_MAX = 1_000
READ_RECORDS_MAX = 10_000
READ_BYTES_MAX = 32 * MIB
TIME_MS_MAX = 3650 * DAY_MS

Positive = Annotated[int, Meta(ge=1, le=2**53)]


class StreamOptions(Options, frozen=True, kw_only=True):
    segment_bytes: Annotated[int, Meta(ge=SEGMENT_BYTES_MIN, le=SEGMENT_BYTES_MAX)] = SEGMENT_BYTES_MAX
    """Size at which a segment is sealed."""
    retention_bytes: Positive | None = None
    """Total size above which the oldest sealed segments are removed."""
    retention_ms: Annotated[int, Meta(ge=1, le=TIME_MS_MAX)] | None = None
    """Age of its newest record at which a segment is removed."""
    consumer_expire_ms: Annotated[int, Meta(ge=1, le=TIME_MS_MAX)] = 7 * DAY_MS
    """Time without activity after which retention no longer waits for a consumer."""
    hold_bytes: Positive | None = None
    """Maximum size retained only because a consumer still needs it."""
    record_bytes: Annotated[int, Meta(ge=1, le=RECORD_BYTES_MAX)] = 512 << 10
    """Maximum size of a record."""


decode_stream_options = options_decoder(StreamOptions)


class NewRecord(Struct, frozen=True, gc=False):
    data: bytes
    content: Content = Content.BYTES
    tag: int = 0
    """Hash of the append's idempotency key, stored with the record to recognize a repeated append."""


class LogRecord(Struct, frozen=True, gc=False):
    offset: int
    time_ms: int
    data: bytes
    kind: int = 0
    """0 for a user's record; journal events have other kinds."""
    flags: int = 0
    field_bytes: int = 0
    """Number of bytes of `data` that are fixed fields."""
    tag: int = 0

    @property
    def content(self) -> Content:
        return CONTENTS[self.flags & 0b11]


CONTENTS = (Content.BYTES, Content.TEXT, Content.JSON, Content.BYTES)
FLAGS = {Content.BYTES: 0, Content.TEXT: 1, Content.JSON: 2}
Payload = bytes | NewRecord


class AppendOutcome(Struct, frozen=True, gc=False):
    first: int
    last: int
    time_ms: int


class LogPage(Struct, frozen=True):
    records: list[LogRecord]
    next: int
    """Offset of the next page."""
    lost: int = 0
    """Number of offsets skipped because a repair could not restore their records."""


class Consumer(Struct, frozen=True, kw_only=True):
    name: str
    offset: int | None
    """Offset of the last record it has processed; None before the first."""
    seen_ms: int
    created_ms: int
    kind: str = "consumer"
    """A `pipeline` never expires: unread records are retained until it is deleted."""
    lag: int = 0
    """Number of retained records after its position."""
    expired: bool = False


class SegmentInfo(Struct, frozen=True, kw_only=True):
    first: int
    records: int
    bytes: int
    sealed: bool
    path: str | None = None
    """Path of the file, for readers that map it."""


class StreamInfo(Struct, frozen=True, kw_only=True):
    name: str
    options: StreamOptions
    created_ms: int
    first: int
    next: int
    bytes: int
    segments: int
    consumers: int


class Trimmed(Struct, frozen=True, kw_only=True):
    """Result of a trim, and what stopped it."""

    first: int
    removed_records: int = 0
    removed_bytes: int = 0
    removed_segments: int = 0
    held_by: str | None = None
    """Consumer that still needs the next segment, or `archive`."""


# Called with each sealed segment before it is removed; returning False keeps it for now.
Archive = Callable[[SegmentInfo], bool]


def check_payloads(payloads: Sequence[Payload], record_bytes_max: int) -> list[int]:
    """Raise if the payloads can never be appended; return their lengths."""
    if isinstance(payloads, (bytes, str)):
        raise WrongType("records must be a list of bytes", field="records")
    if not payloads:
        raise InvalidInput("no records to append", field="records")
    if len(payloads) > BATCH_RECORDS_MAX:
        raise BatchTooLarge(
            f"{len(payloads)} records in one append", field="records", hint=f"at most {BATCH_RECORDS_MAX}"
        )
    datas: Sequence[bytes] = payloads  # type: ignore[assignment]
    if set(map(type, payloads)) != {bytes}:
        datas = [payload.data if isinstance(payload, NewRecord) else payload for payload in payloads]
        for data in datas:
            if type(data) is not bytes:
                raise WrongType(f"a record must be bytes, not {type(data).__name__}", field="records")
    lengths = list(map(len, datas))
    if max(lengths) > record_bytes_max:
        raise PayloadTooLarge(f"a record of {max(lengths)} bytes", field="records", hint=f"at most {record_bytes_max}")
    total = sum(lengths)
    if total > BATCH_BYTES_MAX:
        raise BatchTooLarge(f"{total} bytes in one append", field="records", hint=f"at most {BATCH_BYTES_MAX}")
    return lengths
