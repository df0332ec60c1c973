"""What a broker asks of a store, and what it gets back.

A command is data: checked by the broker, carried out by a store inside a transaction that it may share with other
commands. Its outcome is either the struct named beside it or a PenstockError, and then it changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from penstock.core.model import ApiKey, Delivery, Presence, PushItem, PushReceipt, QueueInfo, QueueOptions, State

OutcomeT = TypeVar("OutcomeT", covariant=True)


class Command(Struct, Generic[OutcomeT], kw_only=True):
    """The type argument is the outcome."""

    durable: ClassVar[bool] = True
    """Whether the answer waits for the disk. If a power cut loses a lease, the message only comes back sooner."""


class Settled(StrEnum):
    """What became of one ack, nack, extend or release."""

    OK = "ok"
    STALE = "stale"
    """The message is there, but this lease on it is over."""
    UNKNOWN = "unknown"


class PushOutcome(Struct):
    receipts: list[PushReceipt]


class Push(Command[PushOutcome], kw_only=True):
    queue: str
    messages: Sequence[PushItem]
    create: QueueOptions | None = None
    """Make a missing queue with these options; None refuses."""
    global_keys: bool = False
    """Keys are one space for all queues instead of one for each."""
    request_key: str | None = None
    """Names the whole request: sent again within minutes, its messages without keys of their own add nothing."""


class Leased(Struct):
    messages: list[Delivery]
    more: bool = False
    """The step's bound was reached with work left: ask again at once."""
    wake_at: int | None = None
    """When nothing was found: the time at which something may be ready without a push."""


class Lease(Command[Leased], kw_only=True):
    """From a queue, from dead letters (`name.dlq`), or from all queues of a namespace or task."""

    durable: ClassVar[bool] = False
    queue: str | None = None
    scope: str | None = None
    limit: int = 1
    lease_ms: int | None = None
    worker: str | None = None


class CatchUp(Command[Leased], kw_only=True):
    """Move what time has moved in one queue, so that what is read next is as of now."""

    durable: ClassVar[bool] = False
    queue: str


class Take(Command[Leased], kw_only=True):
    """Lease and finish in one step: at most once."""

    queue: str
    limit: int = 1


class SettleItem(Struct, gc=False):
    id: int
    token: str | None
    """None settles the message's current lease, whoever has it."""
    delay_ms: int | None = None
    error: str | None = None
    traceback: str | None = None
    """Where it failed; kept with the error."""
    dead: bool = False
    """A nack for good: no attempt is left."""
    discard: bool = False
    """A nack for good that leaves no dead letter."""


class SettledAll(Struct):
    results: list[Settled]
    states: list[State | None] = []
    """After a nack: where each message is now; None if it is gone or was not touched."""
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
    """From now; None: the queue's own."""


class Release(Command[SettledAll], kw_only=True):
    """Give back a lease that never reached its consumer: no attempt is used up and the message keeps its place."""

    durable: ClassVar[bool] = False
    queue: str
    items: Sequence[SettleItem]


class Removed(Struct):
    removed: int
    more: bool = False
    up_to_id: int | None = None
    """After a purge's step: the newest message there was, for the next step."""


class Remove(Command[Removed], kw_only=True):
    queue: str
    ids: Sequence[int]


class Purge(Command[Removed], kw_only=True):
    """One bounded step; `up_to_id` keeps what arrives meanwhile."""

    queue: str
    states: Sequence[State] = (State.READY, State.SCHEDULED)
    up_to_id: int | None = None
    limit: int = 5_000


class MoveItem(Struct, gc=False):
    id: int
    message: PushItem
    """As it is pushed to the other queue."""


class Move(Command[Removed], kw_only=True):
    """Move messages that wait or are dead to another queue, where they are new. What has left the state stays."""

    queue: str
    target: str
    state: State
    items: Sequence[MoveItem]


class RedriveOutcome(Struct):
    matched: int
    moved: int
    after: str | None = None
    """Where the next step goes on; None when there is nothing left to look at."""


class Redrive(Command[RedriveOutcome], kw_only=True):
    """One bounded step over a queue's dead letters, longest dead first. `died_before` keeps what arrives meanwhile."""

    queue: str
    ids: Sequence[int] | None = None
    error_contains: str | None = None
    groups: Sequence[str] | None = None
    """Only errors of these groups, as `penstock.core.error_groups.error_group` names them."""
    died_before: int | None = None
    after: str | None = None
    limit: int = 1_000
    dry_run: bool = False
    by: str | None = None
    """Who asked, for the journal."""


class Swept(Struct):
    due: int = 0
    lapsed: int = 0
    expired: int = 0
    forgotten: int = 0
    """Archived messages and idempotency keys past their time."""
    more: bool = False
    wake_at: int | None = None
    queues: list[str] = []
    """Queues in which messages became ready, or dead."""


class Sweep(Command[Swept], kw_only=True):
    """Move what time has moved, in every queue, at most about `limit` of each."""

    durable: ClassVar[bool] = False
    limit: int = 1_000
    minutes_kept: int = 30 * 24 * 60
    """For how long it is known what happened when."""


class ConfigureOutcome(Struct):
    info: QueueInfo
    created: bool
    changed: bool


class Configure(Command[ConfigureOutcome], kw_only=True):
    """Create (`create` holds what is not in `changes`) or change a queue.

    With `exact`, a queue that exists with other options is an error instead of being changed.
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
    queue: str
    id: str
    name: str
    hash: bytes
    rights: Sequence[str]


class RemoveKey(Command[Removed], kw_only=True):
    queue: str
    id: str


class AddStreamKey(Command[ApiKey], kw_only=True):
    stream: str
    id: str
    name: str
    hash: bytes
    rights: Sequence[str]


class RemoveStreamKeys(Command[Removed], kw_only=True):
    """Revoke one key of a stream; without an id, all of them."""

    stream: str
    id: str | None = None


class SetSecret(Command[None], kw_only=True):
    """From now on the queue takes only messages signed with this; None: any message."""

    queue: str
    secret: str | None


class SwitchJournal(Command[None], kw_only=True):
    """Begin or end the journal of all who share the store. Every queue tells with what it enters or leaves it."""

    on: bool


class ForgetJournal(Command[None], kw_only=True):
    """The log has everything before this offset; whatever happens next comes at it or later."""

    durable: ClassVar[bool] = False
    before: int


class CatchUpJournal(Command[None], kw_only=True):
    """Tell now what the store would have told with the next change."""

    durable: ClassVar[bool] = False


class Beaten(Struct):
    connected: list[str]
    disconnected: list[str]
    """Who left, and who has not been heard of for too long."""


class Beat(Command[Beaten], kw_only=True):
    """A heartbeat: who works here now, and who has just gone. Whoever gave none for too long is taken off the list."""

    durable: ClassVar[bool] = False
    present: Sequence[Presence] = ()
    gone: Sequence[Presence] = ()
    stale_ms: int = 30_000
    """How long those who are present stay listed without another."""


class TransactOutcome(Struct):
    outcomes: list[Any]


class Transact(Command[TransactOutcome], kw_only=True):
    """All of these or none. A settle that is not `ok` undoes the rest."""

    commands: Sequence[Command[Any]]
