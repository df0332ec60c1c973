"""Binary form of batches in the queue API: MessagePack, with each record as an array of its fields in order.

Server and SDK encode and decode the model's own messages, so that no message costs a line of Python here. Requests are
decoded strictly. In a response, a record may have more fields at its end than the client knows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.core.model import BATCH_MAX, HEADERS_BYTES_MAX, Content, Delivery, PushItem
from penstock.core.validation import parse_error
from penstock.errors import BatchTooLarge, WrongType
from penstock.wire.http_errors import HttpError
from penstock.wire.queues import DelayMs, Key, Priority, Settle, TtlMs
from penstock.wire.strict_json import check_values

T = TypeVar("T", bound=Struct)
MSGPACK = b"application/vnd.msgpack"
STEP = re.compile(r"\[([^\]]+)\]")


class BinaryMessage(PushItem, array_like=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to push. The number of headers has a limit so that it is checked before they are decoded."""

    priority: Priority = 0
    delay_ms: DelayMs | None = None
    ttl_ms: TtlMs | None = None
    key: Key | None = None
    headers: Annotated[dict[str, str], Meta(max_length=HEADERS_BYTES_MAX)] | None = None
    signature: str | None = None


class BinarySettle(Settle, array_like=True, forbid_unknown_fields=True):
    pass


class BinaryPush(Struct, array_like=True, forbid_unknown_fields=True):
    messages: Annotated[list[BinaryMessage], Meta(min_length=1, max_length=BATCH_MAX)]
    request_key: Key | None = None


class BinaryPoll(Struct, array_like=True, forbid_unknown_fields=True):
    acks: Annotated[list[BinarySettle], Meta(max_length=BATCH_MAX)] = []


class BinaryAck(Struct, array_like=True, forbid_unknown_fields=True):
    items: Annotated[list[BinarySettle], Meta(min_length=1, max_length=BATCH_MAX)]


class BinaryPushed(Struct, array_like=True):
    message_ids: list[int]
    duplicates: list[int]


class BinaryPolled(Struct, array_like=True):
    messages: list[Delivery]
    acks: Sequence[str] | None = None


class BinarySettled(Struct, array_like=True):
    results: Sequence[str]


encode = msgspec.msgpack.Encoder().encode


def decode_push(body: bytes) -> BinaryPush:
    push = _push.decode(body)
    _check_payloads(push.messages)
    if any(message.headers for message in push.messages):
        _check_header_names(body, push.messages)
    return push


def _check_payloads(messages: Sequence[PushItem]) -> None:
    """Check that payloads are what they are said to be, because other APIs return JSON and text unquoted."""
    check_values([message.payload for message in messages if message.content is Content.JSON])
    for message in messages:
        if message.content is Content.TEXT:
            try:
                message.payload.decode()
            except UnicodeDecodeError:
                raise HttpError(422, "invalid_value", "the payload is not UTF-8", field="payload") from None


_members = [(name, msgspec.Raw | UnsetType, UNSET) for name in BinaryMessage.__struct_fields__]
_Members: Any = msgspec.defstruct("_Members", _members, array_like=True)
_Outline: Any = msgspec.defstruct("_Outline", [("messages", list[_Members])], array_like=True)
_outline = msgspec.msgpack.Decoder(_Outline)


def _check_header_names(body: bytes, messages: Sequence[PushItem]) -> None:
    """Raise if a name is repeated, which a dict does not show."""
    for message, members in zip(messages, _outline.decode(body).messages, strict=True):
        if message.headers and len(message.headers) != _map_length(bytes(members.headers)):
            raise HttpError(400, "repeated_field", "a name occurs twice in the headers", field="headers")


def _map_length(encoded: bytes) -> int:
    first = encoded[0]
    if first < 0x90:
        return first & 0x0F
    return int.from_bytes(encoded[1:3] if first == 0xDE else encoded[1:5])


class _StrictDecoder(Generic[T]):
    """Decodes a request as strictly as its JSON form. Lengths are checked before memory is allocated for them."""

    def __init__(self, kind: type[T], element: type[Struct]) -> None:
        """`element`: type of the elements of the body's list."""
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._names = {0: msgspec.structs.fields(kind), 2: msgspec.structs.fields(element)}

    def decode(self, body: bytes) -> T:
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise self._invalid(error) from None
        except ValueError as error:  # Malformed MessagePack, or text that is not UTF-8.
            raise HttpError(400, "malformed_msgpack", f"the body is not MessagePack: {error}") from None

    def _invalid(self, error: msgspec.ValidationError) -> Exception:
        reason, path, wrong = parse_error(error)
        if reason == f"expected `array` of length <= {BATCH_MAX}":
            return BatchTooLarge("too many elements in one list", hint=f"send at most {BATCH_MAX}")
        field = self._name(path or "")
        return HttpError(
            400 if wrong is WrongType else 422, wrong.code, f"{field}: {reason}" if field else reason, field=field
        )

    def _name(self, path: str) -> str | None:
        """Return the path with the names of the JSON form: `[0][7][2]` is `messages[7].priority`."""
        named = ""
        for level, step in enumerate(STEP.findall(path)):
            fields = self._names.get(level)
            named += f"[{step}]" if fields is None else f".{fields[int(step)].name}"
        return named.removeprefix(".") or None


_push = _StrictDecoder(BinaryPush, BinaryMessage)
decode_poll = _StrictDecoder(BinaryPoll, BinarySettle).decode
decode_ack = _StrictDecoder(BinaryAck, BinarySettle).decode
