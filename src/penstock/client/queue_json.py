"""Converts between the JSON schemas of the queue API and the client's types."""

from __future__ import annotations

import base64
import math
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec import Struct

from penstock import errors
from penstock.core.commands import Settled, SettleItem
from penstock.core.limits import check_text
from penstock.core.model import Content, Delivery, PushItem, QueueInfo, QueueOptions, State, StoredMessage
from penstock.core.options import reported_options
from penstock.wire import queues as wire


class ReportedQueue(wire.QueueView, kw_only=True):
    """A queue as a server reports it that may be newer than this client."""

    options: dict[str, Any]  # type: ignore[assignment]


class ReportedQueues(Struct):
    queues: list[ReportedQueue]
    next: str | None = None


polled = msgspec.json.Decoder(wire.Polled)
pushed = msgspec.json.Decoder(wire.PushedMany)
settled = msgspec.json.Decoder(wire.SettledItems)
transacted = msgspec.json.Decoder(wire.TransactedView)
message_view = msgspec.json.Decoder(wire.MessageView)
message_page = msgspec.json.Decoder(wire.MessagePage)
queue_list = msgspec.json.Decoder(ReportedQueues)
queue_view = msgspec.json.Decoder(ReportedQueue)
stats = msgspec.json.Decoder(wire.Stats)
purged = msgspec.json.Decoder(wire.Purged)
dropped = msgspec.json.Decoder(wire.Dropped)
requeued = msgspec.json.Decoder(wire.Requeued)


def push_one(message: PushItem, queue: str | None = None) -> wire.TransactPush:
    """Return a message to push; only a transaction names its queue."""
    payload, encoding = _sent(message)
    return wire.TransactPush(
        payload=payload,
        encoding=encoding,
        priority=message.priority,
        delay_ms=message.delay_ms,
        ttl_ms=message.ttl_ms,
        idempotency_key=message.key,
        headers=message.headers,
        queue=queue,
    )


def _sent(message: PushItem) -> tuple[Any, Literal["base64", "text"] | None]:
    """Return the payload as a JSON value, and its encoding: text stays text unless it is not UTF-8."""
    if message.content is Content.JSON:
        return msgspec.Raw(message.payload), None
    if message.content is Content.TEXT:
        with suppress(UnicodeDecodeError):
            return message.payload.decode(), "text"
    return base64.b64encode(message.payload).decode(), "base64"


def settle_one(item: SettleItem, queue: str | None = None) -> wire.TransactSettle:
    """Return an item to settle; only a transaction names its queue."""
    return wire.TransactSettle(
        item.id, item.token, item.delay_ms, item.error, item.traceback, item.dead, item.discard, queue
    )


def settle_result(result: str) -> Settled:
    """Return the result of an ack, nack, extend or release. One that this version does not know is no success."""
    return Settled(result) if result in RESULTS else Settled.UNKNOWN


RESULTS = frozenset(Settled)
STATES = frozenset(State)
CONTENTS = frozenset(Content)


def delivery(message: wire.PolledMessage, queue: str) -> Delivery:
    payload, content = _payload(message)
    return Delivery(
        id=message.id,
        uuid_source=message.uuid,
        queue=queue,
        payload=payload,
        content=content,
        priority=message.priority,
        attempts=message.attempts,
        created_at=message.created_at,
        leased_until=message.lease_expires_at,
        token=message.token,
        key=message.idempotency_key,
        headers=message.headers,
    )


def stored_message(message: wire.MessageView) -> StoredMessage:
    payload, content = _payload(message)
    return StoredMessage(
        id=message.id,
        uuid=message.uuid,
        queue=message.queue,
        state=State(message.state) if message.state in STATES else message.state,
        payload=payload,
        content=content,
        priority=message.priority,
        attempts=message.attempts,
        created_at=message.created_at,
        available_at=message.available_at,
        expires_at=message.expires_at,
        first_leased_at=message.first_leased_at,
        leased_at=message.leased_at,
        leased_until=message.lease_expires_at,
        worker=message.worker,
        finished_at=message.finished_at,
        reason=message.reason,
        errors=message.errors,
        key=message.idempotency_key,
        headers=message.headers,
    )


def _payload(message: wire.PolledMessage | wire.MessageView) -> tuple[bytes, Content]:
    """Return the payload. Content that this version does not know is bytes if it is sent as base64, else JSON."""
    if message.content == Content.JSON or (message.content not in CONTENTS and message.encoding != "base64"):
        return bytes(message.payload), Content.JSON
    text = msgspec.json.decode(message.payload, type=str)
    data = base64.b64decode(text) if message.encoding == "base64" else text.encode()
    return data, Content.TEXT if message.content == Content.TEXT else Content.BYTES


def queue_info(queue: ReportedQueue) -> QueueInfo:
    return QueueInfo(
        name=queue.name,
        options=reported_options(QueueOptions, queue.options),
        paused=queue.paused,
        created_at=queue.created_at,
        ready=queue.ready,
        scheduled=queue.scheduled,
        leased=queue.leased,
        dead=queue.dead,
        archived=queue.archived,
        totals=queue.totals,
    )


def sendable(options: dict[str, Any]) -> dict[str, Any]:
    """Return the values unchanged, refusing those that JSON cannot express.

    NaN, for example, would be sent as null, which means no limit.
    """
    for name, value in options.items():
        if not isinstance(value, str | int | float | None):
            raise errors.WrongType(f"option {name}: not {type(value).__name__}", field=name)
        if isinstance(value, str):
            check_text(name, value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise errors.InvalidInput(f"{name} must be a finite number, got {value}", field=name)
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise errors.InvalidInput(f"{name} is out of range", field=name)
    return options
