"""Converts Spark rows to messages or records and validates them before anything is sent, so that a write with bad rows
can be fixed and repeated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.limits import Limits, check_message
from penstock.core.model import Content, PushItem
from penstock.errors import InvalidInput, WrongType
from penstock.lite import MAX_BYTES
from penstock.log.model import NewRecord, Payload
from penstock.wire.arrow_records import COLUMN

QUEUE_COLUMNS = {
    "payload": "string or binary: the message",
    "content": "string: bytes, text or json; by default from the payload's type",
    "priority": "int",
    "delay_ms": "bigint",
    "ttl_ms": "bigint",
    "key": "string: idempotency key; by default generated",
    "headers": "map<string, string>",
}
STREAM_COLUMNS = {COLUMN: "string or binary: the record"}
# Rows converted together; limited, because they may be large.
ROWS_AT_ONCE = 256
# Limits for a file or a database that is written without a server.
EMBEDDED = Limits(payload_bytes=MAX_BYTES)
_ANY_KEY = "key"
Row = dict[str, Any]


def check_columns(names: Iterable[str], *, stream: bool = False) -> None:
    known, needed = (STREAM_COLUMNS, COLUMN) if stream else (QUEUE_COLUMNS, "payload")
    names = list(names)
    unknown = [name for name in names if name not in known]
    if unknown or needed not in names:
        text = f"unknown column {unknown[0]!r}" if unknown else f"missing column {needed!r}"
        hint = "columns are " + "; ".join(f"{name}: {what}" for name, what in known.items())
        raise InvalidInput(text, field="schema", hint=hint)


def checked_rows(batch: pa.RecordBatch, *, stream: bool = False) -> Iterator[Row]:
    for row in rows_in(batch):
        if stream:
            record_of(row)
        else:
            _check_message(message_of(row, _ANY_KEY))
        yield row


def rows_in(batch: pa.RecordBatch, start: int = 0) -> Iterator[Row]:
    for at in range(start, batch.num_rows, ROWS_AT_ONCE):
        yield from batch.slice(at, ROWS_AT_ONCE).to_pylist()


def record_of(row: Row) -> tuple[Payload, int]:
    """Return a row's record, text or bytes, and its size."""
    data = row[COLUMN]
    if data is None:
        raise InvalidInput("a record is null", field=COLUMN, hint="filter out such rows")
    if isinstance(data, str):
        encoded = data.encode()
        return NewRecord(encoded, Content.TEXT), len(encoded)
    if not isinstance(data, bytes):
        raise WrongType(f"a record must be string or binary, not {type(data).__name__}", field=COLUMN)
    return data, len(data)


def message_of(row: Row, key: str) -> PushItem:
    payload = row["payload"]
    if payload is None:
        raise InvalidInput("a payload is null", field="payload", hint="filter out such rows")
    if not isinstance(payload, str | bytes):
        raise WrongType(f"a payload must be string or binary, not {type(payload).__name__}", field="payload")
    return PushItem(
        payload=payload.encode() if isinstance(payload, str) else payload,
        content=_content(row.get("content"), payload),
        priority=_number(row, "priority") or 0,
        delay_ms=_number(row, "delay_ms"),
        ttl_ms=_number(row, "ttl_ms"),
        key=row.get("key") or key,
        headers=_headers(row.get("headers")),
    )


def _content(value: str | None, payload: str | bytes) -> Content:
    if not value:
        return Content.TEXT if isinstance(payload, str) else Content.BYTES
    try:
        return Content(value)
    except ValueError:
        raise InvalidInput(
            f"unknown content {value!r}", field="content", hint=f"use one of {', '.join(Content)}"
        ) from None


def _number(row: Row, name: str) -> Any:
    """Parse a number that may be text, as in CSV; `check_message` checks type and range."""
    value = row.get(name)
    if not isinstance(value, str):
        return value
    try:
        return int(value) if value else None
    except ValueError:
        raise InvalidInput(f"{name} must be a whole number, not {value!r}", field=name) from None


def _headers(value: Any) -> dict[str, str] | None:
    """Convert headers from a map, a struct or a JSON object."""
    if not value:
        return None
    try:
        found = dict(msgspec.json.decode(value) if isinstance(value, str) else value)
    except (TypeError, ValueError):
        raise WrongType("headers must be a map of strings or a JSON object", field="headers") from None
    return {name: _header(value) for name, value in found.items() if value is not None}


def _header(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return msgspec.json.encode(value).decode()
    raise WrongType(f"a header must be text, not {type(value).__name__}", field="headers")


def _check_message(message: PushItem) -> None:
    if not isinstance(message.key, str):
        raise WrongType(f"a key must be a string, not {type(message.key).__name__}", field="key")
    check_message(message, EMBEDDED.payload_bytes)
    if message.content is Content.JSON:
        try:
            msgspec.json.decode(message.payload)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            hint = "omit the content json to send it as text or bytes"
            raise InvalidInput(f"a payload is not JSON: {error}", field="payload", hint=hint) from None
