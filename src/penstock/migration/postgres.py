"""A PostgreSQL schema as source or target of a migration. Its tables are locked against writers throughout."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg

from penstock.core.ids import ID_BITS
from penstock.core.model import decode_options
from penstock.errors import CannotOpen, StoreBusy
from penstock.migration.postgres_streams import PostgresStreamSide
from penstock.migration.tables import (
    LAST_QUEUE_ID,
    MESSAGE,
    QUEUE,
    STEP_BYTES,
    TABLES,
    CounterHistory,
    Counts,
    MigratedTable,
    Row,
)
from penstock.postgres.connection import DatabaseTarget, connect, translate
from penstock.postgres.context import in_schema, quoted
from penstock.postgres.pipeline import PipelinedConnection
from penstock.postgres.schema import MIGRATING, has_journal, migrate, schema_version
from penstock.store.postgres.context import StoreContext
from penstock.store.postgres.journal import record_depths
from penstock.store.postgres.queues import COUNTED, is_limited
from penstock.store.postgres.transaction import PostgresTransaction

BUSY_MS = 5_000
LEAVING_SECONDS = 2.0
ALONE = """
SELECT pg_try_advisory_lock(%s, hashtext(%s)), count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'penstock'"""
# Latencies have a row per writer; stores choose a random writer id.
WRITER = 0

_latency = msgspec.json.Decoder(dict[int, int])


class PostgresEndpoint:
    def __init__(self, url: str, *, source: bool) -> None:
        self._target = DatabaseTarget(url)
        self.shown = self._target.shown
        self._schema = self._target.schema
        self._connection = connect(self._target, busy_ms=BUSY_MS, relaxed=not source)
        self.streams = PostgresStreamSide(self._all, self._run)
        try:
            self._enter(source)
        except psycopg.Error as error:
            self._connection.close()
            raise translate(error, self._target) from error
        except BaseException:
            self._connection.close()
            raise

    def _enter(self, source: bool) -> None:
        connection = self._connection
        connection.execute("SET application_name = 'penstock migrate-store'")
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        self._wait_until_alone()
        if source and not schema_version(connection, self._schema):
            raise CannotOpen(
                f"{self.shown} holds no Penstock tables in schema {self._schema!r}", hint="?schema=… names another"
            )
        self.store_id = migrate(connection, self._schema, unfinished=not source)
        if source:
            self._lock_tables()

    def _wait_until_alone(self) -> None:
        """Wait briefly for other connections to close: a program that has just exited may still have some."""
        deadline = time.monotonic() + LEAVING_SECONDS
        while True:
            ((mine, others),) = self._all(ALONE, MIGRATING + 1, self._schema)
            if mine and not others:
                return
            if time.monotonic() > deadline:
                what = f"{others} connections of Penstock" if others else "another move"
                raise StoreBusy(
                    f"others use {self.shown}: {what}",
                    hint="stop the servers and programs that use this database, whatever their schema",
                )
            time.sleep(0.05)

    def _lock_tables(self) -> None:
        tables = self._all("SELECT tablename FROM pg_tables WHERE schemaname = %s", self._schema)
        named = ", ".join(f"{quoted(self._schema)}.{quoted(name)}" for (name,) in tables)
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        # Lock before the first query, which determines the transaction's snapshot.
        self._connection.execute(f"LOCK TABLE {named} IN SHARE MODE".encode())

    def _all(self, sql: str, *params: Any) -> list[Row]:
        try:
            return self._connection.execute(in_schema(sql, self._schema).encode(), params).fetchall()
        except psycopg.Error as error:
            raise translate(error, self._target) from error

    # Reading

    def size(self, table: MigratedTable) -> int:
        return int(self._all(f"SELECT count(*) FROM penstock.{_source(table)}")[0][0])

    def rows(self, table: MigratedTable, after: Sequence[Any] | None, limit: int) -> list[Row]:
        # Compare text like SQLite.
        names = ", ".join(f'{name} COLLATE "C"' if _is_text(table, name) else name for name in table.key)
        marks = ", ".join(["%s"] * len(table.key))
        where = "" if after is None else f"WHERE ({names}) > ({marks})"
        columns = ", ".join(f"{name}::integer" if name in table.flags else name for name in table.columns)
        page = f"SELECT {columns} FROM penstock.{_source(table)} {where} ORDER BY {names} LIMIT %s"
        if table is not MESSAGE:
            return self._all(page, *(after or ()), limit)
        before = "sum(octet_length(payload)) OVER (ORDER BY place) - octet_length(payload)"
        sized = f"SELECT {columns}, {before} AS before FROM ({page}) page"
        bounded = f"SELECT {columns} FROM ({sized}) sized WHERE before < %s ORDER BY place"
        return self._all(bounded, *(after or ()), limit, STEP_BYTES)

    def books(self, after: int, limit: int) -> list[CounterHistory]:
        queues = self._all(
            "SELECT id, name, created_at FROM penstock.queue WHERE id > %s ORDER BY id LIMIT %s", after, limit
        )
        ids = [queue[0] for queue in queues]
        sums = ", ".join(f"sum({name})::bigint" for name in COUNTED)
        names = ", ".join(COUNTED)
        counters = self._by_queue(
            f"SELECT queue_id, max(cursor), max(newest_at), {sums} FROM penstock.counter "
            "WHERE queue_id = ANY(%s) GROUP BY queue_id",
            ids,
        )
        changes = self._by_queue(
            f"SELECT queue_id, minute, {sums} FROM (SELECT queue_id, minute, {names} FROM penstock.minute "
            f"WHERE queue_id = ANY(%s) UNION ALL SELECT queue_id, minute, {names} FROM penstock.counter "
            "WHERE queue_id = ANY(%s) AND minute IS NOT NULL) c GROUP BY queue_id, minute ORDER BY queue_id, minute",
            ids,
            ids,
        )
        buckets = self._by_queue(
            "SELECT queue_id, tokens, tokens_at FROM penstock.bucket WHERE queue_id = ANY(%s)", ids
        )
        latencies = self._by_queue(
            "SELECT queue_id, minute, kind, counts FROM penstock.latency WHERE queue_id = ANY(%s) ORDER BY 2, 3", ids
        )
        books = []
        for queue_id, name, created_at in queues:
            ((cursor, newest_at, *counts),) = counters[queue_id]
            ((tokens, tokens_at),) = buckets[queue_id] or [(None, None)]
            books.append(
                CounterHistory(
                    queue_id=queue_id,
                    name=name,
                    created_at=created_at,
                    cursor=cursor or 0,
                    newest_at=newest_at or 0,
                    tokens=tokens,
                    tokens_at=tokens_at,
                    counts=tuple(counts),
                    minutes=_levels(created_at, tuple(counts), changes[queue_id]),
                    latencies=_joined(latencies[queue_id]),
                )
            )
        return books

    def _by_queue(self, sql: str, *params: Any) -> defaultdict[int, list[Row]]:
        found: defaultdict[int, list[Row]] = defaultdict(list)
        for queue_id, *rest in self._all(sql, *params):
            found[queue_id].append(tuple(rest))
        return found

    def last_id(self) -> int:
        return int(self._all("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM penstock.message_id")[0][0])

    def recount(self, book: CounterHistory) -> dict[str, int]:
        ready, filed, scheduled, leased, dead, archived = self._all(
            "SELECT (SELECT count(*) FROM penstock.message WHERE place > %s AND place < %s),"
            " (SELECT count(*) FROM penstock.ready WHERE queue_id = %s),"
            " (SELECT count(*) FROM penstock.scheduled WHERE queue_id = %s),"
            " (SELECT count(*) FROM penstock.leased WHERE queue_id = %s),"
            " (SELECT count(*) FROM penstock.dead WHERE queue_id = %s AND NOT leased),"
            " (SELECT count(*) FROM penstock.archive WHERE queue_id = %s)",
            *(book.cursor, (book.queue_id * 2 + 1) << ID_BITS, *[book.queue_id] * 5),
        )[0]
        return {
            "ready": ready + filed,
            "scheduled": scheduled,
            "leased": leased,
            "dead": dead,
            "archived": archived,
        }

    def left_behind(self) -> dict[str, int]:
        return {}

    # Writing

    def is_empty(self) -> bool:
        return not any(self.size(table) for table in TABLES)

    def notes(self) -> dict[str, str] | None:
        known = "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'moving'"
        if not self._all(known, self._schema):
            return None
        return dict(self._all("SELECT name, text FROM penstock.moving"))

    @contextmanager
    def step(self) -> Iterator[None]:
        try:
            with self._connection.transaction():
                yield
        except psycopg.Error as error:
            raise translate(error, self._target) from error

    def _run(self, sql: str, *params: Any) -> None:
        self._connection.execute(in_schema(sql, self._schema).encode(), params)

    def begin(self) -> None:
        self._run("CREATE TABLE penstock.moving (name text PRIMARY KEY, text text NOT NULL)")
        self._run("INSERT INTO penstock.setting VALUES ('unfinished', 1)")

    def note(self, name: str, text: str) -> None:
        self._run(
            "INSERT INTO penstock.moving VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET text = excluded.text",
            name,
            text,
        )

    def write(self, table: MigratedTable, rows: Sequence[Row]) -> None:
        if table is QUEUE:
            options = table.columns.index("options")
            limited = [(*row, int(is_limited(decode_options(row[options])))) for row in rows]
            self._copy(table.name, (*table.columns, "limited"), limited)
        else:
            self._copy(table.name, table.columns, rows)

    def write_books(self, books: Sequence[CounterHistory], kept_from: int, last_id: int) -> None:
        counters, minutes, latencies, buckets, busy = [], [], [], [], []
        for book in books:
            counters.append((book.queue_id, book.cursor, book.newest_at, *book.counts))
            minutes += [(book.queue_id, minute, *counts) for minute, counts in _changes(book, kept_from)]
            for minute, kind, seen in book.latencies:
                latencies.append((book.queue_id, minute, kind, WRITER, msgspec.json.encode(dict(seen)).decode()))
            if book.tokens is not None:
                buckets.append((book.queue_id, book.tokens, book.tokens_at))
            if "/" in book.name:
                busy.append((book.name, book.queue_id))
        self._copy("counter", ("queue_id", "cursor", "newest_at", *COUNTED), counters)
        self._copy("minute", ("queue_id", "minute", *COUNTED), minutes)
        self._copy("latency", ("queue_id", "minute", "kind", "writer", "counts"), latencies)
        self._copy("bucket", ("queue_id", "tokens", "tokens_at"), buckets)
        self._copy("busy", ("name", "queue_id"), busy)  # The sweeper removes empty queues.

    def _copy(self, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        sql = in_schema(f"COPY penstock.{name} ({', '.join(columns)}) FROM STDIN", self._schema)
        with self._connection.cursor() as cursor, cursor.copy(sql.encode()) as copy:
            for row in rows:
                copy.write_row(row)

    def finish(self, store_id: int, last_id: int) -> None:
        self._run("SET LOCAL synchronous_commit = on")
        if last_id:
            self._run("SELECT setval('penstock.message_id', %s)", last_id)
        self._run("UPDATE penstock.setting SET value = %s WHERE name = 'salt'", store_id)
        self._run(LAST_QUEUE_ID.format("penstock."))
        self._run("DELETE FROM penstock.setting WHERE name = 'unfinished'")
        self._run("DROP TABLE penstock.moving")
        self.store_id = store_id
        if has_journal(self._connection, self._schema):
            tx = PostgresTransaction(
                PipelinedConnection(self._connection, keeps_prepared=False), StoreContext(self._schema, store_id, None)
            )
            tx.join({})
            record_depths(tx, entered=True)
            tx.write_journal()
            tx.flush()

    def close(self) -> None:
        self._connection.close()


def _source(table: MigratedTable) -> str:
    """Return the table to read; leases that are ranges here are single rows for others."""
    return "leased" if table.name == "single_lease" else table.name


def _is_text(table: MigratedTable, name: str) -> bool:
    return (table.name, name) in (("key", "key"), ("api_key", "id"), ("stream_key", "id"))


def _levels(created_at: int, counts: Counts, changes: Sequence[Row]) -> list[tuple[int, Counts]]:
    """Compute the counts at the end of each minute from the current ones and the changes per minute."""
    if not changes:
        return [(created_at // 60_000, counts)]
    levels: list[tuple[int, Counts]] = []
    for minute, *change in reversed(changes):
        levels.append((minute, counts))
        counts = tuple(level - moved for level, moved in zip(counts, change, strict=True))
    return levels[::-1]


def _changes(book: CounterHistory, kept_from: int) -> Iterator[tuple[int, Counts]]:
    """Compute changes per minute from counts; the first minute's are known only if the source has all before it."""
    whole = book.created_at // 60_000 >= kept_from
    before: Counts = (0,) * len(COUNTED) if whole else book.minutes[0][1]
    for minute, counts in book.minutes:
        yield minute, tuple(level - last for level, last in zip(counts, before, strict=True))
        before = counts


def _joined(rows: Sequence[Row]) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Sum the counts of all writers."""
    joined: defaultdict[tuple[int, int], defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for minute, kind, text in rows:
        for bucket, count in _latency.decode(text).items():
            joined[minute, kind][bucket] += count
    return [(minute, kind, sorted(seen.items())) for (minute, kind), seen in sorted(joined.items())]
