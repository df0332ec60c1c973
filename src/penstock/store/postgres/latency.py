"""Latency histograms, collected in memory and written by the sweeper. A crash may lose the last ones."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from penstock.core.latency import bucket


class LatencyCounters:
    """Latency counts of this process in the current minute. Thread-safe."""

    def __init__(self, writer: int) -> None:
        self.writer = writer
        self._lock = threading.Lock()
        self._minute = 0
        self._written: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        self._unwritten: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)

    def add(self, queue_id: int, kind: int, times_ms: Sequence[int]) -> None:
        with self._lock:
            counts = self._unwritten[queue_id, kind]
            if len(times_ms) == 1:
                counts[bucket(times_ms[0])] += 1
                return
            for ms, times in Counter(times_ms).items():
                counts[bucket(ms)] += times

    def forget(self, queue_id: int) -> None:
        """Discard the counts of a dropped queue, whose id may be reused."""
        with self._lock:
            for counts in (self._unwritten, self._written):
                for key in [key for key in counts if key[0] == queue_id]:
                    del counts[key]

    def rows(self, now: int) -> list[tuple[int, int, int, str]]:
        """Return the rows to write: the counts of the minute so far, for each queue and kind that changed."""
        with self._lock:
            minute = now // 60_000
            if minute != self._minute:
                # Counts added since the last call go to the new minute rather than being lost.
                self._minute = minute
                self._written.clear()
            unwritten, self._unwritten = self._unwritten, defaultdict(Counter)
            for at, counts in unwritten.items():
                self._written[at].update(counts)
            return [
                (queue_id, minute, kind, msgspec.json.encode(self._written[queue_id, kind]).decode())
                for queue_id, kind in unwritten
            ]
