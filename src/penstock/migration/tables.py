"""The migrated tables in a form common to both stores, and the interface of a store endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from penstock.core.ids import QUEUE_SHIFT
from penstock.migration.streams import StreamEndpoint

STEP_ROWS = 2_000
# Size limit of a step, not counting the first message, which may be larger.
STEP_BYTES = 8 << 20
# Queues whose counter histories are copied per step; a queue has up to 43,200 minutes.
STEP_QUEUES = 16

Row = tuple[Any, ...]
# Gauges and totals, in the order of every store.
Counts = tuple[int, ...]


class MigratedTable(NamedTuple):
    """A table that is the same in both stores, except for flags, which are 0 and 1 in SQLite."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    flags: frozenset[str] = frozenset()


def _migrated_table(name: str, key: str, others: str, flags: str = "") -> MigratedTable:
    return MigratedTable(name, tuple(key.split()), (*key.split(), *others.split()), frozenset(flags.split()))


QUEUE = _migrated_table("queue", "id", "name options paused created_at secret", "paused")
MESSAGE = _migrated_table("message", "place", "created_at available_at priority content key headers payload")
# In this order: rows that refer to a queue come after it.
TABLES = (
    QUEUE,
    MESSAGE,
    _migrated_table("ready", "queue_id rank available_at id", "place attempts first_leased_at expires_at"),
    _migrated_table("scheduled", "queue_id available_at id", "rank place attempts first_leased_at expires_at"),
    _migrated_table(
        "single_lease",
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
# Do not reuse the id of a removed queue that a key still refers to.
LAST_QUEUE_ID = (
    f"INSERT INTO {{0}}setting SELECT 'last_queue_id', max(place >> {QUEUE_SHIFT}) FROM {{0}}key WHERE space = 0 "
    "HAVING count(*) > 0"
)


class CounterHistory(NamedTuple):
    """The counters of a queue and their history."""

    queue_id: int
    name: str
    created_at: int
    cursor: int
    newest_at: int
    tokens: float | None
    tokens_at: int | None
    counts: Counts
    minutes: list[tuple[int, Counts]]
    """Counts at the end of each minute; the last minute may still be running."""
    latencies: list[tuple[int, int, list[tuple[int, int]]]]
    """Minute, kind and bucket counts of latencies."""


class StoreEndpoint(Protocol):
    """Source or target of a migration; no other process writes it meanwhile."""

    shown: str
    store_id: int

    @property
    def streams(self) -> StreamEndpoint: ...

    def size(self, table: MigratedTable) -> int: ...

    def rows(self, table: MigratedTable, after: Sequence[Any] | None, limit: int) -> list[Row]:
        """Return the next rows in key order; empty at the end."""

    def books(self, after: int, limit: int) -> list[CounterHistory]:
        """Return the counter histories of the next queues, by id."""

    def last_id(self) -> int:
        """Return the highest message id ever assigned."""

    def recount(self, book: CounterHistory) -> dict[str, int]:
        """Count a queue's messages by state in the tables."""

    def left_behind(self) -> dict[str, int]:
        """Return what cannot be migrated, with counts: records of the journal."""

    def close(self) -> None: ...


class TargetEndpoint(StoreEndpoint, Protocol):
    def is_empty(self) -> bool: ...

    def notes(self) -> dict[str, str] | None:
        """Return the progress of an unfinished migration; None if there is none."""

    def step(self) -> AbstractContextManager[None]:
        """Commit rows and progress within in one transaction."""

    def begin(self) -> None:
        """Lock the store for everyone but this migration. Call it within a step, like the following methods."""

    def note(self, name: str, text: str) -> None: ...

    def write(self, table: MigratedTable, rows: Sequence[Row]) -> None: ...

    def write_books(self, books: Sequence[CounterHistory], kept_from: int, last_id: int) -> None:
        """Write histories; `kept_from`: the source may have deleted minutes before it."""

    def finish(self, store_id: int, last_id: int) -> None:
        """Mark the store as complete and usable."""
