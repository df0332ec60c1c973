"""JSON as every face reads it: typed, no unknown or repeated names, no deep nesting, nothing that is not UTF-8."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

from penstock.errors import WrongType
from penstock.misfit import misfit
from penstock.server.errors import HttpError

T = TypeVar("T")
DEPTH_MAX = 64
SHALLOW_DEPTH = 6
CONTAINERS_MAX = 500_000
WHITE_SPACE = b" \t\r\n"
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
BRACKETS_ALIKE = bytes.maketrans(b"[{]}", b"(())")
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Typed JSON: no unknown or repeated fields, no deep nesting, nothing that is not UTF-8."""
    if not body:
        raise HttpError(400, "malformed_json", "the body is empty", hint="send a JSON object")
    check_json(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except msgspec.DecodeError as error:
        raise HttpError(400, "malformed_json", f"the body is not JSON: {error}") from None


def invalid(error: msgspec.ValidationError, *, status: int | None = None) -> HttpError:
    reason, field, kind = misfit(error)
    return HttpError(status or (400 if kind is WrongType else 422), kind.code, reason, field=field)


def check_json(body: bytes) -> None:
    """What a typed decoder does not see: depth, and names given twice anywhere."""
    containers = body.count(b"[") + body.count(b"{")
    if containers > CONTAINERS_MAX:
        raise HttpError(413, "body_too_large", f"the JSON has more than {CONTAINERS_MAX} arrays and objects")
    try:
        # JSON without repeated names comes back as it was, but for white space; only what differs gets the slow look.
        again = _encode(_any.decode(body) if containers <= DEPTH_MAX else _decode_deep(body))
        if again == body or again.translate(None, WHITE_SPACE) == body.translate(None, WHITE_SPACE):
            return
        json.loads(body, object_pairs_hook=_unique)
    except _RepeatedName as error:
        name = str(error)
        raise HttpError(400, "repeated_field", f"the name {name!r} is given twice", field=name) from None
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "malformed_json", f"the body is not JSON: {error}") from None


def _nested(depth: int) -> Any:
    """Any JSON value of at most this depth, as a type."""
    kind: Any = bool | int | float | str | None
    for _ in range(depth):
        kind = bool | int | float | str | list[kind] | dict[str, kind] | None
    return kind


_encode = msgspec.json.Encoder().encode
_any = msgspec.json.Decoder()
_shallow: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_nested(SHALLOW_DEPTH))


def _decode_deep(body: bytes) -> Any:
    """The decoder itself sees that most bodies are shallow; measuring the others' depth costs more than decoding."""
    try:
        return _shallow.decode(body)
    except msgspec.ValidationError:
        if _too_deep(body):
            raise HttpError(400, "malformed_json", f"the JSON is nested deeper than {DEPTH_MAX}") from None
        return _any.decode(body)


class _RepeatedName(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise _RepeatedName(name)
        seen.add(name)


def _too_deep(body: bytes) -> bool:
    """Each round takes off the innermost level: no loop over bytes, so that a large body does not hold up the rest."""
    brackets = STRING.sub(b"", body).translate(BRACKETS_ALIKE, NOT_BRACKETS)
    for _ in range(DEPTH_MAX):
        fewer = brackets.replace(b"()", b"")
        if len(fewer) == len(brackets):
            return False
        brackets = fewer
    return b"()" in brackets
