"""Data types: options, messages, deliveries, and the statistics of a queue. No behaviour beyond validation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.core.ids import message_uuid
from penstock.core.options import Options, options_decoder

Clock = Callable[[], int]
# Called with the amounts done and in total.
Progress = Callable[[int, int], None]

DAY_MS = 86_400_000
LEASE_MS_MAX = 30 * DAY_MS
DELAY_MS_MAX = 3650 * DAY_MS
PRIORITY_MAX = 2**31 - 1
BATCH_MAX = 10_000
# Payload bytes in one reply; the rest waits for the next request. The first message is sent whatever its size.
LEASE_BYTES_MAX = 16 << 20
ATTEMPTS_MAX = 1_000
ERROR_TEXT_MAX = 4_096
TRACEBACK_MAX = 8_192
KEY_LENGTH_MAX = 512
HEADERS_BYTES_MAX = 16_384

LeaseMs = Annotated[int, Meta(ge=1, le=LEASE_MS_MAX)]
DelayMs = Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Priority = Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]
AgeMs = Annotated[int, Meta(ge=1, le=DELAY_MS_MAX)]
Attempts = Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)]
Rate = Annotated[float, Meta(gt=0, le=1e9)]
QueueName = Annotated[str, Meta(min_length=1, max_length=800)]


def doc(text: str) -> Meta:
    """Describe a field in its JSON schema."""
    return Meta(description=text)


def system_clock() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class State(StrEnum):
    READY = "ready"
    SCHEDULED = "scheduled"
    LEASED = "leased"
    DEAD = "dead"
    ARCHIVED = "archived"


class Content(StrEnum):
    """Form in which the payload was pushed, so that every API can return it the same way."""

    BYTES = "bytes"
    TEXT = "text"
    JSON = "json"


class QueueOptions(Options, frozen=True, kw_only=True):
    """Options of a queue. OpenAPI, the CLI, the dashboard and the reference take names, limits and texts from here."""

    lease_ms: Annotated[LeaseMs, doc("How long a consumer may hold a message before it is redelivered.")] = 30_000
    max_attempts: Annotated[Attempts, doc("Deliveries before a message is dead-lettered.")] = 5
    backoff: Annotated[Literal["exponential", "fixed"], doc("How the delay after a nack grows.")] = "exponential"
    backoff_ms: Annotated[DelayMs, doc("Delay after the first nack.")] = 1_000
    backoff_max_ms: Annotated[DelayMs, doc("Longest delay after a nack.")] = 3_600_000
    max_in_flight: Annotated[
        Positive | None, doc("Messages that may be leased at the same time; 1 allows one consumer at a time.")
    ] = None
    delay_ms: Annotated[DelayMs, doc("How long a pushed message waits before it is ready.")] = 0
    window_ms: Annotated[DelayMs, doc("Lease nothing until the newest message is this old.")] = 0
    ttl_ms: Annotated[AgeMs | None, doc("How long a message may wait before it expires and is deleted.")] = None
    max_age_alert_ms: Annotated[
        AgeMs | None, doc("Raise `age_alert` when the oldest ready message is older than this.")
    ] = None
    priority: Annotated[
        Priority, doc("Priority of the queue in a pop over a namespace or task; the highest comes first.")
    ] = 0
    max_size: Annotated[Positive | None, doc("Messages the queue may hold; further pushes are rejected.")] = None
    push_rate: Annotated[Rate | None, doc("Messages accepted per second, with bursts of up to `push_burst`.")] = None
    push_burst: Annotated[Positive | None, doc("Messages accepted at once above the `push_rate`.")] = None
    dlq: Annotated[
        bool | QueueName,
        doc("Keep dead messages in `<name>.dlq` (true), move them to the named queue, or delete them (false)."),
    ] = True
    require_lease_token: Annotated[
        bool, doc("Settle a message only with its lease token, so that a worker with an expired lease cannot.")
    ] = False
    archive_ms: Annotated[
        DelayMs | None,
        doc("How long an acknowledged message is kept; 0 deletes it at once, none keeps it until it is removed."),
    ] = 0
    dedupe_ms: Annotated[
        DelayMs, doc("How long an idempotency key is remembered, at least while its message exists.")
    ] = DAY_MS
    journal: Annotated[
        Literal["full", "meta", "off"],
        doc("What the journal records about messages: everything, everything but bodies, or nothing."),
    ] = "full"

    def is_age_alert(self, oldest_ms: int | None) -> bool:
        """Return True if a ready message of this age is older than `max_age_alert_ms`."""
        return oldest_ms is not None and self.max_age_alert_ms is not None and oldest_ms > self.max_age_alert_ms


def backoff_ms(options: QueueOptions, message_id: int, attempts: int) -> int:
    """Return the delay after a nack. The jitter is computed from id and attempt, so retries are predictable."""
    if options.backoff == "fixed":
        return options.backoff_ms
    full = options.backoff_ms << min(attempts - 1, 40)
    spread = ((message_id * 2654435761 + attempts * 40503) & 0xFFFF) / 0xFFFF
    return min(int(full * (1 + spread / 4)), options.backoff_max_ms)


decode_options = options_decoder(QueueOptions)


# The binary form of the queue API encodes PushItem and Delivery as arrays: add fields at the end only, with a default.


class PushItem(Struct, kw_only=True, gc=False, array_like=True):
    """A message to push."""

    payload: bytes
    content: Content = Content.BYTES
    priority: int = 0
    delay_ms: int | None = None
    ttl_ms: int | None = None
    key: str | None = None
    headers: dict[str, str] | None = None


class PushReceipt(Struct, gc=False):
    """Identity of a pushed message; for a duplicate, the identity of the first one."""

    id: int
    created_at: int
    store_id: int
    duplicate: bool = False

    @property
    def uuid(self) -> str:
        return message_uuid(self.id, self.created_at, self.store_id)


class StoredMessage(Struct, kw_only=True):
    """A message as stored."""

    id: int
    uuid: str
    queue: str
    state: State | str
    """Text if a newer server reports a state that this version does not know."""
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
    """How the last attempt ended: `nacked` or `lapsed` (the lease expired)."""
    errors: list[Failure] = []
    key: str | None = None
    headers: dict[str, str] | None = None


class Failure(Struct, gc=False, omit_defaults=True):
    """One failed delivery."""

    attempt: int
    at: int
    error: str
    traceback: str | None = None
    """Traceback, if the consumer sent one; only `get` of one message reads it."""


class Delivery(Struct, kw_only=True, gc=False, array_like=True):
    """A message leased to one consumer until `leased_until`. A taken message is already done and has no token."""

    id: int
    uuid_source: int | str
    """A store sets its own id, because most consumers never read the UUID. A server's response has the UUID."""
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

    @property
    def uuid(self) -> str:
        known = self.uuid_source
        return known if isinstance(known, str) else message_uuid(self.id, self.created_at, known)


