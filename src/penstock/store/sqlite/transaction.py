"""The running transaction: its connection, its time, and the queues it has touched."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from penstock.commands import Command
from penstock.errors import UnknownQueue
from penstock.identity import DLQ_SUFFIX
from penstock.store.sqlite.queues import LAST_ID, LOAD, SET_LAST_ID, Queue


class Transaction:
    __slots__ = ("_ids_given", "_queues", "_touched", "carry_out", "connection", "execute", "last_id", "now", "salt")

    def __init__(self, connection: sqlite3.Connection, salt: int, carry_out: Callable[..., Any]) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.salt = salt
        self.carry_out: Callable[[Transaction, Command[Any]], Any] = carry_out
        self.now = 0
        self.forget()

    def begin(self, now: int, *, fresh: bool) -> None:
        """Start at `now`; `fresh` tells that nobody else has written since this connection last did."""
        self.now = now
        if not fresh:
            self.forget()

    def forget(self) -> None:
        """Drop all that is known; the database is asked again."""
        self._queues: dict[str, Queue] = {}
        self._touched: dict[int, Queue] = {}
        self.last_id = -1
        self._ids_given = False

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

    def touch(self, queue: Queue) -> None:
        self._touched[queue.id] = queue

    def dropped(self, queue: Queue) -> None:
        self._queues.pop(queue.name, None)
        self._touched.pop(queue.id, None)

    def next_ids(self, count: int) -> int:
        """The first of `count` new message ids."""
        if self.last_id < 0:
            (self.last_id,) = self.execute(LAST_ID).fetchone()
        first = self.last_id + 1
        if count:
            self.last_id += count
            self._ids_given = True
        return first

    def write_counters(self) -> None:
        if self._ids_given:
            self.execute(SET_LAST_ID, (self.last_id,))
            self._ids_given = False
        if self._touched:
            for queue in self._touched.values():
                queue.write(self.connection, self.now)
            self._touched.clear()
