"""What is moved, in a form that both kinds of store have in common, and what each of them must be able to do for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from penstock.migration.streams import StreamEndpoint

STEP_ROWS = 2_000
# What a step reads and writes at most; beyond the first message, which may be larger.
STEP_BYTES = 8 << 20
# Of their books: a queue has up to 43,200 minutes.
STEP_QUEUES = 16

Row = tuple[Any, ...]
# Gauges and totals, in the order in which every store counts them.
Counts = tuple[int, ...]


class MigratedTable(NamedTuple):
    """A table that is the same on both sides, but for flags: 0 and 1 in SQLite."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    flags: frozenset[str] = frozenset()


def _migrated_table(name: str, key: str, others: str, flags: str = "") -> MigratedTable:
    return MigratedTable(name, tuple(key.split()), (*key.split(), *others.split()), frozenset(flags.split()))


QUEUE = _migrated_table("queue", "id", "name options paused created_at secret", "paused")
MESSAGE = _migrated_table("message", "place", "created_at available_at priority content key headers payload")
# In this order: what refers to a queue comes after it.
TABLES = (
    QUEUE,
    MESSAGE,
    _migrated_table("ready", "queue_id rank available_at id", "place attempts first_leased_at expires_at"),
    _migrated_table("scheduled", "queue_id available_at id", "rank place attempts first_leased_at expires_at"),
    _migrated_table(
        "lease",
        "queue_id leased_until id",
        "place token leased_at attempts first_leased_at expires_at from_dead extended worker",
        "from_dead extended",
    ),
    _migrated_table("extension", "id", "leased_until"),
    _migrated_table(
        "dead", "id", "place queue_id died_at attempts first_leased_at ttl_left_ms reason error leased", "leased"
    ),
    _migrated_table("archive", "id", "place queue_id archived_at attempts first_leased_at leased_at"),
    _migrated_table("failure", "id at attempt", "error traceback"),
    _migrated_table("key", "space key", "id place created_at expires_at check_at"),
    _migrated_table("api_key", "id", "queue_id name hash rights created_at"),
    _migrated_table("stream_key", "id", "stream name hash rights created_at"),
)
# The number of a removed queue that a key still names is given to no other.
LAST_QUEUE_ID = (
    "INSERT INTO {0}setting SELECT 'last_queue_id', max(place >> 45) FROM {0}key WHERE space = 0 HAVING count(*) > 0"
)


class CounterHistory(NamedTuple):
    """What is counted of a queue."""

    queue_id: int
    name: str
    created_at: int
    cursor: int
    newest_at: int
    tokens: float | None
    tokens_at: int | None
    counts: Counts
    minutes: list[tuple[int, Counts]]
    """The counts as they stood at the end of each minute; the last is the one that may not have ended."""
    latencies: list[tuple[int, int, list[tuple[int, int]]]]
    """Minute, kind, and how often each bucket was met."""


class StoreEndpoint(Protocol):
    """One of the two stores, which nobody else writes meanwhile."""

    shown: str
    salt: int

    @property
    def streams(self) -> StreamEndpoint: ...

    def size(self, table: MigratedTable) -> int: ...

    def rows(self, table: MigratedTable, after: Sequence[Any] | None, limit: int) -> list[Row]:
        """The next rows in the order of the table's key; none at its end."""

    def books(self, after: int, limit: int) -> list[CounterHistory]:
        """Of the next queues, by their ids."""

    def last_id(self) -> int:
        """The newest message id that was ever given."""

    def recount(self, book: CounterHistory) -> dict[str, int]:
        """A queue's messages in each state, counted in the tables."""

    def left_behind(self) -> dict[str, int]:
        """What there is that cannot be moved, and how much of it: records of the journal."""

    def close(self) -> None: ...


class TargetEndpoint(StoreEndpoint, Protocol):
    def is_empty(self) -> bool: ...

    def notes(self) -> dict[str, str] | None:
        """What an unfinished move has noted here; None if there is none."""

    def step(self) -> AbstractContextManager[None]:
        """What is written and noted within is kept together, or not at all."""

    def begin(self) -> None:
        """From now on nobody can open this store but who finishes the move. Within a step, as all that follow."""

    def note(self, name: str, text: str) -> None: ...

    def write(self, table: MigratedTable, rows: Sequence[Row]) -> None: ...

    def write_books(self, books: Sequence[CounterHistory], kept_from: int, last_id: int) -> None:
        """`kept_from`: minutes before that may have been forgotten by the source."""

    def finish(self, salt: int, last_id: int) -> None:
        """The store is whole, and may be used."""
