"""Batches of the queue API in both forms, JSON and binary: request bodies and decoders of responses.

The SDK asks for binary responses. The first one tells that the server knows the form, and the session then sends binary
requests as well; an older server answers, and is sent, JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from penstock.client import queue_json
from penstock.client.http11 import HttpResponse
from penstock.core.commands import SettleItem
from penstock.core.model import Content, Delivery, PushItem
from penstock.wire import binary_batches as binary
from penstock.wire import queues as wire

T = TypeVar("T")
ACCEPT_BINARY = b"accept: %s, application/json\r\n" % binary.MSGPACK


class BatchBody(NamedTuple):
    """A request body of which the session encodes one form."""

    json: Callable[[], Any]
    binary: Callable[[], bytes]


class BatchDecoder(Generic[T]):
    """Decodes a response of either form."""

    def __init__(self, from_json: Callable[[bytes], T], from_binary: Callable[[bytes], T]) -> None:
        self._from_json = from_json
        self._from_binary = from_binary

    def decode(self, answer: HttpResponse) -> T:
        return (self._from_binary if is_binary(answer) else self._from_json)(answer.body)


def is_binary(answer: HttpResponse) -> bool:
    return answer.headers.get(b"content-type") == binary.MSGPACK


def push_body(batch: Sequence[Sequence[PushItem]], request_key: str) -> BatchBody:
    messages = [message for some in batch for message in some]
    return BatchBody(
        lambda: {"messages": [queue_json.push_one(message) for message in messages], "request_key": request_key},
        lambda: binary.encode((messages, request_key)),
    )


def settle_body(verb: str, items: Sequence[SettleItem], lease_ms: int | None) -> BatchBody | dict[str, Any]:
    """Return the body of an ack, or that of a nack, an extend or a release, which only exist in JSON."""

    def body() -> dict[str, Any]:
        return {"items": [queue_json.settle_one(item) for item in items]}

    if verb == "ack":
        return BatchBody(body, lambda: binary.encode(([(item.id, item.token) for item in items],)))
    return body() if lease_ms is None else body() | {"ms": lease_ms}


class _AnyContent(Delivery, array_like=True, kw_only=True):
    content: str  # type: ignore[assignment]


class _AnyPolled(msgspec.Struct, array_like=True):
    messages: list[_AnyContent]


_polled = msgspec.msgpack.Decoder(binary.BinaryPolled)
_any_polled = msgspec.msgpack.Decoder(_AnyPolled)
_settled = msgspec.msgpack.Decoder(binary.BinarySettled)


def _read_polled(body: bytes) -> list[Delivery]:
    try:
        return _polled.decode(body).messages
    except msgspec.ValidationError:
        # Content that this version does not know is bytes.
        found = _any_polled.decode(body).messages
        for message in found:
            known = message.content in queue_json.CONTENTS
            message.content = Content(message.content) if known else Content.BYTES
        return list(found)


def polled(queue: str) -> BatchDecoder[list[Delivery]]:
    return BatchDecoder(
        lambda body: [queue_json.delivery(message, queue) for message in queue_json.polled.decode(body).messages],
        _read_polled,
    )


pushed: BatchDecoder[wire.PushedMany | binary.BinaryPushed] = BatchDecoder(
    queue_json.pushed.decode, msgspec.msgpack.Decoder(binary.BinaryPushed).decode
)
settled = BatchDecoder(
    lambda body: [queue_json.settle_result(one.result) for one in queue_json.settled.decode(body).results],
    lambda body: [queue_json.settle_result(result) for result in _settled.decode(body).results],
)
