"""Payloads: any JSON value, or bytes. Every transport delivers exactly what was pushed."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.model import Content
from penstock.errors import InvalidInput, WrongType

JSON_DEPTH_MAX = 60
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode(payload: Any) -> tuple[bytes, Content]:
    """Encode a payload for storage. Values that JSON would change are refused: tuples, NaN, int keys, dates."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), Content.BYTES
    try:
        text = _encode(payload)
        if type(payload) is str:  # A string needs no further checks.
            return text, Content.JSON
        # Bytes or objects inside a value would be encoded but decoded as something else.
        faithful = _decode(text) == payload
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise WrongType(f"the payload is not JSON: {error}", field="payload", hint=HINT) from None
    if not faithful:
        raise WrongType("the payload would change when encoded as JSON", field="payload", hint=HINT)
    if text.count(b"[") + text.count(b"{") > JSON_DEPTH_MAX and _depth(payload) > JSON_DEPTH_MAX:
        raise InvalidInput(f"the payload is nested more than {JSON_DEPTH_MAX} levels deep", field="payload")
    return text, Content.JSON


HINT = "push JSON values (dict with str keys, list, str, int, float, bool, None) or bytes"


def decode(payload: bytes, content: Content) -> Any:
    if content is Content.JSON:
        return _decode(payload)
    return payload.decode() if content is Content.TEXT else payload


def _depth(value: Any) -> int:
    depth = 0
    level = [value]
    while (inside := [each for each in level if isinstance(each, dict | list)]) and depth <= JSON_DEPTH_MAX:
        depth += 1
        level = [inner for each in inside for inner in (each.values() if isinstance(each, dict) else each)]
    return depth
