"""JSON schemas of the stream API, shared by server, SDK and CLI. Times are milliseconds since 1970."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.log.check_report import Finding, Report
from penstock.log.consumers import NAME_PATTERN
from penstock.log.model import (
    BATCH_RECORDS_MAX,
    Consumer,
    LogRecord,
    SegmentInfo,
    StreamInfo,
    StreamOptions,
)
from penstock.log.reader import OFFSET_MAX
from penstock.wire import payloads

ARROW_RECORDS_MAX = 1_000_000
SEGMENTS_SHOWN_MAX = 1_000
Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
ConsumerName = Annotated[str, Meta(pattern=f"^{NAME_PATTERN}$")]
Limit = Annotated[int, Meta(ge=1, le=ARROW_RECORDS_MAX)]
WaitMs = Annotated[int, Meta(ge=0, le=600_000)]
Columns = Annotated[str, Meta(max_length=500)]

_options = [(field.name, field.type | UnsetType, UNSET) for field in msgspec.structs.fields(StreamOptions)]
StreamChanges: Any = msgspec.defstruct("StreamChanges", _options, forbid_unknown_fields=True, kw_only=True)
CreateStream: Any = msgspec.defstruct(
    "CreateStream", [("name", str)], bases=(StreamChanges,), forbid_unknown_fields=True, kw_only=True
)


class StreamView(Struct, kw_only=True):
    name: str
    options: StreamOptions
    created_at: int
    first: int
    """The first offset that exists."""
    next: int
    """The offset of the next record."""
    bytes: int
    segment_count: int
    consumer_count: int


class SegmentView(Struct):
    first: int
    records: int
    bytes: int
    sealed: bool


class ConsumerView(Struct, kw_only=True):
    consumer: str
    offset: int | None
    """Offset of the last processed record; null before the first."""
    lag: int
    seen_at: int
    created_at: int
    kind: Annotated[str, Meta(extra_json_schema={"enum": ["consumer", "pipeline"]})]
    expired: bool


class StreamDetail(StreamView, kw_only=True):
    segments: list[SegmentView]
    """Segments, oldest first; if there are very many, only the newest."""
    consumers: list[ConsumerView]


class StreamList(Struct):
    streams: list[StreamView]
    next: str | None = None


class StreamListQuery(Struct, forbid_unknown_fields=True):
    prefix: str = ""
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class DropStreamQuery(Struct, forbid_unknown_fields=True):
    force: bool = False


class DroppedStream(Struct):
    dropped: str


class AppendBody(Struct, forbid_unknown_fields=True):
    """Each record is a string, any JSON value, or `{"data", "encoding": "base64"}`; with the encoding `json`, data is
    any JSON value, even one that looks like this."""

    records: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=BATCH_RECORDS_MAX)]


class AppendQuery(Struct, forbid_unknown_fields=True):
    since: Offset | None = None
    """With a key: search for this append from this offset on, however old it is, and append only if it is not
    found."""


class EncodedRecord(Struct, forbid_unknown_fields=True):
    data: msgspec.Raw
    encoding: Literal["base64", "json"]


class Appended(Struct, frozen=True):
    """Offsets of the appended records. Other records may lie between the parts of a very large append."""

    first: int
    last: int
    records: int


class ReadQuery(Struct, forbid_unknown_fields=True):
    from_: Offset | None = msgspec.field(name="from", default=None)
    limit: Limit | None = None
    wait_ms: WaitMs = 0
    columns: Columns | None = None
    """Columns of an Arrow response, separated by commas; `offset` is always included."""


class NextQuery(Struct, forbid_unknown_fields=True):
    consumer: ConsumerName
    limit: Limit | None = None
    wait_ms: WaitMs = 0


class RecordView(Struct, omit_defaults=True):
    offset: int
    timestamp: int
    data: msgspec.Raw
    encoding: Literal["base64"] | None = None


class PageView(Struct, omit_defaults=True):
    records: list[RecordView]
    next: int
    """Offset at which to continue."""
    lost: int = 0
    """Number of offsets skipped because a repair could not recover their records."""


class NewConsumer(Struct, forbid_unknown_fields=True):
    consumer: ConsumerName | None = None
    """Name of the consumer; by default a unique generated one."""
    kind: Literal["consumer", "pipeline"] = "consumer"


class ConsumerList(Struct):
    consumers: list[ConsumerView]


class Position(Struct, forbid_unknown_fields=True):
    offset: Annotated[int, Meta(ge=-1, le=OFFSET_MAX)]
    """Offset of the last processed record; -1 for none."""
    force: bool = False
    kind: Literal["consumer", "pipeline"] = "consumer"


class TrimBody(Struct, forbid_unknown_fields=True):
    before: Offset | None = None
    """Remove whole segments before this offset; by default, what retention allows."""
    force: bool = False


class ReportView(Struct):
    stream: str
    ok: bool
    segments: int
    records: int
    bytes: int
    first: int
    next: int
    findings: list[Finding]


def stream_view(info: StreamInfo) -> StreamView:
    return StreamView(**_shown(info))


def stream_detail(info: StreamInfo, segments: list[SegmentInfo], consumers: list[Consumer]) -> StreamDetail:
    return StreamDetail(
        **_shown(info),
        segments=[
            SegmentView(each.first, each.records, each.bytes, each.sealed) for each in segments[-SEGMENTS_SHOWN_MAX:]
        ],
        consumers=[consumer_view(each) for each in consumers],
    )


def _shown(info: StreamInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "options": info.options,
        "created_at": info.created_ms,
        "first": info.first,
        "next": info.next,
        "bytes": info.bytes,
        "segment_count": info.segments,
        "consumer_count": info.consumers,
    }


def consumer_view(consumer: Consumer) -> ConsumerView:
    return ConsumerView(
        consumer=consumer.name,
        offset=consumer.offset,
        lag=consumer.lag,
        seen_at=consumer.seen_ms,
        created_at=consumer.created_ms,
        kind=consumer.kind,
        expired=consumer.expired,
    )


def record_view(record: LogRecord) -> RecordView:
    data, encoding = payloads.show(record.data, record.content)
    return RecordView(record.offset, record.time_ms, data, encoding)  # type: ignore[arg-type]


def report_view(report: Report) -> ReportView:
    return ReportView(
        report.stream,
        report.ok,
        report.segments,
        report.records,
        report.bytes,
        report.first,
        report.next,
        report.findings,
    )
