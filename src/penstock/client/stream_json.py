"""The JSON of the stream API on the client's side, and the attributes of its errors."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from penstock import errors
from penstock.client.http11 import HttpResponse
from penstock.client.stream_types import Appended
from penstock.core.model import Content
from penstock.log.model import FLAGS, Consumer, LogPage, LogRecord, NewRecord, StreamInfo, StreamOptions, Trimmed

ARROW = b"application/vnd.apache.arrow.stream"
NEXT_HEADER = b"x-penstock-next"
# Size of one request; larger data takes several.
ARROW_BYTES = 8 << 20
_any = msgspec.json.Decoder()


class Encoded(Struct):
    data: str | Raw
    encoding: Literal["base64", "json"]


class RecordView(Struct):
    offset: int
    timestamp: int
    data: Raw
    encoding: str | None = None

    def to_model(self) -> LogRecord:
        data, content = bytes(self.data), Content.JSON
        if data[:1] == b'"':
            text = msgspec.json.decode(data, type=str)
            data, content = text.encode(), Content.TEXT
            if self.encoding == "base64":
                data, content = base64.b64decode(text), Content.BYTES
        return LogRecord(self.offset, self.timestamp, data, flags=FLAGS[content])


class PageView(Struct):
    records: list[RecordView]
    next: int
    lost: int = 0

    def to_model(self) -> LogPage:
        return LogPage([record.to_model() for record in self.records], self.next, self.lost)


class ConsumerView(Struct):
    consumer: str
    offset: int | None
    lag: int
    seen_at: int
    created_at: int
    kind: Literal["consumer", "pipeline"]
    expired: bool

    def to_model(self) -> Consumer:
        return Consumer(
            name=self.consumer,
            offset=self.offset,
            seen_ms=self.seen_at,
            created_ms=self.created_at,
            kind=self.kind,
            lag=self.lag,
            expired=self.expired,
        )


class ConsumerList(Struct):
    consumers: list[ConsumerView]


class StreamView(Struct):
    name: str
    options: StreamOptions
    created_at: int
    first: int
    next: int
    bytes: int
    segment_count: int
    consumer_count: int

    def to_model(self) -> StreamInfo:
        return StreamInfo(
            name=self.name,
            options=self.options,
            created_ms=self.created_at,
            first=self.first,
            next=self.next,
            bytes=self.bytes,
            segments=self.segment_count,
            consumers=self.consumer_count,
        )


class StreamList(Struct):
    streams: list[StreamView]
    next: str | None = None


appended = msgspec.json.Decoder(Appended)
page = msgspec.json.Decoder(PageView)
consumer = msgspec.json.Decoder(ConsumerView)
consumer_list = msgspec.json.Decoder(ConsumerList)
stream = msgspec.json.Decoder(StreamView)
stream_list = msgspec.json.Decoder(StreamList)
trimmed = msgspec.json.Decoder(Trimmed)


def one_record(record: NewRecord) -> str | Raw | Encoded:
    if record.content is Content.TEXT:
        return record.data.decode()
    if record.content is Content.BYTES:
        return Encoded(base64.b64encode(record.data).decode(), "base64")
    if b'"encoding"' in record.data and _looks_encoded(_any.decode(record.data)):
        return Encoded(Raw(record.data), "json")
    return Raw(record.data)


def _looks_encoded(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"data", "encoding"}


def arrow_bodies(batches: Iterable[Any]) -> Iterator[bytes]:
    """Yield the batches as IPC streams of bounded size."""
    import pyarrow as pa

    for batch in batches:
        rows = max(1, len(batch) * ARROW_BYTES // max(1, batch.nbytes))
        for start in range(0, len(batch), rows):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch.slice(start, rows))
            yield sink.getvalue().to_pybytes()


def arrow_page(answer: HttpResponse) -> tuple[int, list[Any]]:
    import pyarrow as pa

    try:
        return int(answer.headers[NEXT_HEADER]), list(pa.ipc.open_stream(answer.body))
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise errors.ServerFault(
            f"the response is not Arrow: {error}",
            status=answer.status,
            hint="is that a Penstock server of this version?",
        ) from None


def error_data(error: errors.PenstockError, stream: str | None, place: dict[str, Any] | None) -> dict[str, Any]:
    """Return the attributes of a stream's error, parsed from its text where the response has no field for them."""
    text, hint = str(error.args[0]), error.hint or ""
    data: dict[str, Any] = {"stream": stream}
    if isinstance(error, errors.CorruptRecord):
        data |= place or {"offset": _after("record ", text), "segment": "", "position": None}
    elif isinstance(error, errors.OffsetTrimmed):
        data |= {"offset": _after("offset ", text), "first_offset": _after("kept is ", hint)}
    elif isinstance(error, errors.OffsetBeyondEnd):
        data |= {"offset": _after("and ", text), "next_offset": _after("offset ", text)}
    elif isinstance(error, errors.PositionMovesBack):
        data |= {"offset": _after("and ", text), "committed": _after(" is at ", text)}
    elif isinstance(error, errors.StreamExists):
        data["differing"] = text.rpartition(": ")[2].split(", ")
    elif isinstance(error, errors.StreamInUse):
        data["consumers"] = text.rpartition(": ")[2].removesuffix(" …").split(", ")
    if isinstance(error, errors.PositionMovesBack | errors.UnknownConsumer):
        found = re.search(r"consumer '([^']*)'", text)
        data["consumer"] = found[1] if found else None
    return data


STREAM_ERRORS = (
    errors.CorruptRecord,
    errors.OffsetTrimmed,
    errors.OffsetBeyondEnd,
    errors.PositionMovesBack,
    errors.StreamExists,
    errors.StreamInUse,
    errors.UnknownConsumer,
    errors.UnknownStream,
)


def _after(words: str, text: str) -> int:
    found = re.search(re.escape(words) + r"(\d+)", text)
    return int(found[1]) if found else 0
