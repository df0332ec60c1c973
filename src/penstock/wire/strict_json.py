"""Strict JSON for every API: typed, UTF-8, without unknown or repeated names, and not nested deeply.

Every check is linear in the size of the body. C builds objects from `QUICK_BYTES` at a time at most: a larger body is
cut into its members and their elements, and what is still larger is checked token by token, so that a thread that does
it lets others run.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from penstock.core.model import BATCH_MAX
from penstock.core.validation import known_hint, parse_error
from penstock.errors import BatchTooLarge, PayloadTooLarge, WrongType
from penstock.wire.http_errors import HttpError

T = TypeVar("T")
DEPTH_MAX = 64
# Depth at which payloads stand in a JSON batch: inside an object, a list and an object.
VALUE_DEPTH = 3
SHALLOW_DEPTH = 6
CONTAINERS_MAX = 500_000
NAMES_MAX = 100_000
COMMAS_QUICK = 250_000
QUICK_BYTES = 64 << 10
SLICE_BYTES = 64 << 10
WHITE_SPACE = b" \t\r\n"
# Every repeat is possessive and a token begins where the last one ended, so no byte is looked at more than twice.
# Groups: a string, the colon that makes it a name, an opening bracket, a closing one. Everything else is a run of
# numbers, literals, commas and space, which ends between values.
TOKEN = re.compile(
    rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"(?:[ \t\r\n]*+(:))?+|([\[{])|([\]}])'
    rb'|[^"\[\]{}]{1,%d}+[^"\[\]{}, \t\r\n]*+' % SLICE_BYTES,
    re.DOTALL,
)
NAME, OPENING, CLOSING = 2, 3, 4
# A number that may be out of range, by its exponent or by its length.
FAR = re.compile(rb"[eE][-+]?+[0-9]{3}|(?<![0-9.])[0-9.]{200}")
FAR_BYTES_MIN = len("1e999")
NUMBER = re.compile(rb"-?+[0-9][-+0-9.eE]*+")


def decode(body: bytes, decoder: msgspec.json.Decoder[T], *, value_bytes_max: int | None = None) -> T:
    """Return the body as the decoder's type.

    Refuses a member, or an element of a member that is a list, of more than `value_bytes_max` before decoding it.
    """
    if not body:
        raise HttpError(400, "malformed_json", "the body is empty", hint="send a JSON object")
    try:
        if len(body) <= QUICK_BYTES or (outline := _outline(decoder)) is None:
            check_json(body)
        else:
            outline.check(body, value_bytes_max)
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error, kind=decoder.type) from None
    except msgspec.DecodeError as error:
        raise _malformed(error) from None


def invalid(error: msgspec.ValidationError, *, status: int | None = None, kind: Any = None) -> HttpError:
    """Return the error for a decoding failure. With `kind`, the hint for an unknown field lists the known ones."""
    reason, field, wrong = parse_error(error)
    hint = None if kind is None else known_hint(error, kind)
    if field and field.rpartition(".")[2] not in reason:
        reason = f"{field}: {reason}"
    return HttpError(status or (400 if wrong is WrongType else 422), wrong.code, reason, field=field, hint=hint)


def check_json(body: bytes) -> None:
    """Check what a typed decoder does not: depth, repeated names, UTF-8 and the range of numbers, everywhere."""
    containers = _check_containers(body)
    if len(body) > QUICK_BYTES or not _is_canonical(body, containers):
        _check_syntax(body)
        check_tokens(body)


def _check_containers(body: bytes) -> int:
    containers = body.count(b"[") + body.count(b"{")
    if containers > CONTAINERS_MAX:
        raise HttpError(413, "body_too_large", f"the JSON has more than {CONTAINERS_MAX} arrays and objects")
    return containers


def check_values(values: list[bytes]) -> None:
    """Check JSON values that are no part of a JSON body, nested at most as deeply as payloads of a JSON batch.

    An error names the position of its value.
    """
    if sum(map(len, values)) <= QUICK_BYTES and _are_canonical(values):
        return
    for position, value in enumerate(values):
        try:
            containers = _check_containers(value)
            if len(value) > QUICK_BYTES or not _is_canonical(value, containers + 1):
                _check_syntax(value)
                check_tokens(value, depth=VALUE_DEPTH)
        except HttpError as error:
            error.args, error.field = (f"payload {position}: {error.args[0]}",), "payload"
            raise


def _are_canonical(values: list[bytes]) -> bool:
    """Return True if every value, encoded again, is the same. One call decodes all of them."""
    joined = b"[%s]" % b",".join(values)
    few = joined.count(b"[") + joined.count(b"{") <= DEPTH_MAX - 2
    try:
        found = (_any if few else _shallow).decode(joined)
    except ValueError:
        return False
    return list(map(_encode, found)) == values


def _nested(depth: int) -> Any:
    """Return the type of any JSON value of at most this depth."""
    kind: Any = bool | int | float | str | None
    for _ in range(depth):
        kind = bool | int | float | str | list[kind] | dict[str, kind] | None
    return kind


_encode = msgspec.json.Encoder().encode
_any = msgspec.json.Decoder()
_raw = msgspec.json.Decoder(msgspec.Raw)
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_text = msgspec.json.Decoder(str)
_shallow: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_nested(SHALLOW_DEPTH))


def _is_canonical(body: bytes | msgspec.Raw, containers: int) -> bool:
    """Return True if the body, encoded again, is the same but for white space: then no name is repeated."""
    try:
        # So few containers cannot be nested too deeply, not even as elements of a member.
        value = (_any if containers <= DEPTH_MAX - 2 else _shallow).decode(body)
    except ValueError:
        return False
    again = _encode(value)
    return again == body or _without_white_space(again) == _without_white_space(bytes(body))


def _without_white_space(body: bytes) -> bytes:
    return body.translate(None, WHITE_SPACE)


def _check_syntax(body: bytes) -> None:
    try:
        _raw.decode(body)
        if not body.isascii():
            decoder = codecs.getincrementaldecoder("utf-8")()
            for start in range(0, len(body), SLICE_BYTES):
                decoder.decode(body[start : start + SLICE_BYTES])
            decoder.decode(b"", final=True)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise _malformed(error) from None


def check_tokens(body: bytes, *, depth: int = 0, elements_max: int | None = None) -> None:
    """Check names, depth and numbers of well-formed JSON that stands this deep, in one pass."""
    names: list[set[bytes] | None] = []  # Of each open object those seen so far, and None for each open array.
    elements = 0
    for token in TOKEN.finditer(body):
        kind = token.lastindex
        if kind is None:
            run = token[0]
            if len(run) >= FAR_BYTES_MIN and FAR.search(run) is not None:
                _check_numbers(run)
            if elements_max is not None and len(names) == 1:
                elements += run.count(b",")
                if elements >= elements_max:
                    raise _too_many(elements_max)
        elif kind == NAME:
            seen = names[-1]
            assert seen is not None
            _add_name(seen, token[1])
        elif kind == OPENING:
            names.append(set() if token[0] == b"{" else None)
            if len(names) + depth > DEPTH_MAX:
                raise _too_deep()
        elif kind == CLOSING:
            names.pop()


def _check_numbers(run: bytes) -> None:
    for number in NUMBER.findall(run):
        try:
            _any.decode(number)
        except ValueError as error:
            raise _malformed(error) from None


def _add_name(seen: set[bytes], name: bytes) -> None:
    if b"\\" in name:
        name = _text.decode(b'"%s"' % name).encode()
    if name in seen:
        text = name.decode()
        raise HttpError(400, "repeated_field", f"the name {text!r} occurs twice", field=text)
    seen.add(name)
    if len(seen) > NAMES_MAX:
        raise HttpError(413, "body_too_large", f"an object in the JSON has more than {NAMES_MAX} names")


class _Outline:
    """Splits a large body into the members of a struct."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        fields = msgspec.structs.fields(kind)
        self._lists = {field.encode_name for field in fields if _has_list(field.type)}
        members = [(field.encode_name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for field in fields]
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("Members", members, forbid_unknown_fields=True))

    def check(self, body: bytes, value_bytes_max: int | None) -> None:
        _check_containers(body)
        _check_syntax(body)
        found = msgspec.structs.asdict(self._decoder.decode(body))
        members = {name: bytes(raw) for name, raw in found.items() if raw is not msgspec.UNSET}
        # Quotes and a colon, a comma between them, and the braces. What is longer has repeated or escaped names.
        length = sum(len(name) + 3 + len(_without_white_space(raw)) for name, raw in members.items())
        if length + max(0, len(members) - 1) + 2 != len(_without_white_space(body)):
            check_tokens(body)
        for name, member in members.items():
            for value in self._values(name, member):
                if value_bytes_max is not None and len(value) > value_bytes_max:
                    raise PayloadTooLarge(
                        f"the value of {name!r} is too large ({len(value)} bytes)",
                        field=name,
                        hint="store large data elsewhere and push a reference to it",
                    )
                containers = value.count(b"[") + value.count(b"{")
                if len(value) > QUICK_BYTES or not _is_canonical(value, containers):
                    check_tokens(value, depth=2)

    def _values(self, name: str, member: bytes) -> Iterator[bytes]:
        if name not in self._lists or not member.startswith(b"["):
            yield member
        elif member.count(b",") > COMMAS_QUICK:
            check_tokens(member, depth=1, elements_max=BATCH_MAX)
        else:
            elements = _raws.decode(member)
            if len(elements) > BATCH_MAX:
                raise _too_many(BATCH_MAX)
            yield from map(bytes, elements)


@lru_cache(maxsize=256)
def _outline(decoder: msgspec.json.Decoder[Any]) -> _Outline | None:
    kind = decoder.type
    return _Outline(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def _has_list(kind: Any) -> bool:
    return get_origin(kind) is list or any(_has_list(part) for part in get_args(kind))


def _too_many(elements_max: int) -> BatchTooLarge:
    return BatchTooLarge("too many elements in one list", hint=f"send at most {elements_max}")


def _too_deep() -> HttpError:
    return HttpError(400, "malformed_json", f"the JSON is nested more than {DEPTH_MAX} levels deep")


def _malformed(error: Exception) -> HttpError:
    return HttpError(400, "malformed_json", f"the body is not JSON: {error}")
