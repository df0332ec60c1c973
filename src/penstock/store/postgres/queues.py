"""A queue as a transaction sees it, with its pending counter changes."""

from __future__ import annotations

from typing import Any

from penstock.core.ids import ID_BITS, ID_MAX, QUEUE_SHIFT
from penstock.core.model import QueueInfo, QueueOptions, Totals, decode_options
from penstock.errors import InvariantBroken
from penstock.store.common import GAUGES, NEVER, TOTALS

COUNTED = (*GAUGES, *(f"n_{name}" for name in TOTALS))


class PostgresQueue:
    """A queue inside a running transaction. Counter changes are written once, when the transaction ends."""

    __slots__ = (
        "changes",
        "created_at",
        "cursor",
        "cursor_moved",
        "due_at",
        "expiry_at",
        "id",
        "journals",
        "lease_expiry_at",
        "leased",
        "name",
        "name_bytes",
        "newest_at",
        "options",
        "paused",
        "plain_end",
        "plain_start",
        "pushed_to",
        "stored_options",
        "waiting",
    )

    def __init__(self, row: tuple[Any, ...]) -> None:
        (
            self.name,
            self.id,
            options,
            self.paused,
            self.created_at,
            cursor,
            newest_at,
            due_at,
            lease_expiry_at,
            expiry_at,
            waiting,
            leased,
            self.journals,
        ) = row
        self.name_bytes: bytes = self.name.encode()
        self.stored_options: str = options
        self.options: QueueOptions = decode_options(options)
        self.cursor: int = cursor or 0
        self.newest_at: int = newest_at or 0
        self.due_at: int = NEVER if due_at is None else due_at
        self.lease_expiry_at: int = NEVER if lease_expiry_at is None else lease_expiry_at
        self.expiry_at: int = NEVER if expiry_at is None else expiry_at
        # Ready and scheduled messages. Loaded, like `leased`, only if an option limits them.
        self.waiting: int = waiting or 0
        self.leased: int = leased or 0
        self.plain_start: int = self.id << QUEUE_SHIFT
        self.plain_end: int = self.plain_start + (1 << ID_BITS)
        self.changes: dict[str, int] = {}
        self.cursor_moved = False
        self.pushed_to = False

    def move_cursor(self, first: int, last: int | None = None) -> None:
        """Move the cursor over plain messages that are leased or taken, which lie behind all that were before."""
        last = first if last is None else last
        if not self.cursor < first <= last < self.plain_end:
            raise InvariantBroken(f"{self.name!r}: message {first & ID_MAX} was leased before")
        self.cursor, self.cursor_moved = last, True

    def row_key(self, message_id: int, *, plain: bool) -> int:
        return (self.plain_start if plain else self.plain_end) | message_id

    @property
    def is_journalled(self) -> bool:
        """True if events of its messages go into the journal."""
        return self.journals and self.options.journal != "off"

    @property
    def unfinished(self) -> int:
        changes = self.changes
        moved = changes.get("ready", 0) + changes.get("scheduled", 0) + changes.get("leased", 0)
        return self.waiting + self.leased + moved

    @property
    def in_flight(self) -> int:
        return self.leased + self.changes.get("leased", 0)

    def count(self, **changes: int) -> None:
        mine = self.changes
        for name, change in changes.items():
            mine[name] = mine.get(name, 0) + change

    def written(self) -> None:
        """Reset the changes after they were written."""
        self.waiting += self.changes.get("ready", 0) + self.changes.get("scheduled", 0)
        self.leased += self.changes.get("leased", 0)
        self.changes = {}
        self.cursor_moved = self.pushed_to = False

    def info(self, counts: tuple[int, ...]) -> QueueInfo:
        return queue_info(self.name, self.options, self.paused, self.created_at, counts)


def queue_info(name: str, options: QueueOptions, paused: bool, created_at: int, counts: tuple[int, ...]) -> QueueInfo:
    """Return the info of a queue; `counts` are in the order of COUNTED."""
    gauges = dict(zip(GAUGES, counts, strict=False))
    totals = dict(zip(TOTALS, counts[len(GAUGES) :], strict=True))
    return QueueInfo(
        name=name, options=options, paused=paused, created_at=created_at, totals=Totals(**totals), **gauges
    )


def is_limited(options: QueueOptions) -> bool:
    """Return True if a push or a lease needs the number of messages."""
    return options.max_size is not None or options.max_in_flight is not None
