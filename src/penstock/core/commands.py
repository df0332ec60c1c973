"""Commands that a broker sends to a store, and their outcomes.

A command is plain data. The broker validates it, and the store executes it inside a transaction that may hold other
commands too. The outcome is the struct named in the command's type argument, or a PenstockError if nothing changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from penstock.core.model import ApiKey, Delivery, Presence, PushItem, PushReceipt, QueueInfo, QueueOptions, State

OutcomeT = TypeVar("OutcomeT", covariant=True)


class Command(Struct, Generic[OutcomeT], kw_only=True):
    """Base of all commands; the type argument is the type of the outcome."""

    durable: ClassVar[bool] = True
    """True if the reply waits for the fsync. If a power cut loses a lease, the message is only redelivered sooner."""


class Settled(StrEnum):
    """Result of one ack, nack, extend or release."""

    OK = "ok"
    STALE = "stale"
    """The message exists, but this lease has ended."""
    UNKNOWN = "unknown"


class PushOutcome(Struct):
    receipts: list[PushReceipt]


class Push(Command[PushOutcome], kw_only=True):
    queue: str
    messages: Sequence[PushItem]
    create: QueueOptions | None = None
    """Create a missing queue with these options; None raises an error instead."""
    global_keys: bool = False
    """Deduplicate keys across all queues instead of per queue."""
    request_key: str | None = None
    """Deduplicates the whole request: a repeat within minutes adds no message, even of those without a key."""


class Leased(Struct):
    messages: list[Delivery]
    more: bool = False
    """The step reached its limit with work left: repeat at once."""
    wake_at: int | None = None
    """If nothing was found: when a message may become ready without a push."""


class Lease(Command[Leased], kw_only=True):
    """Leases from a queue, from its dead letters (`name.dlq`), or from all queues of a namespace or task."""

    durable: ClassVar[bool] = False
    queue: str | None = None
    scope: str | None = None
    limit: int = 1
    lease_ms: int | None = None
    worker: str | None = None


class CatchUp(Command[Leased], kw_only=True):
    """Applies due, expired and timed-out transitions of one queue, so that the next read is current."""

    durable: ClassVar[bool] = False
    queue: str


class Take(Command[Leased], kw_only=True):
    """Leases and acknowledges in one step: at-most-once delivery."""

    queue: str
    limit: int = 1


class SettleItem(Struct, gc=False):
    id: int
    token: str | None
    """None settles the message's current lease, no matter which consumer holds it."""
    delay_ms: int | None = None
    error: str | None = None
    traceback: str | None = None
    """Stored with the error."""
    dead: bool = False
    """Dead-letter the message now, whatever attempts it has left."""
    discard: bool = False
    """Delete the message instead of dead-lettering it."""


class SettledAll(Struct):
    results: list[Settled]
    states: list[State | None] = []
    """After a nack: the new state of each message; None if it was deleted or not changed."""
    leased_until: int | None = None
    """After an extend."""


class Ack(Command[SettledAll], kw_only=True):
    queue: str
    items: Sequence[SettleItem]


class Nack(Command[SettledAll], kw_only=True):
    queue: str
    items: Sequence[SettleItem]


class Extend(Command[SettledAll], kw_only=True):
    queue: str
    items: Sequence[SettleItem]
    lease_ms: int | None = None
    """Counted from now; None uses the queue's `lease_ms`."""


class Release(Command[SettledAll], kw_only=True):
    """Returns leases that never reached a consumer: uses no attempt, and the message keeps its position."""

    durable: ClassVar[bool] = False
    queue: str
    items: Sequence[SettleItem]


class Removed(Struct):
    removed: int
    more: bool = False
    up_to_id: int | None = None
    """After a step of a purge: the newest message when it began, to pass to the next step."""


class Remove(Command[Removed], kw_only=True):
    queue: str
    ids: Sequence[int]


class Purge(Command[Removed], kw_only=True):
    """Deletes messages, one bounded step at a time; `up_to_id` spares messages pushed after the first step."""

    queue: str
    states: Sequence[State] = (State.READY, State.SCHEDULED)
    up_to_id: int | None = None
    limit: int = 5_000