class QueueInfo(Struct, kw_only=True):
    """A queue, its options and its counters."""

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
    """Counts of each kind of event since the queue was created."""

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
    """Grants access to one queue or one stream. The secret itself is shown once and never stored."""

    id: str
    queue: str | None
    name: str
    hash: bytes
    rights: list[str]
    created_at: int
    stream: str | None = None


class DeadError(Struct, gc=False):
    """The beginning of the last error of a dead letter."""

    id: int
    died_at: int
    error: str
    is_wanted: bool
    """True if the whole error contains the text searched for."""


class Ages(Struct, frozen=True, gc=False):
    """Ages, since their push, of the next ready message to be leased and of the oldest one."""

    head_ms: int | None = None
    oldest_ms: int | None = None


class QueueStats(Struct, kw_only=True):
    """Counters of a queue, with ages, rates and latencies computed on request."""

    info: QueueInfo
    head_age_ms: int | None
    """Age, since its push, of the ready message that would be leased next."""
    oldest_age_ms: int | None
    """Age, since its push, of the oldest ready message, whatever its priority."""
    rates: dict[str, dict[str, float]]
    """Events per second, by kind, over the last `1m`, `5m` and `15m`."""
    latency: Latency = {}
    """Over the last 15 minutes."""

    @property
    def age_alert(self) -> bool:
        return self.info.options.is_age_alert(self.oldest_age_ms)


class Window(Struct, frozen=True, gc=False):
    """A range of minutes since 1970, end exclusive, divided into steps."""

    from_minute: int
    to_minute: int
    step_minutes: int

    @property
    def starts(self) -> range:
        """First minute of each step."""
        return range(self.from_minute, self.to_minute, self.step_minutes)

    def start_of(self, minute: int) -> int:
        return minute - (minute - self.from_minute) % self.step_minutes


class Depth(Struct, gc=False):
    """Number of messages in each state."""

    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    dead: int = 0
    archived: int = 0


def current_depth(info: QueueInfo) -> Depth:
    return Depth(info.ready, info.scheduled, info.leased, info.dead, info.archived)


class Span(Struct, gc=False):
    """One step of a window: the events in it, and the depth at its end."""

    minute: int
    happened: Totals
    depth: Depth


class RollUp(Struct):
    """History of a queue over a window."""

    info: QueueInfo
    before: Depth
    """Depth at the start of the window."""
    spans: list[Span]
    """Steps with events, oldest first."""

    def steps(self, window: Window) -> Iterator[Span]:
        """Yield a span for each step of the window, also for those without events."""
        spans, depth = {span.minute: span for span in self.spans}, self.before
        for start in window.starts:
            span = spans.get(start) or Span(start, Totals(), depth)
            depth = span.depth
            yield span


# `wait_ms`, `service_ms` and `total_ms`: p50, p95 and p99.
Latency = dict[str, dict[str, int | None]]


class Latencies(Struct):
    """Latencies of a queue over a window, and in each of its steps that has any."""

    queue: str
    latency: Latency
    by_minute: dict[int, Latency]
    counts: dict[int, dict[int, dict[int, int]]] = {}
    """The histograms behind them, by step, kind and bucket (see `penstock.core.latency`)."""


class Presence(Struct, frozen=True, kw_only=True):
    """A worker: a server, or a consumer that sends its name when it leases."""

    kind: Literal["server", "consumer"]
    name: str
    host: str | None = None
    """Host of its process; None for a consumer over HTTP, of which the server knows only the name."""
    pid: int | None = None
    version: str | None = None
    server: str | None = None
    """Server through which a consumer leases; None if it uses the store directly."""
    started_at: int = 0
    """Start of a server; a consumer counts from when it was first listed."""
    queues: Sequence[str] = ()
    """Queues and scopes that it leases from."""


class WorkerInfo(Struct, kw_only=True):
    """A worker as listed, with the messages it holds."""

    kind: Literal["server", "consumer"]
    name: str
    host: str | None
    pid: int | None
    version: str | None
    server: str | None
    started_at: int
    seen_at: int
    """Time of its last heartbeat."""
    stale_at: int
    """When it is removed from the list without another heartbeat."""
    leases: int = 0
    """Messages that it holds now."""
    queues: dict[str, int] = {}
    """Queues and scopes that it leases from, with the number of messages held of each."""
