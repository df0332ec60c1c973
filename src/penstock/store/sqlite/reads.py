"""Read operations of the SQLite store, each on one snapshot, over a connection separate from the writer's."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TypeVar

from penstock.core.model import Clock, StoredMessage, WorkerInfo
from penstock.errors import StoreClosed
from penstock.journal.interface import JournalRow
from penstock.store.reads import StoreReads
from penstock.store.sqlite.connection import MEMORY, connect, mapping_errors, retry_while_busy
from penstock.store.sqlite.queries import SqliteQueries
from penstock.store.sqlite.transaction import JOURNAL
from penstock.store.sqlite.workers import list_workers

T = TypeVar("T")


class ReadMixin(StoreReads):
    """Read-only half of the store. A store in memory has a single connection for reads and writes."""

    path: str
    store_id: int
    _clock: Clock
    _busy_ms: int
    _closed: bool
    _writer: sqlite3.Connection
    _reader: sqlite3.Connection
    _reader_open: bool
    _read_lock: threading.RLock

    def _open_reader(self) -> None:
        self._check_open()
        if not self._reader_open:
            self._reader = self._writer if self.path == MEMORY else connect(self.path, busy_ms=self._busy_ms)
            self._reader_open = True

    def workers(self, *, after: str | None = None, limit: int = 100) -> list[WorkerInfo]:
        return self._with_snapshot(lambda connection: list_workers(connection, self._clock(), after, limit))

    def _read(self, query: Callable[[SqliteQueries], T]) -> T:
        return self._with_snapshot(lambda connection: query(SqliteQueries(connection, self.store_id, self._clock())))

    def _with_snapshot(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run queries on one snapshot of the file."""

        def run() -> T:
            self._reader.execute("BEGIN")
            try:
                return query(self._reader)
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")

        with self._read_lock, mapping_errors(self.path):
            self._open_reader()
            return retry_while_busy(run, self._busy_ms)

    def journal_bounds(self) -> tuple[int, int]:
        first, following = self._with_snapshot(lambda connection: connection.execute(JOURNAL["bounds"]).fetchone())
        return first or 0, following or 0

    def journal_from(self, offset: int, max_bytes: int) -> list[JournalRow]:
        def read(connection: sqlite3.Connection) -> list[JournalRow]:
            rows: list[JournalRow] = []
            size = 0
            for row in connection.execute(JOURNAL["from"], (offset,)):
                rows.append(JournalRow._make(row))
                size += len(rows[-1].bytes)
                if size >= max_bytes:
                    break
            return rows

        return self._with_snapshot(read)

    def export(self, queue: str) -> Generator[StoredMessage, None, None]:
        if self.path == MEMORY:
            yield from self._read(lambda reader: list(reader.export(queue)))
            return
        self._check_open()
        with closing(connect(self.path, busy_ms=self._busy_ms)) as connection, mapping_errors(self.path):
            connection.execute("BEGIN")
            yield from SqliteQueries(connection, self.store_id, self._clock()).export(queue)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the queue on {self.path} has been closed", hint="open it again")
