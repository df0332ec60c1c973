"""One adapter per measured system: push a batch, pop and ack a batch, or both.

Each uses the system's own public calls, in the best batch form it has. Where it has none, a
loop of single calls is what its user has, and `batch_form` says so in the report.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal

Durability = Literal["full", "relaxed"]
SYNCHRONOUS: dict[Durability, int] = {"full": 2, "relaxed": 1}
BUSY_TIMEOUT_S = 60


class System(ABC):
    """A handle on the only queue in a folder."""

    key: ClassVar[str]
    label: ClassVar[str]
    package: ClassVar[str | None] = None
    kind: ClassVar[Literal["penstock", "acks", "no ack", "limit"]]
    batch_form: ClassVar[str] = "loop of single calls"
    keeps_done: ClassVar[bool] = False
    shared_by_threads: ClassVar[bool] = True

    @abstractmethod
    def __init__(self, folder: Path, durability: Durability) -> None: ...

    @abstractmethod
    def push(self, batch: list[bytes]) -> int: ...

    @abstractmethod
    def pop_ack(self, count: int) -> int:
        """Pop and ack up to `count` messages, and return their number."""

    def cycle(self, batch: list[bytes]) -> int:
        self.push(batch)
        return self.pop_ack(len(batch))

    def synchronous(self) -> int | None:
        """Return the pragma read back from the connection; None if the connection is not public."""
        return None

    def tidy(self) -> None:  # noqa: B027 (most systems have nothing to tidy)
        """Delete done messages that the system keeps; this is never timed."""

    @abstractmethod
    def close(self) -> None: ...


class Penstock(System):
    key, label, package, kind = "penstock", "Penstock", "penstock-mq", "penstock"
    batch_form = "put_many, pop_many, ack_many"

    def __init__(self, folder: Path, durability: Durability) -> None:
        from penstock import LiteQueue

        self.queue = LiteQueue(str(folder / "queue.db"), durability=durability)

    def push(self, batch: list[bytes]) -> int:
        if len(batch) == 1:
            self.queue.put(batch[0])
        else:
            self.queue.put_many(batch)
        return len(batch)

    def pop_ack(self, count: int) -> int:
        if count > 1:
            messages = self.queue.pop_many(count)
            if self.queue.ack_many(messages):
                raise RuntimeError("a lease was lost")
            return len(messages)
        message = self.queue.pop()
        if message is None:
            return 0
        self.queue.ack(message)
        return 1

    def close(self) -> None:
        self.queue.close()


class Litequeue(System):
    key, label, package, kind = "litequeue", "litequeue", "litequeue", "acks"
    batch_form = "put and done inside transaction(); pop in a loop"
    keeps_done = True
    # Its transactions belong to the connection, so threads that shared an object would break each other's transactions.
    shared_by_threads = False

    def __init__(self, folder: Path, durability: Durability) -> None:
        from litequeue import LiteQueue

        self.queue = LiteQueue(folder / "queue.db", timeout=BUSY_TIMEOUT_S)
        self.queue.conn.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")

    def push(self, batch: list[bytes]) -> int:
        if len(batch) == 1:
            self.queue.put(batch[0].decode())
            return 1
        with self.queue.transaction("IMMEDIATE"):
            for data in batch:
                self.queue.put(data.decode())
        return len(batch)

    def pop_ack(self, count: int) -> int:
        popped = [message for _ in range(count) if (message := self.queue.pop()) is not None]
        if len(popped) == 1:
            self.queue.done(popped[0].message_id)
        elif popped:
            with self.queue.transaction("IMMEDIATE"):
                for message in popped:
                    self.queue.done(message.message_id)
        return len(popped)

    def synchronous(self) -> int:
        return read_synchronous(self.queue.conn)

    def tidy(self) -> None:
        self.queue.prune()

    def close(self) -> None:
        self.queue.close()


class PersistQueue(System):
    key, label, package, kind = "persist-queue", "persist-queue", "persist-queue", "acks"
    keeps_done = True

    def __init__(self, folder: Path, durability: Durability) -> None:
        from persistqueue import SQLiteAckQueue

        level = SYNCHRONOUS[durability]

        class Tuned(SQLiteAckQueue):
            def _new_db_connection(self, *args: Any) -> sqlite3.Connection:
                conn: sqlite3.Connection = super()._new_db_connection(*args)
                conn.execute(f"PRAGMA synchronous = {level}")
                return conn

        self.queue = Tuned(str(folder), multithreading=True, timeout=BUSY_TIMEOUT_S)

    def push(self, batch: list[bytes]) -> int:
        for data in batch:
            self.queue.put(data)
        return len(batch)

    def pop_ack(self, count: int) -> int:
        from persistqueue.exceptions import Empty

        for acked in range(count):
            try:
                self.queue.ack(self.queue.get(block=False, raw=True))
            except Empty:
                return acked
        return count

    def synchronous(self) -> int | None:
        return read_synchronous(self.queue._putter) if self.queue._putter else None

    def tidy(self) -> None:
        self.queue.clear_acked_data(max_delete=0, keep_latest=0)

    def close(self) -> None:
        self.queue.close()


class Huey(System):
    key, label, package, kind = "huey", "Huey SqliteStorage", "huey", "no ack"

    def __init__(self, folder: Path, durability: Durability) -> None:
        from huey.storage import SqliteStorage

        level = SYNCHRONOUS[durability]

        class Tuned(SqliteStorage):  # type: ignore[misc]
            # Huey's own `fsync` option supports only FULL and OFF.
            def _create_connection(self) -> sqlite3.Connection:
                conn: sqlite3.Connection = super()._create_connection()
                conn.execute(f"PRAGMA synchronous = {level}")
                return conn

        self.storage = Tuned(filename=str(folder / "huey.db"), timeout=BUSY_TIMEOUT_S)

    def push(self, batch: list[bytes]) -> int:
        for data in batch:
            self.storage.enqueue(data)
        return len(batch)

    def pop_ack(self, count: int) -> int:
        for popped in range(count):
            if self.storage.dequeue() is None:
                return popped
        return count

    def synchronous(self) -> int:
        return read_synchronous(self.storage.conn)

    def close(self) -> None:
        self.storage.close()


class Diskcache(System):
    key, label, package, kind = "diskcache", "diskcache.Deque", "diskcache", "no ack"
    batch_form = "append and popleft inside transact()"

    def __init__(self, folder: Path, durability: Durability) -> None:
        from diskcache import Cache, Deque

        level = SYNCHRONOUS[durability]
        self.cache = Cache(str(folder), eviction_policy="none", sqlite_synchronous=level)
        self.deque = Deque.fromcache(self.cache)

    def push(self, batch: list[bytes]) -> int:
        if len(batch) == 1:
            self.deque.append(batch[0])
            return 1
        with self.deque.transact():
            self.deque.extend(batch)
        return len(batch)

    def pop_ack(self, count: int) -> int:
        if count == 1:
            return self._pop_loop(1)
        with self.deque.transact():
            return self._pop_loop(count)

    def _pop_loop(self, count: int) -> int:
        for popped in range(count):
            try:
                self.deque.popleft()
            except IndexError:
                return popped
        return count

    def synchronous(self) -> int:
        return int(self.cache._sql("PRAGMA synchronous").fetchone()[0])

    def close(self) -> None:
        self.cache.close()


def read_synchronous(conn: sqlite3.Connection) -> int:
    return int(conn.execute("PRAGMA synchronous").fetchone()[0])
