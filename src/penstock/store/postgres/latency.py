"""Latencies, gathered in memory by leases and acks and written by the sweeper: statistics, so a crash may lose some."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from penstock.latency import bucket, percentiles
from penstock.store.postgres.wire import Rows

WAIT, SERVICE = 0, 1
NAMES = {WAIT: "wait_ms", SERVICE: "service_ms"}
Counts = dict[int, int]


class Latencies:
    """What this store has seen in the minute that runs. Safe for threads."""

    def __init__(self, writer: int) -> None:
        self.writer = writer
        self._lock = threading.Lock()
        self._minute = 0
        self._counts: defaultdict[tuple[int, int], Counts] = defaultdict(dict)
        self._fresh: set[tuple[int, int]] = set()

    def add(self, queue_id: int, kind: int, times_ms: Iterable[int]) -> None:
        with self._lock:
            counts = self._counts[queue_id, kind]
            for ms in times_ms:
                number = bucket(ms)
                counts[number] = counts.get(number, 0) + 1
            self._fresh.add((queue_id, kind))

    def rows(self, now: int) -> list[tuple[int, int, int, str]]:
        """What to write: of each queue and kind with news, the minute's counts so far."""
        with self._lock:
            minute = now // 60_000
            if minute != self._minute:
                # What came since the last look belongs to the minute that begins, rather than to none.
                self._minute = minute
                self._counts = defaultdict(dict, {at: self._counts[at] for at in self._fresh})
            fresh, self._fresh = self._fresh, set()
            return [
                (queue_id, minute, kind, msgspec.json.encode(self._counts[queue_id, kind]).decode())
                for queue_id, kind in fresh
            ]


def latency_of(rows: Rows) -> dict[str, dict[str, int | None]]:
    counts: dict[int, Counter[int]] = {WAIT: Counter(), SERVICE: Counter()}
    for kind, text in rows:
        counts[kind].update(msgspec.json.decode(text, type=Counts))
    return {NAMES[kind]: percentiles(seen) for kind, seen in counts.items()}