class MoveItem(Struct, gc=False):
    id: int
    message: PushItem
    """The message to push to the target queue."""


class Move(Command[Removed], kw_only=True):
    """Moves ready, scheduled or dead messages to another queue as new ones, skipping those that left `state`."""

    queue: str
    target: str
    state: State
    items: Sequence[MoveItem]


class RedriveOutcome(Struct):
    matched: int
    moved: int
    after: str | None = None
    """Position for the next step; None when no dead letters are left."""


class Redrive(Command[RedriveOutcome], kw_only=True):
    """Moves dead letters back into their queue, oldest first, one bounded step at a time.

    `died_before` spares messages that died after the first step.
    """

    queue: str
    ids: Sequence[int] | None = None
    error_contains: str | None = None
    groups: Sequence[str] | None = None
    """Only errors of these groups (see `penstock.core.error_groups.error_group`)."""
    died_before: int | None = None
    after: str | None = None
    limit: int = 1_000
    dry_run: bool = False
    by: str | None = None
    """The user or program to record in the journal."""


class Swept(Struct):
    due: int = 0
    lapsed: int = 0
    expired: int = 0
    forgotten: int = 0
    """Archived messages and idempotency keys deleted after their retention."""
    more: bool = False
    wake_at: int | None = None
    queues: list[str] = []
    """Queues in which messages became ready or died."""


class Sweep(Command[Swept], kw_only=True):
    """Applies due, expired and timed-out transitions in every queue, about `limit` of each kind."""

    durable: ClassVar[bool] = False
    limit: int = 1_000
    minutes_kept: int = 30 * 24 * 60
    """Retention of the counters per minute."""


class ConfigureOutcome(Struct):
    info: QueueInfo
    created: bool
    changed: bool


class Configure(Command[ConfigureOutcome], kw_only=True):
    """Creates or changes a queue; `create` holds the options that `changes` does not give.

    With `exact`, an existing queue with other options is an error and is not changed.
    """

    queue: str
    changes: dict[str, Any]
    create: QueueOptions | None = None
    exact: bool = False


class Pause(Command[ConfigureOutcome], kw_only=True):
    queue: str
    paused: bool = True


class Drop(Command[Removed], kw_only=True):
    queue: str
    force: bool = False


class AddKey(Command[ApiKey], kw_only=True):
    """Creates an API key of a queue or of a stream."""

    queue: str | None = None
    stream: str | None = None
    id: str
    name: str
    hash: bytes
    rights: Sequence[str]


class RemoveKeys(Command[Removed], kw_only=True):
    """Revokes one key of a queue or a stream, or all of them without an id."""

    queue: str | None = None
    stream: str | None = None
    id: str | None = None


class SetSecret(Command[None], kw_only=True):
    """Makes the queue accept only messages signed with this secret; None accepts any message."""

    queue: str
    secret: str | None


class SwitchJournal(Command[None], kw_only=True):
    """Turns the journal of the store on or off for every process, and records each queue's depth at that moment."""

    on: bool


class ForgetJournal(Command[None], kw_only=True):
    """Deletes journal rows before this offset, which the log already holds; later events get higher offsets."""

    durable: ClassVar[bool] = False
    before: int


class CatchUpJournal(Command[None], kw_only=True):
    """Writes pending journal events now instead of with the next change."""

    durable: ClassVar[bool] = False


class Beaten(Struct):
    connected: list[str]
    disconnected: list[str]
    """Workers that left or missed their heartbeats."""


class Beat(Command[Beaten], kw_only=True):
    """Records heartbeats and departures of workers, and removes workers whose heartbeats stopped."""

    durable: ClassVar[bool] = False
    present: Sequence[Presence] = ()
    gone: Sequence[Presence] = ()
    stale_ms: int = 30_000
    """How long a worker stays listed without another heartbeat."""


class TransactOutcome(Struct):
    outcomes: list[Any]


class Transact(Command[TransactOutcome], kw_only=True):
    """Executes all of these commands or none. A settle that is not `ok` rolls back the rest."""

    commands: Sequence[Command[Any]]
