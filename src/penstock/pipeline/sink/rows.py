"""What a row of Spark becomes, a message or a record, and whether it can: that is asked before anything is decided, so
that rows can be put right and the same write asked for again."""

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
    "content": "string: bytes, text or json; else by the payload's type",
    "priority": "int",
    "delay_ms": "bigint",
    "ttl_ms": "bigint",
    "key": "string: idempotency key; else one is made",
    "headers": "map<string, string>",
}
STREAM_COLUMNS = {COLUMN: "string or binary: the record"}
# Rows that are taken out of a file's columns together: they may be large.
ROWS_AT_ONCE = 256
# Of a file or a database that is written with no server between.
EMBEDDED = Limits(payload_bytes=MAX_BYTES)
_ANY_KEY = "key"
Row = dict[str, Any]


def check_columns(names: Iterable[str], *, stream: bool = False) -> None:
    known, needed = (STREAM_COLUMNS, COLUMN) if stream else (QUEUE_COLUMNS, "payload")
    names = list(names)
    unknown = [name for name in names if name not in known]
    if unknown or needed not in names:
        text = f"there is no column {unknown[0]!r}" if unknown else f"the column {needed} is missing"
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
    """All of a file are alike: text, or bytes."""
    data = row[COLUMN]
    if data is None:
        raise InvalidInput("a record is null", field=COLUMN, hint="leave such rows out")
    if isinstance(data, str):
        encoded = data.encode()
        return NewRecord(encoded, Content.TEXT), len(encoded)
    if not isinstance(data, bytes):
        raise WrongType(f"a record is string or binary, not {type(data).__name__}", field=COLUMN)
    return data, len(data)


def message_of(row: Row, key: str) -> PushItem:
    payload = row["payload"]
    if payload is None:
        raise InvalidInput("a payload is null", field="payload", hint="leave such rows out")
    if not isinstance(payload, str | bytes):
        raise WrongType(f"a payload is string or binary, not {type(payload).__name__}", field="payload")
    return PushItem(
        payload=payload.encode() if isinstance(payload, str) else payload,
        content=_content(row.get("content"), payload),
        priority=_number(row, "priority") or 0,
        delay_ms=_number(row, "delay_ms"),
        ttl_ms=_number(row, "ttl_ms"),
        key=row.get("key") or key,
        headers=_headers(row.get("headers")),
    )


def _content(told: str | None, payload: str | bytes) -> Content:
    if not told:
        return Content.TEXT if isinstance(payload, str) else Content.BYTES
    try:
        return Content(told)
    except ValueError:
        raise InvalidInput(f"there is no content {told!r}", field="content", hint=", ".join(Content)) from None


def _number(row: Row, name: str) -> Any:
    """Of a file of texts it is one, too; whether it is an int is checked with its range."""
    told = row.get(name)
    if not isinstance(told, str):
        return told
    try:
        return int(told) if told else None
    except ValueError:
        raise InvalidInput(f"{name} is a whole number, not {told!r}", field=name) from None


def _headers(told: Any) -> dict[str, str] | None:
    """A map, a struct, or an object as JSON."""
    if not told:
        return None
    try:
        found = dict(msgspec.json.decode(told) if isinstance(told, str) else told)
    except (TypeError, ValueError):
        raise WrongType("headers are neither a map of texts nor a JSON object", field="headers") from None
    return {name: _header(value) for name, value in found.items() if value is not None}


def _header(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return msgspec.json.encode(value).decode()
    raise WrongType(f"a header is text, not {type(value).__name__}", field="headers")


def _check_message(message: PushItem) -> None:
    if not isinstance(message.key, str):
        raise WrongType(f"a key is a string, not {type(message.key).__name__}", field="key")
    check_message(message, EMBEDDED.payload_bytes)
    if message.content is Content.JSON:
        try:
            msgspec.json.decode(message.payload)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            hint = "without the content json it is text, or bytes"
            raise InvalidInput(f"a payload is not JSON: {error}", field="payload", hint=hint) from None
