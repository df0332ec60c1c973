"""Types of the SDK, for the synchronous and the asynchronous client. Times (`…_at`) are milliseconds since 1970."""

from __future__ import annotations

import math
from typing import Any, Generic, Literal, TypedDict, TypeVar

from msgspec import Struct

from penstock.client import payloads
from penstock.core.limits import check_headers, check_key, check_range
from penstock.core.model import DELAY_MS_MAX, PRIORITY_MAX, Content, Failure, State, StoredMessage
from penstock.core.model import PushItem as StoredNewMessage
from penstock.errors import InvalidInput, WrongType

T = TypeVar("T")
Seconds = int | float
# Prefix of the idempotency keys that the SDK generates; users do not see them.
AUTO_KEY = "sdk~"


class Receipt(Struct, frozen=True, gc=False):
    """The id of a pushed message; for a duplicate key, the id of the first message."""

    id: int
    duplicate: bool = False


class NewMessage(Struct, frozen=True, kw_only=True):
    """A message to push, with its own options. Durations are in seconds.

    >>> NewMessage(payload={"to": "ann"}, delay=60, key="welcome-ann").key
    'welcome-ann'
    """

    payload: Any
    priority: int = 0
    delay: Seconds | None = None
    ttl: Seconds | None = None
    key: str | None = None
    headers: dict[str, str] | None = None

    def to_store(self) -> StoredNewMessage:
        payload, content = payloads.encode(self.payload)
        if self.priority or type(self.priority) is not int:
            check_range("priority", self.priority, -PRIORITY_MAX, PRIORITY_MAX)
        if self.key is not None:
            check_key(self.key)
        if self.headers is not None:
            check_headers(self.headers)
        return StoredNewMessage(
            payload=payload,
            content=content,
            priority=self.priority,
            delay_ms=None if self.delay is None else milliseconds("delay", self.delay),
            ttl_ms=None if self.ttl is None else milliseconds("ttl", self.ttl, 1),
            key=self.key,
            headers=self.headers,
        )


class Page(list[T], Generic[T]):
    """One page of a list: pass `next` as `after` to get the next page."""

    def __init__(self, items: list[T], next: str | None = None) -> None:
        super().__init__(items)
        self.next = next


class PeekedMessage(Struct, kw_only=True):
    """A message as it is in its queue, without a lease."""

    id: int
    uuid: str
    queue: str
    state: State | str
    """Text if a newer server reports a state that this version does not know."""
    payload: Any
    priority: int
    attempts: int
    created_at: int
    available_at: int
    expires_at: int | None
    leased_until: int | None
    finished_at: int | None
    """Time of the ack or of dead-lettering."""
    reason: str | None
    """How its last attempt ended: `nacked`, or `lapsed` if the lease expired."""
    errors: list[Failure]
    """Failed deliveries, newest first."""
    key: str | None
    headers: dict[str, str] | None

    @property
    def error(self) -> str | None:
        return self.errors[0].error if self.errors else None


class Redriven(Struct, frozen=True):
    matched: int
    moved: int

    @property
    def skipped(self) -> int:
        return self.matched - self.moved


class Options(TypedDict, total=False):
    """Options of a queue; `penstock.QueueOptions` describes them."""

    lease_ms: int
    max_attempts: int
    backoff: Literal["exponential", "fixed"]
    backoff_ms: int
    backoff_max_ms: int
    max_in_flight: int | None
    delay_ms: int
    window_ms: int
    ttl_ms: int | None
    max_age_alert_ms: int | None
    priority: int
    max_size: int | None
    push_rate: float | None
    push_burst: int | None
    dlq: bool | str
    require_lease_token: bool
    archive_ms: int | None
    dedupe_ms: int
    journal: Literal["full", "meta", "off"]


def milliseconds(field: str, seconds: Seconds, low_ms: int = 0, high_ms: int = DELAY_MS_MAX) -> int:
    if type(seconds) not in (int, float):
        raise WrongType(f"{field}: expected a number of seconds, got {type(seconds).__name__}", field=field)
    if math.isnan(seconds) or not low_ms <= seconds * 1000 <= high_ms:
        raise InvalidInput(f"{field} is {low_ms / 1000:g} to {high_ms // 1000} seconds", field=field)
    return round(seconds * 1000)


def visible_key(key: str | None) -> str | None:
    return None if key is None or key.startswith(AUTO_KEY) else key


def peeked(message: StoredMessage) -> PeekedMessage:
    return PeekedMessage(
        id=message.id,
        uuid=message.uuid,
        queue=message.queue,
        state=message.state,
        payload=payloads.decode(message.payload, Content(message.content)),
        priority=message.priority,
        attempts=message.attempts,
        created_at=message.created_at,
        available_at=message.available_at,
        expires_at=message.expires_at,
        leased_until=message.leased_until,
        finished_at=message.finished_at,
        reason=message.reason,
        errors=message.errors,
        key=visible_key(message.key),
        headers=message.headers,
    )
