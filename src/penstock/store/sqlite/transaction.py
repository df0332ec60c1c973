"""The running transaction: its connection, its time, and the queues it has touched."""

from __future__ import annotations

import sqlite3

from penstock.errors import UnknownQueue
from penstock.identity import DLQ_SUFFIX
from penstock.store.migrate import load_sql
from penstock.store.sqlite.latency import Latencies
from penstock.store.sqlite.queues import ANYTHING, LAST_ID, LOAD, Queue

JOURNAL = load_sql("penstock.store.sqlite", "journal")


class Transaction:
    __slots__ = (
        "_queues",
        "_touched",
        "connection",
        "execute",
        "last_id",
        "latencies",
        "next_offset",
        "now",
        "records",
        "salt",
    )

    def __init__(self, connection: sqlite3.Connection, salt: int) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.salt = salt
        self.now = 0
        self.latencies = Latencies()
        self.forget()

    def forget(self) -> None:
        """Drop all that is known; the database is asked again."""
        self._queues: dict[str, Queue] = {}
        self._touched: dict[int, Queue] = {}
        self.last_id = self.next_offset = -1
        self.records: list[bytes] = []
        """Events, encoded, in the order in which they happened."""

    def find(self, name: str) -> Queue | None:
        queue = self._queues.get(name)
        if queue is None:
            row = self.execute(LOAD, (name,)).fetchone()
            if row is None:
                return None
            queue = self._queues[name] = Queue(row)
        return queue

    def queue(self, name: str) -> Queue:
        queue = self.find(name)
        if queue is None:
            raise UnknownQueue(name)
        return queue

    def home(self, name: str) -> Queue:
        """The queue of a name that may also address its dead letters."""
        return self.find(name) or self.queue(name.removesuffix(DLQ_SUFFIX))

    def touch(self, queue: Queue, what: int = ANYTHING) -> None:
        queue.changed |= what
        self._touched[queue.id] = queue

    def dropped(self, queue: Queue) -> None:
        self._queues.pop(queue.name, None)
        self._touched.pop(queue.id, None)

    def next_ids(self, count: int) -> int:
        """The first of `count` new message ids."""
        if self.last_id < 0:
            (self.last_id,) = self.execute(LAST_ID).fetchone()
        first = self.last_id + 1
        self.last_id += count
        return first

    def write_counters(self) -> None:
        if self._touched:
            for queue in self._touched.values():
                queue.write(self.connection, self.now)
            self._touched.clear()

    def write_journal(self) -> None:
        """The events of this commit, as one row. Offsets are given under the write lock: dense, in commit order."""
        if self.records:
            self.load_next_offset()
            self.execute(JOURNAL["write"], (self.next_offset, len(self.records), b"".join(self.records)))
            self.next_offset += len(self.records)
            self.records.clear()

    def load_next_offset(self) -> None:
        if self.next_offset < 0:
            row = self.execute(JOURNAL["next_offset"]).fetchone()
            self.next_offset = row[0] if row else 0
