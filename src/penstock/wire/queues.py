"""JSON schemas of the queue API, shared by server, SDK and CLI. Times are milliseconds since 1970.

Requests are decoded strictly. A client works with a newer server: responses ignore unknown fields, and values of a
set that may grow are decoded as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.core.commands import Settled
from penstock.core.error_groups import ERROR_SHOWN_MAX
from penstock.core.model import (
    BATCH_MAX,
    DELAY_MS_MAX,
    LEASE_MS_MAX,
    PRIORITY_MAX,
    ApiKey,
    Content,
    Failure,
    QueueOptions,
    State,
    Totals,
)

Key = Annotated[str, Meta(min_length=1, max_length=512)]
MessageId = Annotated[int, Meta(ge=1, le=2**44)]
DelayMs = Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)]
TtlMs = Annotated[int, Meta(ge=1, le=DELAY_MS_MAX)]
Priority = Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]
LeaseMs = Annotated[int, Meta(ge=1, le=LEASE_MS_MAX)]
ErrorText = Annotated[str, Meta(max_length=65_536)]
# In responses. The enumerations are for OpenAPI; a client accepts any text.
StateText = Annotated[str, Meta(extra_json_schema={"enum": list(State)})]
ContentText = Annotated[str, Meta(extra_json_schema={"enum": list(Content)})]
SettledText = Annotated[str, Meta(extra_json_schema={"enum": list(Settled)})]

_options = [(field.name, field.type | UnsetType, UNSET) for field in msgspec.structs.fields(QueueOptions)]
OptionChanges: Any = msgspec.defstruct(
    "OptionChanges",
    [
        *_options,
        ("visibility_ms", LeaseMs | UnsetType, UNSET),
        ("secret", Annotated[str, Meta(min_length=16, max_length=512)] | None | UnsetType, UNSET),
    ],
    forbid_unknown_fields=True,
    kw_only=True,
)
CreateQueue: Any = msgspec.defstruct(
    "CreateQueue", [("name", str)], bases=(OptionChanges,), forbid_unknown_fields=True, kw_only=True
)


class QueueView(Struct, kw_only=True):
    name: str
    max_attempts: int
    visibility_ms: int
    dlq: str | None
    """Name under which its dead letters can be leased and read."""
    options: QueueOptions
    paused: bool
    created_at: int
    ready: int
    scheduled: int
    leased: int
    dead: int
    archived: int
    totals: Totals


class QueueList(Struct):
    queues: list[QueueView]
    next: str | None = None


class PushOne(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    payload: msgspec.Raw
    encoding: Literal["base64", "text"] | None = None
    """Encoding of a payload that is not JSON: bytes as base64, or text as a string."""
    priority: Priority = 0
    delay_ms: DelayMs | None = None
    ttl_ms: TtlMs | None = None
    idempotency_key: Key | None = None
    headers: dict[str, str] | None = None
    signature: str | None = None


class PushBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """One message, or many under `messages`."""

    payload: msgspec.Raw | UnsetType = UNSET
    encoding: Literal["base64", "text"] | None = None
    """Encoding of a payload that is not JSON: bytes as base64, or text as a string."""
    priority: Priority = 0
    delay_ms: DelayMs | None = None
    ttl_ms: TtlMs | None = None
    idempotency_key: Key | None = None
    headers: dict[str, str] | None = None
    signature: str | None = None
    messages: Annotated[list[PushOne], Meta(min_length=1, max_length=BATCH_MAX)] | UnsetType = UNSET
    request_key: Key | None = None
    """With `messages`: if repeated within 15 minutes, messages without keys of their own are not added again."""


class PushedOne(Struct):
    message_id: int
    id: int
    uuid: str
    duplicate: bool


class PushedMany(Struct):
    message_ids: list[int]
    duplicates: list[int]
    """Positions of duplicates; their ids are those of the first messages."""


class PollQuery(Struct, forbid_unknown_fields=True):
    batch: Annotated[int, Meta(ge=1, le=BATCH_MAX)] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=600_000)] | None = None
    visibility_ms: LeaseMs | None = None
    worker: Annotated[str, Meta(max_length=255)] | None = None


class Settle(Struct, forbid_unknown_fields=True, omit_defaults=True):
    id: MessageId
    token: str | None = None


class PollBody(Struct, forbid_unknown_fields=True):
    acks: Annotated[list[Settle], Meta(max_length=BATCH_MAX)] = []


class PolledMessage(Struct, omit_defaults=True, kw_only=True):
    id: int
    uuid: str
    payload: msgspec.Raw
    encoding: str | None = None
    content: ContentText = Content.JSON
    """Encoding of a payload that was not pushed as JSON: text or bytes."""
    priority: int
    attempts: int
    created_at: int
    lease_expires_at: int
    token: str
    idempotency_key: str | None = None
    headers: dict[str, str] | None = None


class Polled(Struct, omit_defaults=True):
    messages: list[PolledMessage]
    acks: Sequence[SettledText] | None = None
    """Results of the acks in the same request: ok, stale or unknown."""


class NackItem(Settle, forbid_unknown_fields=True):
    delay_ms: DelayMs | None = None
    error: ErrorText | None = None
    traceback: ErrorText | None = None
    """Traceback of the error; the last 8,192 characters are stored."""
    dead: bool = False
    """Dead-letter the message now, even if attempts are left."""
    discard: bool = False
    """Delete the message now, without a dead letter."""


class AckBody(Struct, forbid_unknown_fields=True):
    """One, or many under `items`."""

    id: MessageId | UnsetType = UNSET
    token: str | None = None
    items: Annotated[list[Settle], Meta(min_length=1, max_length=BATCH_MAX)] | UnsetType = UNSET


class NackBody(Struct, forbid_unknown_fields=True):
    id: MessageId | UnsetType = UNSET
    token: str | None = None
    delay_ms: DelayMs | None = None
    error: ErrorText | None = None
    traceback: ErrorText | None = None
    """Traceback of the error; the last 8,192 characters are stored."""
    dead: bool = False
    """Dead-letter the message now, even if attempts are left."""
    discard: bool = False
    """Delete the message now, without a dead letter."""
    items: Annotated[list[NackItem], Meta(min_length=1, max_length=BATCH_MAX)] | UnsetType = UNSET


class ExtendBody(Struct, forbid_unknown_fields=True):
    id: MessageId | UnsetType = UNSET
    token: str | None = None
    ms: LeaseMs | None = None
    items: Annotated[list[Settle], Meta(min_length=1, max_length=BATCH_MAX)] | UnsetType = UNSET


class SettledOne(Struct, omit_defaults=True):
    id: int
    result: SettledText
    state: StateText | None = None
    """State after a nack: scheduled, ready or dead."""


class SettledItems(Struct, omit_defaults=True):
    results: list[SettledOne]
    lease_expires_at: int | None = None


class TransactSettle(NackItem, forbid_unknown_fields=True):
    queue: str | None = None


class TransactPush(PushOne, forbid_unknown_fields=True, kw_only=True):
    queue: str | None = None


class TransactBody(Struct, forbid_unknown_fields=True):
    """Items name another queue with `queue`."""

    ack: Annotated[list[TransactSettle], Meta(max_length=BATCH_MAX)] = []
    nack: Annotated[list[TransactSettle], Meta(max_length=BATCH_MAX)] = []
    push: Annotated[list[TransactPush], Meta(max_length=BATCH_MAX)] = []


class TransactedView(Struct):
    acked: int
    nacked: int
    message_ids: list[int]
    duplicates: list[int]


class PageQuery(Struct, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    after: str | None = None


class ListQuery(PageQuery, forbid_unknown_fields=True):
    prefix: Annotated[str, Meta(max_length=800)] = ""


class PeekQuery(PageQuery, forbid_unknown_fields=True):
    state: Literal["ready", "scheduled", "leased", "dead", "archived"] = "ready"


class MessageView(Struct, omit_defaults=True, kw_only=True):
    id: int
    uuid: str
    queue: str
    state: StateText
    payload: msgspec.Raw
    encoding: str | None = None
    content: ContentText
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
    error: str | None = None
    errors: list[Failure] = []
    idempotency_key: str | None = None
    headers: dict[str, str] | None = None


class MessagePage(Struct):
    messages: list[MessageView]
    next: str | None = None


class ImportedMessage(Struct):
    """A line of an export. Fields that cannot be restored (ids, attempts, leases) are ignored."""

    payload: msgspec.Raw
    content: Literal["bytes", "text", "json"] = "json"
    encoding: Literal["base64"] | None = None
    uuid: str | None = None
    state: str = "ready"
    priority: int = 0
    available_at: int | None = None
    expires_at: int | None = None
    idempotency_key: Key | None = None
    headers: dict[str, str] | None = None


class Imported(Struct):
    imported: int
    duplicates: int
    skipped: int
    """Messages not imported, because they were acknowledged already."""


class Stats(Struct, kw_only=True):
    """Counts, ages, rates and latencies of a queue. Rates are per second over `1m`, `5m` and `15m`."""

    queue: str
    paused: bool
    ready: int
    scheduled: int
    leased: int
    dead: int
    dlq: int
    archived: int
    head_age_ms: int | None = None
    """Age, since its push, of the ready message that would be leased next."""
    oldest_age_ms: int | None
    """Age, since its push, of the oldest ready message, whatever its priority."""
    age_alert: bool = False
    """True if that age is above the queue's `max_age_alert_ms`."""
    rates: dict[str, dict[str, float]]
    error_rate: float
    """Share of failed deliveries among those that ended in the last 15 minutes."""
    latency: dict[str, dict[str, int | None]]
    """`wait_ms` and `service_ms`: p50, p95 and p99 over the last 15 minutes."""
    totals: Totals


