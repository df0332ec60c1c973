"""JSON schemas of the tree API: names in camel case, times in RFC 3339, options in seconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.core.ids import PART_PATTERN
from penstock.core.model import ATTEMPTS_MAX, BATCH_MAX, DELAY_MS_MAX, LEASE_MS_MAX, PRIORITY_MAX, QueueOptions

Part = Annotated[str, Meta(pattern=f"^{PART_PATTERN}$")]
TransactionId = Annotated[str, Meta(min_length=1, max_length=512)]
Seconds = int | float
Outcome = Literal["completed", "failed"]
Size = Annotated[int, Meta(ge=1, le=2**53)]
LeaseSeconds = Annotated[float, Meta(ge=0.001, le=LEASE_MS_MAX / 1000)]
DelaySeconds = Annotated[float, Meta(ge=0, le=DELAY_MS_MAX / 1000)]
LifeSeconds = Annotated[float, Meta(ge=0.001, le=DELAY_MS_MAX / 1000)]


class OptionsGiven(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Options of a queue. Those left out keep their value, or the default for a new queue."""

    lease_time: LeaseSeconds | UnsetType = UNSET
    max_size: Size | UnsetType | None = UNSET
    ttl: LifeSeconds | UnsetType | None = UNSET
    retry_limit: Annotated[int, Meta(ge=0, le=ATTEMPTS_MAX - 1)] | UnsetType = UNSET
    retry_delay: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] | UnsetType = UNSET
    """In milliseconds; all other times are seconds."""
    dead_letter_queue: bool | Annotated[str, Meta(min_length=1, max_length=800)] | UnsetType = UNSET
    """True, false, or the path `ns/task/queue` of the queue that dead letters move to."""
    delayed_processing: DelaySeconds | UnsetType = UNSET
    window_buffer: DelaySeconds | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] | UnsetType = UNSET
    require_lease_token: bool | UnsetType = UNSET
    """Refuse acks without `leaseToken`, which a worker whose lease has expired could send."""


class TreeOptions(Struct, rename="camel", kw_only=True):
    lease_time: Seconds
    max_size: int | None
    ttl: Seconds | None
    retry_limit: int
    retry_delay: int
    dead_letter_queue: bool | str
    delayed_processing: Seconds
    window_buffer: Seconds
    priority: int
    require_lease_token: bool


class ConfigureBody(Struct, forbid_unknown_fields=True):
    ns: Part
    task: Part
    queue: Part
    options: OptionsGiven = OptionsGiven()


class Configured(Struct):
    ns: str
    task: str
    queue: str
    options: TreeOptions


class Item(Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    ns: Part
    task: Part
    queue: Part
    payload: msgspec.Raw
    encoding: Literal["base64"] | None = None
    transaction_id: TransactionId | None = None
    signature: str | None = None

    @property
    def path(self) -> str:
        return f"{self.ns}/{self.task}/{self.queue}"


class PushConfig(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    batch_mode: bool = False
    """Push all items or none; otherwise each is independent."""
    auto_create: bool = True


class PushBody(Struct, forbid_unknown_fields=True):
    items: Annotated[list[Item], Meta(min_length=1, max_length=BATCH_MAX)]
    config: PushConfig = PushConfig()


class PushedItem(Struct, rename="camel", omit_defaults=True, kw_only=True):
    id: str | None = None
    transaction_id: str | None = None
    status: Literal["queued", "duplicate", "failed"]
    error: str | None = None
    code: str | None = None


class Pushed(Struct):
    messages: list[PushedItem]


class PopQuery(Struct, forbid_unknown_fields=True):
    wait: bool = False
    timeout: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Milliseconds, limited to the server's maximum."""
    batch: Annotated[int, Meta(ge=1, le=2**53)] = 1
    worker: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """Name of the consumer, for the list of workers."""


class PoppedMessage(Struct, rename="camel", kw_only=True, omit_defaults=True):
    id: str
    transaction_id: str
    payload: Any
    encoding: str | None = None
    queue: str
    created_at: str
    retry_count: int
    lease_token: str
    lease_expires_at: str
    headers: dict[str, str] | None = None


class Popped(Struct):
    messages: list[PoppedMessage]


class Acknowledgment(Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    transaction_id: TransactionId
    status: Outcome
    error: Annotated[str, Meta(max_length=65_536)] | None = None
    lease_token: Annotated[str, Meta(max_length=256)] | None = None
    """Token of the lease to settle. Without it, the message's current lease is settled, even if another worker holds
    it; a queue with `requireLeaseToken` refuses that."""


class Acknowledged(Struct, rename="camel", kw_only=True, omit_defaults=True):
    transaction_id: str
    status: Literal["completed", "failed", "dead_letter", "stale", "unknown"]
    """`stale`: the lease is over; `unknown`: no such message. Both occur only in a batch."""
    completed_at: str | None = None
    retry_scheduled: bool | None = None


class AckBatch(Struct, forbid_unknown_fields=True):
    acknowledgments: Annotated[list[Acknowledgment], Meta(min_length=1, max_length=BATCH_MAX)]


class AckedBatch(Struct):
    processed: int
    """Number of settled messages."""
    results: list[Acknowledged]


SECONDS = {
    "lease_time": "lease_ms",
    "ttl": "ttl_ms",
    "delayed_processing": "delay_ms",
    "window_buffer": "window_ms",
}
SAME = {
    "max_size": "max_size",
    "dead_letter_queue": "dlq",
    "priority": "priority",
    "require_lease_token": "require_lease_token",
}


def option_changes(given: OptionsGiven) -> dict[str, Any]:
    """Return the given options under the names of `QueueOptions`."""
    changes: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(given).items():
        if value is UNSET:
            continue
        if name in SECONDS:
            changes[SECONDS[name]] = None if value is None else round(value * 1000)
        elif name == "retry_limit":
            changes["max_attempts"] = value + 1
        elif name == "retry_delay":
            changes |= {"backoff": "fixed", "backoff_ms": value}
        else:
            changes[SAME[name]] = value
    return changes


def options_view(options: QueueOptions) -> TreeOptions:
    return TreeOptions(
        lease_time=_seconds(options.lease_ms),
        max_size=options.max_size,
        ttl=None if options.ttl_ms is None else _seconds(options.ttl_ms),
        retry_limit=options.max_attempts - 1,
        retry_delay=options.backoff_ms,
        dead_letter_queue=options.dlq,
        delayed_processing=_seconds(options.delay_ms),
        window_buffer=_seconds(options.window_ms),
        priority=options.priority,
        require_lease_token=options.require_lease_token,
    )


def _seconds(ms: int) -> Seconds:
    return ms // 1000 if ms % 1000 == 0 else ms / 1000
