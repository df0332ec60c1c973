"""Latencies, gathered in memory by leases and acks and written by the sweeper: statistics, so a crash may lose some."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from penstock.core.latency import bucket


class LatencyCounters:
    """What this store has seen in the minute that runs. Safe for threads."""

    def __init__(self, writer: int) -> None:
        self.writer = writer
        self._lock = threading.Lock()
        self._minute = 0
        self._written: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        self._fresh: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)

    def add(self, queue_id: int, kind: int, times_ms: Sequence[int]) -> None:
        with self._lock:
            counts = self._fresh[queue_id, kind]
            if len(times_ms) == 1:
                counts[bucket(times_ms[0])] += 1
                return
            for ms, times in Counter(times_ms).items():
                counts[bucket(ms)] += times

    def forget(self, queue_id: int) -> None:
        """It is dropped, and the next queue may get its number."""
        with self._lock:
            for counts in (self._fresh, self._written):
                for key in [key for key in counts if key[0] == queue_id]:
                    del counts[key]

    def rows(self, now: int) -> list[tuple[int, int, int, str]]:
        """What to write: of each queue and kind with news, the minute's counts so far."""
        with self._lock:
            minute = now // 60_000
            if minute != self._minute:
                # What came since the last look belongs to the minute that begins, rather than to none.
                self._minute = minute
                self._written.clear()
            fresh, self._fresh = self._fresh, defaultdict(Counter)
            for at, counts in fresh.items():
                self._written[at].update(counts)
            return [
                (queue_id, minute, kind, msgspec.json.encode(self._written[queue_id, kind]).decode())
                for queue_id, kind in fresh
            ]
