"""The nouns: options, messages, leases and what is known of a queue. No behaviour beyond checking and arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.core.ids import message_uuid
from penstock.core.options import Options, options_decoder

Clock = Callable[[], int]
Progress = Callable[[int, int], None]
"""Called with done and total."""

DAY_MS = 86_400_000
LEASE_MS_MAX = 30 * DAY_MS
DELAY_MS_MAX = 3650 * DAY_MS
PRIORITY_MAX = 2**31 - 1
BATCH_MAX = 10_000
LEASE_BYTES_MAX = 16 << 20
"""Of payloads in one answer: what a lease has beyond that waits for the next. The first goes whatever its size."""
ATTEMPTS_MAX = 1_000
ERROR_TEXT_MAX = 4_096
TRACEBACK_MAX = 8_192
KEY_LENGTH_MAX = 512
HEADERS_BYTES_MAX = 16_384

LeaseMs = Annotated[int, Meta(ge=1, le=LEASE_MS_MAX)]
DelayMs = Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Priority = Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]


def system_clock() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class State(StrEnum):
    READY = "ready"
    SCHEDULED = "scheduled"
    LEASED = "leased"
    DEAD = "dead"
    ARCHIVED = "archived"


class Content(StrEnum):
    """How a face pushed the payload, so that another face can show it."""

    BYTES = "bytes"
    TEXT = "text"
    JSON = "json"


class QueueOptions(Options, frozen=True, kw_only=True):
    lease_ms: LeaseMs = 30_000
    """How long a consumer may keep a message before another gets it."""
    max_attempts: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)] = 5
    """Deliveries before a message is dead."""
    backoff: Literal["exponential", "fixed"] = "exponential"
    """How the wait after a nack grows."""
    backoff_ms: DelayMs = 1_000
    """The wait after the first nack."""
    backoff_max_ms: DelayMs = 3_600_000
    """The longest wait after a nack."""
    max_in_flight: Positive | None = None
    """Messages that may be leased at once; 1 is one consumer at a time."""
    delay_ms: DelayMs = 0
    """How long a pushed message waits before it is ready."""
    window_ms: DelayMs = 0
    """Nothing is leased until the newest message is this old."""
    ttl_ms: Annotated[int, Meta(ge=1, le=DELAY_MS_MAX)] | None = None
    """How long a message waits before it is dropped."""
    priority: Priority = 0
    """Which queue a pop over a namespace or task looks at first: the highest."""
    max_size: Positive | None = None
    """Messages that may wait; more are refused."""
    push_rate: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """Messages a second; `push_burst` of them may come at once."""
    push_burst: Positive | None = None
    """Messages that may come at once where there is a `push_rate`."""
    dlq: bool | Annotated[str, Meta(min_length=1, max_length=800)] = True
    """Keep dead messages in `<name>.dlq`; or move them to the queue of this name; false: they are gone."""
    require_lease_token: bool = False
    """Settle messages only with their lease's token: a worker whose lease has passed cannot settle another's."""
    archive_ms: DelayMs | None = 0
    """How long a done message is kept: 0 deletes it, None keeps it until it is removed."""
    dedupe_ms: DelayMs = DAY_MS
    """How long an idempotency key is known, or as long as its message lives."""
    journal: Literal["full", "meta", "off"] = "full"
    """What the journal tells of its messages: all, all but bodies, nothing."""


def backoff_ms(options: QueueOptions, message_id: int, attempts: int) -> int:
    """How long a nacked message waits. The jitter comes from id and attempt, so a retry can be foretold."""
    if options.backoff == "fixed":
        return options.backoff_ms
    full = options.backoff_ms << min(attempts - 1, 40)
    spread = ((message_id * 2654435761 + attempts * 40503) & 0xFFFF) / 0xFFFF
    return min(int(full * (1 + spread / 4)), options.backoff_max_ms)


decode_options = options_decoder(QueueOptions)


class PushItem(Struct, kw_only=True, gc=False):
    """What is pushed."""

    payload: bytes
    content: Content = Content.BYTES
    priority: int = 0
    delay_ms: int | None = None
    ttl_ms: int | None = None
    key: str | None = None
    headers: dict[str, str] | None = None


class PushReceipt(Struct, gc=False):
    """What a pushed message is called from now on; for a duplicate, what the first one is called."""

    id: int
    created_at: int
    salt: int
    duplicate: bool = False

    @property
    def uuid(self) -> str:
        return message_uuid(self.id, self.created_at, self.salt)


class StoredMessage(Struct, kw_only=True):
    """A message as it stands in the store."""

    id: int
    uuid: str
    queue: str
    state: State
    payload: bytes
    content: Content
    priority: int
    attempts: int
    created_at: int
    available_at: int
    expires_at: int | None = None
    first_leased_at: int | None = None
    leased_at: int | None = None
    leased_until: int | None = None
    worker: str | None = None
    finished_at: int | None = None
    """When it was archived or died."""
    reason: str | None = None
    """What used up its last attempt: `nacked` or `lapsed`."""
    errors: list[Failure] = []
    key: str | None = None
    headers: dict[str, str] | None = None


class Failure(Struct, gc=False, omit_defaults=True):
    """One failed delivery."""

    attempt: int
    at: int
    error: str
    traceback: str | None = None
    """Where it failed, if the consumer sent that; only `get` of one message reads it."""


class Delivery(Struct, kw_only=True):
    """A message in the hands of one consumer until `leased_until`. A taken message has no token: it is done."""

    id: int
    uuid: str
    queue: str
    payload: bytes
    content: Content
    priority: int
    attempts: int
    created_at: int
    leased_until: int
    token: str
    key: str | None = None
    headers: dict[str, str] | None = None


class QueueInfo(Struct, kw_only=True):
    """A queue, its options and its kept counters."""

    name: str
    options: QueueOptions
    paused: bool
    created_at: int
    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    dead: int = 0
    archived: int = 0
    totals: Totals


class Totals(Struct, kw_only=True, gc=False):
    """How often each thing has happened since the queue was made."""

    pushed: int = 0
    leased: int = 0
    acked: int = 0
    nacked: int = 0
    lapsed: int = 0
    dead: int = 0
    expired: int = 0
    redriven: int = 0
    removed: int = 0

    def plus(self, other: Totals) -> Totals:
        return Totals(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class ApiKey(Struct, gc=False):
    """A right to use one queue or one stream. The secret itself is shown once and never stored."""

    id: str
    queue: str | None
    name: str
    hash: bytes
    rights: list[str]
    created_at: int
    stream: str | None = None


class DeadError(Struct, gc=False):
    """What killed a message: the beginning of its last error."""

    id: int
    died_at: int
    error: str
    is_wanted: bool
    """Whether the whole error contains what was asked for."""


class Ages(Struct, frozen=True, gc=False):
    """Ages, since their push, of two ready messages of a queue: the next to be leased and the oldest."""

    head_ms: int | None = None
    oldest_ms: int | None = None


class QueueStats(Struct, kw_only=True):
    """A queue's counters with what takes a look to know: age and rates."""

    info: QueueInfo
    head_age_ms: int | None
    """Age, since its push, of the ready message that would be leased next."""
    oldest_age_ms: int | None
    """Age, since its push, of the oldest ready message, whatever its priority."""
    rates: dict[str, dict[str, float]]
    """Per second, by what happened, over the last `1m`, `5m` and `15m`."""
    latency: Latency = {}
    """Over the last 15 minutes."""


