"""What all transactions of one store share: its statements, what it knows of queues, and whom it wakes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from penstock.core.model import QueueOptions, decode_options
from penstock.postgres.context import DatabaseContext
from penstock.store.common import LeaseChecks
from penstock.store.postgres.latency import LatencyCounters
from penstock.store.request_dedup import RequestWindow

BUSY_MS = 30_000
SLACK_MS = 50
"""Longer than a transaction of ours takes from learning the time to its commit, or than a clock is stepped back."""
WIDE_SECONDS = 60.0
"""How often to look below the floors again, for what came later than that."""
SLOW_SECONDS = 0.1
"""A question when the next lease lapses that takes longer is not asked again for a while."""
QUEUES_KNOWN_MAX = 100_000
MARK_BITS = 20
"""Of chance in a mark, below the time."""


class CachedQueue(NamedTuple):
    """A queue as it was last seen."""

    name: str
    id: int
    text: str
    """Its options, as they are stored."""
    options: QueueOptions


class StoreContext(DatabaseContext):
    def __init__(
        self,
        schema: str,
        salt: int,
        clock: Callable[[], int] | None,
        monotonic: Callable[[], float] = time.monotonic,
        busy_ms: int = BUSY_MS,
    ) -> None:
        super().__init__(schema, salt, clock)
        self.busy_ms = busy_ms
        # How long a statement waits for a lock.
        self.past_requests = RequestWindow(monotonic)
        self.ids: dict[str, int] = {}
        """Under which id each queue was seen; checked by every transaction that uses it."""
        self.known: dict[str, CachedQueue] = {}
        """The same with their options."""
        self.long_way: dict[int, float] = {}
        """By queue: until when its leases take the long way."""
        self.floors: dict[int, tuple[int, int]] = {}
        """By queue: the times up to which nothing was left to become due, and to lapse."""
        self.looked: dict[int, tuple[int, int]] = {}
        """By queue: when it was last looked for what is due, and when for what came late."""
        self.lease_checks = LeaseChecks()
        self.latencies = LatencyCounters(secrets.randbits(62))
        self.slow_seconds = SLOW_SECONDS
        self.patient_until = 0.0
        """Until then nobody asks when the next lease lapses: it took too long."""
        self.look_wide_at = 0.0
        """When to look below the floors again."""
        self.journals = False
        """Whether there is a journal, as far as the last transaction told."""
        self.spooled = 0
        """Transactions of this store that were noted since it last looked after the journal itself."""
        self.uncompacted_counters = 0
        """Counter rows that this store has written since it last folded them."""
        self.trimmed_minute = 0
        self.marks_from = 0
        """Marks below this one were forgotten."""
        self.settled_from = 0
        """Minutes before this one have no notes of settled messages left."""

    def learn(self, name: str, queue_id: int) -> None:
        if len(self.ids) >= QUEUES_KNOWN_MAX:
            self.ids.clear()
        self.ids[name] = queue_id

    def learn_options(self, name: str, queue_id: int, text: str) -> None:
        known = self.known.get(name)
        if known is None or known.id != queue_id or known.text != text:
            if len(self.known) >= QUEUES_KNOWN_MAX:
                self.known.clear()
            self.known[name] = CachedQueue(name, queue_id, text, decode_options(text))

    def look_wide_now_and_then(self) -> None:
        now = time.monotonic()
        if now >= self.look_wide_at:
            self.look_wide_at = now + WIDE_SECONDS
            self.floors.clear()
            self.looked.clear()

    def rescan_soon(self) -> None:
        """Something may have become due before it could be seen."""
        self.look_wide_at = 0.0

    def floor(self, queue_id: int | None) -> tuple[int, int]:
        return self.floors.get(queue_id, (-1, -1)) if queue_id is not None else (-1, -1)

    def raise_floor(self, queue_id: int, now: int, due_at: int, lapse_at: int) -> None:
        """Nothing is due or lapsed at `now`: what comes later has later times, but for what is on its way already."""
        if len(self.floors) >= QUEUES_KNOWN_MAX:
            self.floors.clear()
        safe = now - SLACK_MS
        due, lapse = self.floors.get(queue_id, (-1, -1))
        if safe < min(due, lapse):
            due = lapse = -1  # The clock was set back.
        self.floors[queue_id] = (safe if due_at > now else due, safe if lapse_at > now else lapse)
