"""Physical limits to compare the queues with, without ids, leases or order.

RawFile appends the same bytes to a file and syncs it. RawSqlite is a bare INSERT, or a DELETE of the oldest rows, and
one commit per batch.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

from .systems import BUSY_TIMEOUT_S, SYNCHRONOUS, Durability, System, read_synchronous

ACK_RECORD = b"a" * 16


class RawFile(System):
    key, label, kind = "raw-file", "raw file append", "limit"
    batch_form = "one write (and fsync, at FULL) per batch; an ack is a 16-byte record"

    def __init__(self, folder: Path, durability: Durability) -> None:
        self.fd = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self.fsync = durability == "full"
        self.waiting = 0
        self.lock = threading.Lock()

    def _append(self, data: bytes) -> None:
        os.write(self.fd, data)
        if self.fsync:
            os.fsync(self.fd)

    def push(self, batch: list[bytes]) -> int:
        self._append(b"".join(batch))
        with self.lock:
            self.waiting += len(batch)
        return len(batch)

    def pop_ack(self, count: int) -> int:
        with self.lock:
            taken = min(count, self.waiting)
            self.waiting -= taken
        if taken:
            self._append(ACK_RECORD * taken)
        return taken

    def close(self) -> None:
        os.close(self.fd)


class RawSqlite(System):
    key, label, kind = "raw-sqlite", "raw SQLite INSERT", "limit"
    batch_form = "executemany INSERT, one DELETE; one commit per batch"

    def __init__(self, folder: Path, durability: Durability) -> None:
        self.conn = sqlite3.connect(
            folder / "raw.db",
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        self.conn.execute("PRAGMA journal_mode = WAL")
        self.conn.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
        self.conn.execute("CREATE TABLE message (id INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB)")
        self.lock = threading.Lock()

    def push(self, batch: list[bytes]) -> int:
        with self.lock:
            self.conn.execute("BEGIN IMMEDIATE")
            self.conn.executemany("INSERT INTO message (data) VALUES (?)", [(data,) for data in batch])
            self.conn.execute("COMMIT")
        return len(batch)

    def pop_ack(self, count: int) -> int:
        with self.lock:
            self.conn.execute("BEGIN IMMEDIATE")
            rows = self.conn.execute(
                "DELETE FROM message WHERE id IN (SELECT id FROM message ORDER BY id LIMIT ?) RETURNING id, data",
                (count,),
            ).fetchall()
            self.conn.execute("COMMIT")
        return len(rows)

    def synchronous(self) -> int:
        return read_synchronous(self.conn)

    def close(self) -> None:
        self.conn.close()
