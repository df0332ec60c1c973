"""The PostgreSQL store under test, in its own schema on the test server, inspected like the SQLite tables."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg

from penstock.journal.drainer import journal_folder
from penstock.journal.events import Event
from penstock.journal.postgres import PostgresDrain, PostgresJournal
from penstock.log.postgres.streams import PostgresStreams
from penstock.store.postgres import PostgresStore
from penstock.store.postgres.queues import COUNTED
from tests.conformance.recount import check_tables
from tests.conformance.replay import Replay, check_counters, log_events
from tests.conformance.support import Clock, StoreUnderTest
from tests.postgres import cluster, drop_schema, new_schema


class Tables:
    """Runs statements written for the SQLite tables on a PostgreSQL schema, with the rows of each counter summed up."""

    def __init__(self, url: str, schema: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._schema = schema
        sums = ", ".join(f"sum({gauge}) AS {gauge}" for gauge in COUNTED)
        self._counter = f"(SELECT queue_id, max(cursor) AS cursor, {sums} FROM {schema}.counter GROUP BY queue_id) AS c"

    def execute(self, sql: str, params: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        sql = sql.replace("penstock_counter", self._counter).replace("?", "%s")
        return self._connection.execute(re.sub(r"penstock_(\w+)", rf"{self._schema}.\1", sql).encode(), params)

    def last_id(self) -> int:
        row = self.execute(
            f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {self._schema}.message_id"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._connection.close()


def check_ranges(tables: Tables) -> None:
    """Check that each range holds as many messages as its count says, and that no message is leased twice."""
    counted = tables.execute(
        "SELECT r.count, (SELECT count(*) FROM penstock_message m WHERE m.place BETWEEN (r.queue_id << 45) + r.first_id"
        " AND (r.queue_id << 45) + r.last_id) FROM penstock_lease_range r"
    ).fetchall()
    assert all(count == held > 0 for count, held in counted)
    assert not tables.execute("SELECT place FROM penstock_leased GROUP BY place HAVING count(*) > 1").fetchall()


def check_journal(tables: Tables, url: str, schema: str, clock: Clock) -> None:
    """Check that replaying a journal that was on from the start gives the store's counters."""
    with closing(PostgresStreams(url, schema=schema, clock=clock)) as streams:
        PostgresDrain(streams.database).drain()
        journal, replay = PostgresJournal(streams.database), Replay()
        while page := journal.read(replay.next_offset).events:
            replay.play(page)
        assert replay.next_offset == journal.next_offset()
    check_counters(tables, replay)


def open_store(schema: str, clock: Clock, *, journal: bool) -> PostgresStore:
    store = PostgresStore(cluster().url, schema=schema, clock=clock, monotonic=clock.monotonic, journal=journal)
    # Only the test clock decides when to wake, so a slow machine must not shorten the waits.
    store._context.slow_seconds = math.inf
    return store


class PostgresUnderTest(StoreUnderTest):
    def __init__(self, *, journal: bool = True) -> None:
        self.schema = new_schema()
        self._journal = journal
        super().__init__(cluster().url, persists=True)

    def open_another(self) -> PostgresStore:
        store = open_store(self.schema, self.clock, journal=self._journal)
        self._opened.append(store)
        return store

    def check(self) -> None:
        tables = Tables(str(self.path), self.schema)
        check_tables(tables, busy_exactly=False)
        check_ranges(tables)
        if self._journal:
            check_journal(tables, str(self.path), self.schema, self.clock)
        tables.close()

    def close_all(self) -> None:
        super().close_all()
        drop_schema(self.schema)


def events_of(store: StoreUnderTest) -> list[Event]:
    """Return all events in the journal of the store under test."""
    if isinstance(store, PostgresUnderTest):
        with closing(PostgresStreams(str(store.path), schema=store.schema, clock=store.clock)) as streams:
            PostgresDrain(streams.database).drain()
            return list(PostgresJournal(streams.database).read(0).events)
    store.reopen()
    return list(log_events(journal_folder(store.path)))
