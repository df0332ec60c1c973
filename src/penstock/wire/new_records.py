"""Converts records of JSON requests to records to append."""

from __future__ import annotations

import base64
import binascii

import msgspec

from penstock.core.model import Content
from penstock.log.model import NewRecord
from penstock.wire.http_errors import HttpError
from penstock.wire.streams import EncodedRecord

_encoded_record = msgspec.json.Decoder(EncodedRecord)
_text = msgspec.json.Decoder(str)


def new_record(raw: msgspec.Raw, where: str) -> NewRecord:
    """Convert a JSON value: a string is text, `{"encoding", "data"}` names its encoding, the rest stays JSON."""
    data = bytes(raw)
    if data[:1] == b'"':
        return NewRecord(_text.decode(data).encode(), Content.TEXT)
    if data[:1] == b"{" and b'"encoding"' in data:
        try:
            sent = _encoded_record.decode(data)
        except msgspec.DecodeError:
            return NewRecord(data, Content.JSON)
        if sent.encoding == "json":
            return NewRecord(bytes(sent.data), Content.JSON)
        try:
            return NewRecord(base64.b64decode(_text.decode(sent.data), validate=True), Content.BYTES)
        except (msgspec.DecodeError, binascii.Error, ValueError):
            raise HttpError(422, "invalid_value", "the record is not base64", field=where) from None
    return NewRecord(data, Content.JSON)
