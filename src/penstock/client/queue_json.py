"""The JSON of the queue API on the client's side, and its errors as exceptions."""

from __future__ import annotations

import base64
import math
import re
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock import errors
from penstock.client.http11 import HttpResponse
from penstock.client.stream_json import STREAM_ERRORS, error_data
from penstock.client.types import Stats
from penstock.core.commands import Settled, SettleItem
from penstock.core.limits import check_text
from penstock.core.model import Content, Delivery, Failure, PushItem, QueueInfo, State, StoredMessage

CLASSES: dict[str, type[errors.PenstockError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.PenstockError) and kind is not errors.PenstockError
} | {"body_too_large": errors.BatchTooLarge}
BY_STATUS: dict[int, type[errors.PenstockError]] = {
    400: errors.InvalidInput,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.BatchTooLarge,
    422: errors.InvalidInput,
    429: errors.TryLater,
    503: errors.StoreError,
}
encode = msgspec.json.Encoder().encode


class PushedMany(Struct):
    message_ids: list[int]
    duplicates: list[int]


class PushOne(Struct, omit_defaults=True, kw_only=True):
    payload: msgspec.Raw | str
    encoding: str | None = None
    priority: int = 0
    delay_ms: int | None = None
    ttl_ms: int | None = None
    idempotency_key: str | None = None
    headers: dict[str, str] | None = None
    queue: str | UnsetType = UNSET


class SettleOne(Struct, omit_defaults=True):
    id: int
    token: str | None = None
    delay_ms: int | None = None
    error: str | None = None
    traceback: str | None = None
    dead: bool = False
    discard: bool = False
    queue: str | UnsetType = UNSET


def settle_one(item: SettleItem, queue: str | UnsetType = UNSET) -> SettleOne:
    return SettleOne(item.id, item.token, item.delay_ms, item.error, item.traceback, item.dead, item.discard, queue)


class Settles(Struct, omit_defaults=True):
    items: list[SettleOne]
    ms: int | None = None


class SettledOne(Struct):
    result: Settled


class SettledItems(Struct):
    results: list[SettledOne]


class WithPayload(Struct, kw_only=True):
    payload: msgspec.Raw
    encoding: str | None = None
    content: Content = Content.JSON

    def payload_bytes(self) -> bytes:
        if self.content is Content.JSON:
            return bytes(self.payload)
        text = msgspec.json.decode(self.payload, type=str)
        return base64.b64decode(text) if self.encoding == "base64" else text.encode()


class PolledMessage(WithPayload, kw_only=True):
    id: int
    uuid: str
    priority: int
    attempts: int
    created_at: int
    lease_expires_at: int
    token: str
    idempotency_key: str | None = None
    headers: dict[str, str] | None = None

    def to_model(self, queue: str) -> Delivery:
        return Delivery(
            id=self.id,
            uuid=self.uuid,
            queue=queue,
            payload=self.payload_bytes(),
            content=self.content,
            priority=self.priority,
            attempts=self.attempts,
            created_at=self.created_at,
            leased_until=self.lease_expires_at,
            token=self.token,
            key=self.idempotency_key,
            headers=self.headers,
        )


class Polled(Struct):
    messages: list[PolledMessage]


class MessageView(WithPayload, kw_only=True):
    id: int
    uuid: str
    queue: str
    state: State
    priority: int
    attempts: int
    created_at: int
    available_at: int
    expires_at: int | None = None
    first_leased_at: int | None = None
    leased_at: int | None = None
    lease_expires_at: int | None = None
    worker: str | None = None
    finished_at: int | None = None
    reason: str | None = None
    errors: list[Failure] = []
    idempotency_key: str | None = None
    headers: dict[str, str] | None = None

    def to_model(self) -> StoredMessage:
        return StoredMessage(
            id=self.id,
            uuid=self.uuid,
            queue=self.queue,
            state=self.state,
            payload=self.payload_bytes(),
            content=self.content,
            priority=self.priority,
            attempts=self.attempts,
            created_at=self.created_at,
            available_at=self.available_at,
            expires_at=self.expires_at,
            first_leased_at=self.first_leased_at,
            leased_at=self.leased_at,
            leased_until=self.lease_expires_at,
            worker=self.worker,
            finished_at=self.finished_at,
            reason=self.reason,
            errors=self.errors,
            key=self.idempotency_key,
            headers=self.headers,
        )


class MessagePage(Struct):
    messages: list[MessageView]
    next: str | None = None