class PurgeQuery(Struct, forbid_unknown_fields=True):
    dry_run: bool = False


class Purged(Struct):
    purged: int
    dry_run: bool


class DropQuery(Struct, forbid_unknown_fields=True):
    force: bool = False


class Dropped(Struct):
    dropped: str
    messages: int


class DeadWhere(Struct, frozen=True, forbid_unknown_fields=True):
    ids: Annotated[list[MessageId], Meta(max_length=BATCH_MAX)] | None = None
    error_contains: Annotated[str, Meta(max_length=4_096)] | None = None
    groups: Annotated[list[Annotated[str, Meta(max_length=ERROR_SHOWN_MAX)]], Meta(max_length=1_000)] | None = None
    """Only errors of these groups, as `GET /queues/{queue}/dlq/errors` names them."""
    older_than_ms: DelayMs | None = None
    died_before: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Only messages that were dead at this time, such as the `seen_at` of an earlier response."""


class RequeueBody(Struct, forbid_unknown_fields=True):
    where: DeadWhere = DeadWhere()
    rate_per_s: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    dry_run: bool = False


class Requeued(Struct):
    matched: int
    moved: int
    skipped: int


class NewKey(Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=255)] = ""
    rights: Annotated[list[Literal["push", "consume", "admin"]], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["push", "consume"]
    )


new_key_body = msgspec.json.Decoder(NewKey)


class KeyView(Struct, omit_defaults=True, kw_only=True):
    id: str
    queue: str | None = None
    stream: str | None = None
    name: str
    rights: list[str]
    created_at: int
    key: str | None = None
    """The key itself; only in the response that creates it."""

    @classmethod
    def of(cls, key: ApiKey, secret: str | None = None) -> KeyView:
        return cls(
            id=key.id,
            queue=key.queue,
            stream=key.stream,
            name=key.name,
            rights=key.rights,
            created_at=key.created_at,
            key=secret,
        )


class KeyList(Struct):
    keys: list[KeyView]


class Done(Struct):
    status: Literal["ok"] = "ok"
