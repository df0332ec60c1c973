"""Reads records from request bodies: raw bytes, JSON, NDJSON or Arrow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from penstock.core.model import Content
from penstock.log.model import NewRecord, Payload
from penstock.server.api import ndjson
from penstock.server.api.arrow_bodies import arrow_batches
from penstock.server.api.streams.pages import ARROW, require_arrow
from penstock.server.http.messages import JSON_TYPES, Request
from penstock.wire.http_errors import HttpError
from penstock.wire.new_records import new_record
from penstock.wire.streams import AppendBody

NDJSON = "application/x-ndjson"
BATCH = 1_000

_append_body = msgspec.json.Decoder(AppendBody)
_any = msgspec.json.Decoder(msgspec.Raw)


def is_streamed(request: Request) -> bool:
    """Return True for a body of any length that is appended in several commits."""
    return request.content_type() in (NDJSON.encode(), ARROW.encode())


async def read_whole(request: Request) -> Sequence[Payload]:
    """Read a body that is appended in one commit: `{"records": [...]}`, or one record of any other type."""
    content_type = request.content_type()
    if content_type in JSON_TYPES or content_type.endswith(b"+json"):
        request.value_max = None  # A stream has its own limit per record.
        body = await request.json(_append_body)
        return [new_record(each, f"records[{number}]") for number, each in enumerate(body.records)]
    data = await request.body()
    if content_type.startswith(b"text/"):
        return [_as_text(data)]
    return [data]


def _as_text(data: bytes) -> NewRecord:
    try:
        data.decode()
    except UnicodeDecodeError:
        raise HttpError(
            400, "malformed_text", "the text is not UTF-8", hint="send application/octet-stream for bytes"
        ) from None
    return NewRecord(data, Content.TEXT)


async def read_streamed(request: Request, record_bytes_max: int) -> AsyncIterator[Sequence[Payload]]:
    """Yield batches whose boundaries depend on the body alone, so that a repeated request splits the same way."""
    if request.content_type() == ARROW.encode():
        require_arrow(415)
        async for batch in arrow_batches(request):
            yield batch
        return
    line = 0
    lines = ndjson.records(request, _any, line_bytes_max=record_bytes_max * 2 + 4_096, batch_max=BATCH)
    async for raws in lines:
        yield [new_record(raw, f"record {line + number}") for number, raw in enumerate(raws, 1)]
        line += len(raws)