class QueueList(Struct):
    queues: list[QueueInfo]
    next: str | None = None


class Transacted(Struct):
    message_ids: list[int]
    duplicates: list[int] = []


class Count(Struct):
    """Number of messages that a purge or a drop deleted."""

    purged: int = 0
    messages: int = 0


class Requeued(Struct):
    matched: int
    moved: int


class Nothing(Struct):
    pass


class Problem(Struct):
    error: str
    code: str
    hint: str | None = None
    field: str | None = None
    place: dict[str, Any] | None = None
    maybe_done: bool = False


polled = msgspec.json.Decoder(Polled)
pushed = msgspec.json.Decoder(PushedMany)
settled = msgspec.json.Decoder(SettledItems)
transacted = msgspec.json.Decoder(Transacted)
message_view = msgspec.json.Decoder(MessageView)
message_page = msgspec.json.Decoder(MessagePage)
queue_list = msgspec.json.Decoder(QueueList)
queue_info = msgspec.json.Decoder(QueueInfo)
stats = msgspec.json.Decoder(Stats)
count = msgspec.json.Decoder(Count)
requeued = msgspec.json.Decoder(Requeued)
nothing = msgspec.json.Decoder(Nothing)
_problem = msgspec.json.Decoder(Problem)


def push_one(message: PushItem, queue: str | UnsetType = UNSET) -> PushOne:
    payload, encoding = _sent(message)
    return PushOne(
        payload=payload,
        encoding=encoding,
        priority=message.priority,
        delay_ms=message.delay_ms,
        ttl_ms=message.ttl_ms,
        idempotency_key=message.key,
        headers=message.headers,
        queue=queue,
    )


def _sent(message: PushItem) -> tuple[msgspec.Raw | str, str | None]:
    """Return the payload as a JSON value, and its encoding: text stays text unless it is not UTF-8."""
    if message.content is Content.JSON:
        return msgspec.Raw(message.payload), None
    if message.content is Content.TEXT:
        with suppress(UnicodeDecodeError):
            return message.payload.decode(), "text"
    return base64.b64encode(message.payload).decode(), "base64"


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


def error_of(answer: HttpResponse, queue: str | None) -> errors.PenstockError:
    """Return the exception for an error response."""
    try:
        problem = _problem.decode(answer.body)
    except msgspec.MsgspecError:
        kind = BY_STATUS.get(answer.status, errors.ServerFault)
        problem = Problem(f"the server answered {answer.status}", kind.code)
    kind = CLASSES.get(problem.code) or BY_STATUS.get(answer.status, errors.ServerFault)
    # The response carries the error's text, not the arguments of its constructor.
    error = kind.__new__(kind)
    error.args = (problem.error,)
    data: dict[str, Any] = {"hint": problem.hint, "maybe_done": problem.maybe_done}
    if kind.code != problem.code:
        data["code"] = problem.code
    if isinstance(error, errors.InvalidInput):
        data["field"] = problem.field
    elif isinstance(error, errors.TryLater):
        data["retry_after_ms"] = retry_after_ms(answer) or 1_000
    elif isinstance(error, errors.ServerFault):
        data["status"] = answer.status
    elif isinstance(error, errors.QueueExists):
        data |= {"queue": queue, "differing": problem.error.rpartition(": ")[2].split(", ")}
    elif isinstance(error, errors.StreamExists):
        data["differing"] = problem.error.rpartition(": ")[2].split(", ")
    elif isinstance(error, errors.QueueNotEmpty):
        data |= {"queue": queue, "messages": _first_int(problem.error.rpartition("holds ")[2])}
    elif isinstance(error, errors.UnknownQueue | errors.UnknownMessage):
        # A transaction may have named other queues.
        named = re.search(r"queue '(.+)'", problem.error)
        data["queue"] = named[1] if named else queue
    if isinstance(error, errors.LeaseLost | errors.UnknownMessage):
        data["message_id"] = _first_int(problem.error.partition("message ")[2])
    elif isinstance(error, errors.MissingExtra):
        data["extra"] = "arrow"
    error.__dict__.update(data)
    if isinstance(error, STREAM_ERRORS):
        error.__dict__.update(error_data(error, queue, problem.place))
    return error


def retry_after_ms(answer: HttpResponse) -> int | None:
    value = answer.headers.get(b"retry-after", b"")
    return int(value) * 1000 if value.isdigit() and len(value) < 7 else None


def _first_int(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0