class Window(Struct, frozen=True, gc=False):
    """From one minute (since 1970) until before another, in steps."""

    from_minute: int
    to_minute: int
    step_minutes: int

    @property
    def starts(self) -> range:
        """The first minute of each step."""
        return range(self.from_minute, self.to_minute, self.step_minutes)

    def start_of(self, minute: int) -> int:
        return minute - (minute - self.from_minute) % self.step_minutes


class Depth(Struct, gc=False):
    """How many messages are in each state."""

    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    dead: int = 0
    archived: int = 0


class Span(Struct, gc=False):
    """One step of a window: what happened in it, and what was there at its end."""

    minute: int
    happened: Totals
    depth: Depth


class RollUp(Struct):
    """A queue over a window."""

    info: QueueInfo
    before: Depth
    """When the window began."""
    spans: list[Span]
    """Oldest first; only those in which something happened."""


Latency = dict[str, dict[str, int | None]]
"""`wait_ms`, `service_ms` and `total_ms`: p50, p95 and p99."""


class Latencies(Struct):
    """How long a queue's messages took, over a window and in those of its steps in which any were counted."""

    queue: str
    latency: Latency
    by_minute: dict[int, Latency]
    counts: dict[int, dict[int, dict[int, int]]] = {}
    """By step, kind and bucket, what these were made of (`penstock.core.latency`)."""


class Presence(Struct, frozen=True, kw_only=True):
    """One who works: a server, or a consumer that gives its name when it leases."""

    kind: Literal["server", "consumer"]
    name: str
    host: str | None = None
    """Where its process runs; of a consumer that asks over HTTP, the server knows only its name."""
    pid: int | None = None
    version: str | None = None
    server: str | None = None
    """Through which a consumer leases; None if it uses the store itself."""
    started_at: int = 0
    """Of a server; a consumer has been here since it was first listed."""
    queues: Sequence[str] = ()
    """Those, and the scopes, that it leases from."""


class WorkerInfo(Struct, kw_only=True):
    """As it is listed."""

    kind: Literal["server", "consumer"]
    name: str
    host: str | None
    pid: int | None
    version: str | None
    server: str | None
    started_at: int
    seen_at: int
    """Its last heartbeat."""
    stale_at: int
    """When it is taken off the list, if there is no other."""
    leases: int = 0
    """Messages that it holds now."""
    queues: dict[str, int] = {}
    """What it leases from, and how many messages it holds of each."""
