"""Latency histograms, collected in memory and written by the sweeper. A crash may lose the last ones."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from penstock.core.latency import Counts, bucket
from penstock.core.sql_files import load_sql

SQL = load_sql("penstock.store.sqlite", "latency")


class LatencyCounters:
    """Latency counts of this process since it last wrote them."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[int, int], Counts] = defaultdict(dict)

    def add(self, queue_id: int, kind: int, until: int, since: Sequence[int]) -> None:
        """Add the latencies of messages that began at these times."""
        # Messages of one batch mostly began together.
        if since and since.count(since[0]) == len(since):
            self.add_one(queue_id, kind, until - since[0], len(since))
            return
        for at, many in Counter(since).items():
            self.add_one(queue_id, kind, until - at, many)

    def add_one(self, queue_id: int, kind: int, ms: int, count: int = 1) -> None:
        """Add one latency that `count` messages share."""
        counts, number = self._counts[queue_id, kind], bucket(ms)
        counts[number] = counts.get(number, 0) + count

    def forget(self, queue_id: int) -> None:
        """Discard the counts of a dropped queue, whose id may be reused."""
        for key in [key for key in self._counts if key[0] == queue_id]:
            del self._counts[key]

    def write(self, connection: sqlite3.Connection, now: int) -> None:
        counts, self._counts = self._counts, defaultdict(dict)
        minute = now // 60_000
        for (queue_id, kind), seen in counts.items():
            # A batch without measurements leaves an entry without counts.
            if seen and connection.execute("SELECT 1 FROM penstock_queue WHERE id = ?", (queue_id,)).fetchone():
                row = connection.execute(SQL["of_minute"], (queue_id, minute, kind)).fetchone()
                total = Counter(seen)
                if row:
                    total.update(msgspec.json.decode(row[0], type=Counts))
                connection.execute(SQL["keep"], (queue_id, minute, kind, msgspec.json.encode(dict(total)).decode()))
