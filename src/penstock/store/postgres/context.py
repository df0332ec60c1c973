"""State shared by all transactions of one store: its statements and its cache of queues."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.postgres.context import DatabaseContext
from penstock.store.common import LeaseChecks
from penstock.store.postgres.latency import LatencyCounters
from penstock.store.postgres.recent_leases import RecentLeases
from penstock.store.request_dedup import RequestWindow

BUSY_MS = 30_000
# Longer than a transaction takes from reading the clock to its commit, and longer than clocks usually step back.
SLACK_MS = 50
# How often to scan below the floors again, for rows that became visible late.
WIDE_SECONDS = 60.0
# A query for the next expiring lease that takes longer is not repeated for a while.
SLOW_SECONDS = 0.1
QUEUES_KNOWN_MAX = 100_000
# After a wrong assumption about a queue, batches load it for a while, and longer if assumptions keep being wrong: other
# processes push to it, or the network is slow.
DOUBT_SECONDS = 1.0
DOUBT_SECONDS_MAX = 60.0


class KnownQueue(NamedTuple):
    """A queue as a transaction loaded it."""

    name: str
    id: int
    options: str
    paused: bool
    created_at: int
    checked_at: int
    """When its due messages and expired leases were last searched for."""


class StoreContext(DatabaseContext):
    def __init__(
        self,
        schema: str,
        store_id: int,
        clock: Callable[[], int] | None,
        monotonic: Callable[[], float] = time.monotonic,
        busy_ms: int = BUSY_MS,
    ) -> None:
        super().__init__(schema, store_id, clock)
        # How long a statement waits for a lock.
        self.busy_ms = busy_ms
        self.past_requests = RequestWindow(monotonic)
        # Id of each queue by name; every transaction that uses one verifies it.
        self.ids: dict[str, int] = {}
        # Queues as last loaded. A batch that uses one without loading it verifies it.
        self.known: dict[str, KnownQueue] = {}
        # By name of a queue: when it may be used unloaded again after a wrong assumption, and for how long it may not.
        self._doubts: dict[str, tuple[float, float]] = {}
        # By queue: times up to which no message was left to become due, and no lease to expire.
        self.floors: dict[int, tuple[int, int]] = {}
        self.lease_checks = LeaseChecks()
        self.recent_leases = RecentLeases()
        self.latencies = LatencyCounters(secrets.randbits(62))
        self.slow_seconds = SLOW_SECONDS
        # Until then the query for the next expiring lease is skipped, because it took too long.
        self.patient_until = 0.0
        # When to scan below the floors again.
        self.rescan_at = 0.0
        # True if the database had a journal in the last transaction.
        self.journals = False
        # Journalled transactions of this store since it last drained the journal outbox itself.
        self.spooled = 0
        # Counter rows that this store has written since it last compacted them.
        self.uncompacted_counters = 0
        self.trimmed_minute = 0
        # Marks of pushes up to this one were deleted.
        self.marks_from = 0
        # Rows about settled tokens before this minute were deleted.
        self.settled_from = 0

    def learn(self, name: str, queue_id: int) -> None:
        if len(self.ids) >= QUEUES_KNOWN_MAX:
            self.ids.clear()
            self.known.clear()
        self.ids[name] = queue_id

    def forget(self, name: str) -> None:
        self.ids.pop(name, None)
        self.known.pop(name, None)

    def doubt(self, names: Iterable[str]) -> None:
        """Load these queues for a while, because an assumption about one of them was wrong."""
        now = time.monotonic()
        if len(self._doubts) >= QUEUES_KNOWN_MAX:
            self._doubts.clear()
        for name in names:
            until, seconds = self._doubts.get(name, (0.0, 0.0))
            is_repeated = now < until + DOUBT_SECONDS_MAX
            seconds = min(2 * seconds, DOUBT_SECONDS_MAX) if is_repeated and seconds else DOUBT_SECONDS
            self._doubts[name] = (now + seconds, seconds)

    def is_doubted(self, name: str) -> bool:
        doubt = self._doubts.get(name)
        return doubt is not None and time.monotonic() < doubt[0]

    def rescan_if_due(self) -> None:
        now = time.monotonic()
        if now >= self.rescan_at:
            self.rescan_at = now + WIDE_SECONDS
            self.floors.clear()

    def rescan_soon(self) -> None:
        """Scan below the floors soon, because a message may have become due before its commit was visible."""
        self.rescan_at = 0.0

    def floor(self, queue_id: int | None) -> tuple[int, int]:
        return self.floors.get(queue_id, (-1, -1)) if queue_id is not None else (-1, -1)

    def raise_floor(self, queue_id: int, now: int, due_at: int, lease_expiry_at: int) -> None:
        """Raise the floors after a scan found nothing at `now`, except for transactions that have not committed yet."""
        if len(self.floors) >= QUEUES_KNOWN_MAX:
            self.floors.clear()
        safe = now - SLACK_MS
        due, lease_expiry = self.floors.get(queue_id, (-1, -1))
        if safe < min(due, lease_expiry):
            due = lease_expiry = -1  # The clock was set back.
        self.floors[queue_id] = (safe if due_at > now else due, safe if lease_expiry_at > now else lease_expiry)
