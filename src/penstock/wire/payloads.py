"""Payloads in JSON: JSON as it was sent, text as a string, bytes as base64 with an `encoding`."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.core.model import Content
from penstock.wire.http_errors import HttpError

# Header with the transaction id of a message that the tree API pushed. Its key may come from another API.
TRANSACTION_ID = "transaction-id"


def show(payload: bytes, content: Content) -> tuple[Any, str | None]:
    """Return the payload as a JSON value, and its encoding if it has one."""
    if content is Content.JSON:
        return msgspec.Raw(payload), None
    if content is Content.TEXT:
        try:
            return payload.decode(), None
        except UnicodeDecodeError:
            pass
    return base64.b64encode(payload).decode(), "base64"


def read(payload: msgspec.Raw, encoding: str | None) -> tuple[bytes, Content]:
    """Return the bytes to store for a payload from JSON, and their content type."""
    raw = bytes(payload)
    if encoding is None:
        return raw, Content.JSON
    if encoding == "text":
        return read_text(raw), Content.TEXT
    try:
        text = msgspec.json.decode(raw, type=str)
        return base64.b64decode(text, validate=True), Content.BYTES
    except (msgspec.DecodeError, binascii.Error, ValueError):
        raise HttpError(422, "invalid_value", "the payload is not base64", field="payload") from None


def read_text(payload: bytes) -> bytes:
    """Return the bytes of a JSON string."""
    try:
        return msgspec.json.decode(payload, type=str).encode()
    except msgspec.DecodeError:
        raise HttpError(422, "invalid_value", "the payload is not a string", field="payload") from None


def rfc3339(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
