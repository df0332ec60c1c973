"""Converts between the JSON schemas of the stream API and the client's types."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from penstock import errors
from penstock.client.http11 import HttpResponse
from penstock.core.model import Content
from penstock.core.options import reported_options
from penstock.log.model import FLAGS, Consumer, LogPage, LogRecord, NewRecord, StreamInfo, StreamOptions, Trimmed
from penstock.wire import streams as wire

ARROW = b"application/vnd.apache.arrow.stream"
NEXT_HEADER = b"x-penstock-next"
# Size of one request; larger data takes several.
ARROW_BYTES = 8 << 20
_any = msgspec.json.Decoder()


class ReportedStream(wire.StreamView, kw_only=True):
    """A stream as a server reports it that may be newer than this client."""

    options: dict[str, Any]  # type: ignore[assignment]


class ReportedStreams(Struct):
    streams: list[ReportedStream]
    next: str | None = None


appended = msgspec.json.Decoder(wire.Appended)
page = msgspec.json.Decoder(wire.PageView)
consumer = msgspec.json.Decoder(wire.ConsumerView)
consumer_list = msgspec.json.Decoder(wire.ConsumerList)
stream = msgspec.json.Decoder(ReportedStream)
stream_list = msgspec.json.Decoder(ReportedStreams)
trimmed = msgspec.json.Decoder(Trimmed)


def log_page(page: wire.PageView) -> LogPage:
    return LogPage([_log_record(record) for record in page.records], page.next, page.lost)


def _log_record(record: wire.RecordView) -> LogRecord:
    data, content = bytes(record.data), Content.JSON
    if data[:1] == b'"':
        text = msgspec.json.decode(data, type=str)
        data, content = text.encode(), Content.TEXT
        if record.encoding == "base64":
            data, content = base64.b64decode(text), Content.BYTES
    return LogRecord(record.offset, record.timestamp, data, flags=FLAGS[content])


def stream_consumer(consumer: wire.ConsumerView) -> Consumer:
    return Consumer(
        name=consumer.consumer,
        offset=consumer.offset,
        seen_ms=consumer.seen_at,
        created_ms=consumer.created_at,
        kind=consumer.kind,
        lag=consumer.lag,
        expired=consumer.expired,
    )


def stream_info(stream: ReportedStream) -> StreamInfo:
    return StreamInfo(
        name=stream.name,
        options=reported_options(StreamOptions, stream.options),
        created_ms=stream.created_at,
        first=stream.first,
        next=stream.next,
        bytes=stream.bytes,
        segments=stream.segment_count,
        consumers=stream.consumer_count,
    )


def one_record(record: NewRecord) -> str | Raw | wire.EncodedRecord:
    if record.content is Content.TEXT:
        return record.data.decode()
    if record.content is Content.BYTES:
        return wire.EncodedRecord(Raw(b'"%s"' % base64.b64encode(record.data)), "base64")
    if b'"encoding"' in record.data and _looks_encoded(_any.decode(record.data)):
        return wire.EncodedRecord(Raw(record.data), "json")
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
