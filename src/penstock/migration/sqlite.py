"""A SQLite file as source or target of a migration, opened exclusively; fails while others have it open."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.commands import CatchUpJournal
from penstock.core.ids import ID_BITS
from penstock.core.model import system_clock
from penstock.errors import CannotOpen, StoreBusy
from penstock.journal.drainer import drain_once
from penstock.log.streams import streams_beside
from penstock.migration.streams import FileStreamEndpoint
from penstock.migration.tables import (
    LAST_QUEUE_ID,
    MESSAGE,
    STEP_BYTES,
    TABLES,
    CounterHistory,
    Counts,
    MigratedTable,
    Row,
)
from penstock.store.common import GAUGES, TOTALS
from penstock.store.request_dedup import RequestWindow
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.connection import connect, mapping_errors, translate
from penstock.store.sqlite.journal import record_depths
from penstock.store.sqlite.lease_ranges import move_out_all
from penstock.store.sqlite.probe import check_penstock_database
from penstock.store.sqlite.queues import LAST_ID, SQL, SqliteQueue
from penstock.store.sqlite.schema import has_journal, migrate
from penstock.store.sqlite.transaction import SqliteTransaction

COUNTED = (*GAUGES, *(f"n_{name}" for name in TOTALS))
BUSY_MS = 1_000
QUEUES = SQL["queue"] + " WHERE q.id > ? ORDER BY q.id LIMIT ?"
NOTES = "CREATE TABLE penstock_moving (name TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT"

EMPTY = "{}"  # Release 0.1.0 also wrote rows without counts.

_latency = msgspec.json.Decoder(dict[int, int])


class SqliteEndpoint:
    def __init__(self, path: Path, *, source: bool) -> None:
        self.path = path
        self.shown = str(path)
        if source:
            if not path.is_file():
                raise CannotOpen(f"there is no file {path}", hint="name a queue's file, or a server's folder")
            check_penstock_database(path)
            _tell_journal(path)
        try:
            self._connection = connect(self.shown, busy_ms=BUSY_MS, alone=True)
        except StoreBusy:
            raise StoreBusy(f"another process has {path} open", hint="stop the server, or whatever uses it") from None
        try:
            self.streams = FileStreamEndpoint(streams_beside(path), source=source)
            with mapping_errors(self.shown):
                self.store_id = migrate(self._connection, system_clock(), BUSY_MS, unfinished=not source)
                if source:
                    # Both stores have single leases in common.
                    with self.step():
                        move_out_all(self._connection)
        except BaseException:
            self._connection.close()
            raise

    def _all(self, sql: str, *params: Any) -> list[Row]:
        with mapping_errors(self.shown):
            return self._connection.execute(sql, params).fetchall()

    # Reading

    def size(self, table: MigratedTable) -> int:
        return int(self._all(f"SELECT count(*) FROM penstock_{table.name}")[0][0])

    def rows(self, table: MigratedTable, after: Sequence[Any] | None, limit: int) -> list[Row]:
        names = ", ".join(table.key)
        marks = ", ".join("?" * len(table.key))
        where = "" if after is None else f"WHERE ({names}) > ({marks})"
        columns = ", ".join(table.columns)
        sql = f"SELECT {columns} FROM penstock_{table.name} {where} ORDER BY {names} LIMIT ?"
        found: list[Row] = []
        size = 0
        with mapping_errors(self.shown), closing(self._connection.execute(sql, (*(after or ()), limit))) as cursor:
            for row in cursor:
                # PostgreSQL's text cannot contain it; its store uses the same replacement.
                found.append(tuple(_without_nul(value) if isinstance(value, str) else value for value in row))
                if table is MESSAGE:
                    size += len(row[-1])
                    if size >= STEP_BYTES:
                        break
        return found

    def books(self, after: int, limit: int) -> list[CounterHistory]:
        return [self._book(SqliteQueue(row)) for row in self._all(QUEUES, after, limit)]

    def _book(self, queue: SqliteQueue) -> CounterHistory:
        counts: Counts = tuple(getattr(queue, name) for name in COUNTED)
        minutes: list[tuple[int, Counts]] = [
            (row[0], tuple(row[1:]))
            for row in self._all(
                f"SELECT minute, {', '.join(COUNTED)} FROM penstock_minute WHERE queue_id = ? ORDER BY minute", queue.id
            )
        ]
        minutes.append((queue.minute or queue.created_at // 60_000, counts))
        latencies = [
            (minute, kind, sorted(_latency.decode(text).items()))
            for minute, kind, text in self._all(
                "SELECT minute, kind, counts FROM penstock_latency WHERE queue_id = ? ORDER BY 1, 2", queue.id
            )
            if text != EMPTY
        ]
        return CounterHistory(
            queue_id=queue.id,
            name=queue.name,
            created_at=queue.created_at,
            cursor=queue.cursor,
            newest_at=queue.newest_at,
            tokens=queue.tokens,
            tokens_at=queue.tokens_at,
            counts=counts,
            minutes=minutes,
            latencies=latencies,
        )

    def last_id(self) -> int:
        return int(self._all(LAST_ID)[0][0])

    def recount(self, book: CounterHistory) -> dict[str, int]:
        plain = (book.cursor, (book.queue_id * 2 + 1) << ID_BITS)
        ready = self._all("SELECT count(*) FROM penstock_message WHERE place > ? AND place < ?", *plain)[0][0]
        counts = {"ready": ready}
        for table, state, only in (
            ("ready", "ready", ""),
            ("scheduled", "scheduled", ""),
            ("single_lease", "leased", ""),
            ("dead", "dead", "AND NOT leased"),
            ("archive", "archived", ""),
        ):
            sql = f"SELECT count(*) FROM penstock_{table} WHERE queue_id = ? {only}"
            counts[state] = counts.get(state, 0) + self._all(sql, book.queue_id)[0][0]
        return counts

    def left_behind(self) -> dict[str, int]:
        (following,) = self._all("SELECT ifnull(max(first_offset + records), 0) FROM penstock_journal")[0]
        return {"journal_records": following}

    # Writing

    def is_empty(self) -> bool:
        return not any(self.size(table) for table in TABLES)

    def notes(self) -> dict[str, str] | None:
        if not self._all("SELECT 1 FROM sqlite_master WHERE name = 'penstock_moving'"):
            return None
        return dict(self._all("SELECT name, text FROM penstock_moving"))

    @contextmanager
    def step(self) -> Iterator[None]:
        execute = self._connection.execute
        try:
            execute("BEGIN IMMEDIATE")
            yield
            execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise translate(error, self.shown) from error
            raise

    def begin(self) -> None:
        self._connection.execute(NOTES)
        self._connection.execute("INSERT INTO penstock_setting VALUES ('unfinished', 1)")

    def note(self, name: str, text: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO penstock_moving VALUES (?, ?)", (name, text))

    def write(self, table: MigratedTable, rows: Sequence[Row]) -> None:
        self._insert(table.name, table.columns, rows)

    def write_books(self, books: Sequence[CounterHistory], kept_from: int, last_id: int) -> None:
        counters, minutes, latencies, busy = [], [], [], []
        for book in books:
            known = (book.queue_id, last_id, book.cursor, book.newest_at, book.minutes[-1][0])
            counters.append((*known, book.tokens, book.tokens_at, *book.counts))
            minutes += [(book.queue_id, minute, *counts) for minute, counts in book.minutes[:-1]]
            for minute, kind, seen in book.latencies:
                latencies.append((book.queue_id, minute, kind, msgspec.json.encode(dict(seen)).decode()))
            gauges = dict(zip(COUNTED, book.counts, strict=True))
            if "/" in book.name and gauges["ready"] + gauges["scheduled"] + gauges["leased"]:
                busy.append((book.name, book.queue_id))
        known_columns = ("queue_id", "last_id", "cursor", "newest_at", "minute", "tokens", "tokens_at")
        self._insert("counter", (*known_columns, *COUNTED), counters)
        self._insert("minute", ("queue_id", "minute", *COUNTED), minutes)
        self._insert("latency", ("queue_id", "minute", "kind", "counts"), latencies)
        self._insert("busy", ("name", "queue_id"), busy)

    def _insert(self, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f"INSERT INTO penstock_{name} ({', '.join(columns)}) VALUES ({marks})", rows)

    def finish(self, store_id: int, last_id: int) -> None:
        execute = self._connection.execute
        execute("UPDATE penstock_counter SET last_id = max(last_id, ?) WHERE queue_id = 0", (last_id,))
        execute("UPDATE penstock_setting SET value = ? WHERE name = 'salt'", (store_id,))
        execute(LAST_QUEUE_ID.format("penstock_"))
        execute("DELETE FROM penstock_setting WHERE name = 'unfinished'")
        execute("DROP TABLE penstock_moving")
        self.store_id = store_id
        if has_journal(self._connection):
            tx = SqliteTransaction(self._connection, store_id, RequestWindow())
            tx.start(system_clock())
            record_depths(tx, entered=True)
            tx.finish()

    def close(self) -> None:
        self.streams.close()
        self._connection.close()


def _without_nul(text: str) -> str:
    return text.replace("\0", "�") if "\0" in text else text


def _tell_journal(path: Path) -> None:
    """Record deferred events, so that the journal that stays with the file is complete."""
    with closing(SqliteStore(path, busy_ms=BUSY_MS)) as store:
        if store.journal_bounds()[1]:
            store.apply([CatchUpJournal()])
            drain_once(store, store.path)
