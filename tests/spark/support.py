"""A data folder with a journal of real work, and the expected contents of its lake."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyspark
import pytest

from penstock.core.commands import Drop, Purge, Remove
from penstock.core.model import State
from penstock.journal.drainer import drain_once, journal_folder
from penstock.journal.events import Event, decode_events
from penstock.journal.postgres import PostgresDrain, PostgresJournal
from penstock.log.postgres.maintenance import Upkeep
from penstock.log.postgres.offsets import Positions
from penstock.log.postgres.streams import PostgresStreams
from penstock.log.reader import LogReader
from penstock.log.retention import TrimRequest, trim
from penstock.log.writer import Log
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import BRONZE, COUNTS, QUEUE_MINUTES, QUEUES, SILVER, STATES, Table
from penstock.pipeline.source.data_source import PenstockSource
from penstock.pipeline.source.log_sources import LogLocation, location_of
from penstock.postgres.schema import JOURNAL
from tests.conformance.postgres_support import PostgresUnderTest
from tests.conformance.support import StoreUnderTest

ERRORS = ("timeout after 30 s", "no user 4711", "no user 12", "host '10.0.0.1' refused", "")
OLD_SPARK = find_spec("pyspark.sql.streaming.datasource") is None
"""PySpark 4.0 and 4.1 (`make test-spark-versions`): the source and the sink work, the pipeline does not."""
SMALL_BATCHES = {} if OLD_SPARK else {"maxOffsetsPerTrigger": "20"}
sends_rows = pytest.mark.filterwarnings(r"ignore:unclosed <socket\.socket .*\.sock>:ResourceWarning")
"""For `createDataFrame`: where Spark encrypts, PySpark sends the rows by a socket that it does not close itself."""


def register(spark: Any) -> None:
    """Register the source, which Spark also finds by itself; only Spark 4.0 takes that amiss."""
    if not pyspark.__version__.startswith("4.0."):
        spark.dataSource.register(PenstockSource)


class Busy(StoreUnderTest):
    """What it does to its store goes into a journal, which its own suite looks at."""

    last_id = 0

    def check(self) -> None:
        pass

    def drained(self) -> Path | LogLocation:
        """Where all that happened so far is."""
        raise NotImplementedError

    def events(self) -> Iterator[Event]:
        """All that the journal tells."""
        raise NotImplementedError

    def forget_all_but_new(self) -> None:
        """As retention would: the journal begins after all that happened so far."""
        raise NotImplementedError

    def some(self, count: int, seed: int = 0, queues: tuple[str, ...] = ("mail", "shop/orders/paid", "q")) -> None:
        """Whatever may happen to messages and queues, at random, over some minutes."""
        chance = random.Random(seed)
        for _ in range(count):
            self.clock.advance(chance.choice((0, 1, 7, 900, 20_000)))
            self._one(chance, chance.choice(queues))

    def _one(self, chance: random.Random, queue: str) -> None:
        if self.store.find_queue(queue) is None:
            self.make(queue, max_attempts=2, dlq=chance.random() < 0.8, archive_ms=chance.choice((0, 60_000)))
        match chance.choices(range(12), (8, 8, 3, 2, 1, 1, 1, 1, 1, 1, 1, 0.3))[0]:
            case 0:
                ttl_ms = chance.choice((None, None, 5_000))
                texts = [f"{queue} {chance.random()}" for _ in range(chance.randint(1, 4))]
                delay_ms = chance.choice((None, None, 1_000))
                self.last_id = self.push(*texts, queue=queue, ttl_ms=ttl_ms, delay_ms=delay_ms)[-1]
            case 1:
                if leased := self.lease(queue, chance.randint(1, 3)):
                    self.clock.advance(chance.randint(0, 3_000))
                    self.ack(*leased)
            case 2:
                if leased := self.lease(queue, 2):
                    self.nack(*leased, error=chance.choice(ERRORS), delay_ms=chance.choice((0, 500)))
            case 3:
                self.lease(queue, 1, lease_ms=1_000)
            case 4:
                self.take(queue, 2)
            case 5:
                self.redrive(queue)
            case 6:
                if leased := self.lease(queue, 1):
                    self.extend(*leased)
                    self.release(*leased)
            case 7:
                self.sweep()
            case 8:
                if leased := self.lease(f"{queue}.dlq", 1):
                    self.ack(*leased) if chance.random() < 0.5 else self.release(*leased)
            case 9:
                newest = range(max(1, self.last_id - 20), self.last_id + 2)
                self.do(Remove(queue=queue, ids=chance.sample(newest, min(3, len(newest)))))
            case 10:
                self.do(Purge(queue=queue, states=[chance.choice(list(State))], limit=2))
            case 11:
                self.do(Drop(queue=queue, force=True))


class Work(Busy):
    """A server's data folder without a server."""

    def __init__(self, data: Path) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self.data = data
        super().__init__(data / "penstock.db", persists=True)

    @property
    def journal(self) -> Path:
        return journal_folder(self.path)

    @property
    def where(self) -> str:
        return str(self.data)

    def drained(self) -> Path:
        drain_once(self.store, str(self.path))
        return self.journal

    def events(self) -> Iterator[Event]:
        return events_in(self.journal)

    def forget_all_but_new(self) -> None:
        self.drained()
        with Log(self.journal) as log:
            with log.turn:
                log.roll()
            trim(log, [], TrimRequest(before=log.next_offset, force=True), self.clock())


class PostgresWork(Busy, PostgresUnderTest):
    """The same in a database."""

    def __init__(self) -> None:
        PostgresUnderTest.__init__(self)

    @property
    def where(self) -> str:
        return f"{self.path}&schema={self.schema}"

    def drained(self) -> LogLocation:
        with closing(PostgresStreams(self.where, clock=self.clock)) as streams:
            PostgresDrain(streams.database).drain()
        return location_of(self.where)

    def events(self) -> Iterator[Event]:
        with closing(PostgresStreams(self.where)) as streams:
            journal = PostgresJournal(streams.database)
            offset = journal.first_offset
            while offset < journal.next_offset():
                page = journal.read(offset)
                yield from page.events
                offset = page.next

    def forget_all_but_new(self) -> None:
        self.drained()
        with closing(PostgresStreams(self.where)) as streams:
            database = streams.database
            end = PostgresJournal(database).next_offset()
            database.ask("stream.seal", database.ask("stream.find", JOURNAL)[0][0], 1 << 60)
            consumers, options, now_ms = Positions(database).all(JOURNAL)
            Upkeep(database).trim(JOURNAL, consumers, options, now_ms, TrimRequest(before=end, force=True), None)


def events_in(journal: Path) -> Iterator[Event]:
    with LogReader(journal) as log:
        offset = log.first_offset
        while offset < log.next_offset:
            page = log.read(offset)
            for record in page.records:
                yield from decode_events(record.offset, record.time_ms, record.kind, record.data)
            offset = page.next


def lives_in(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Finished lives, by following every message, one event at a time."""
    alive: dict[int, Event] = {}
    found = []
    for event in events:
        if event.kind == "worker":
            continue
        if event.kind == "queue":
            if event.details["what"] == "removed":
                for each in [each for each in alive.values() if each.queue == event.queue]:
                    assert each.id is not None
                    found.append(_life(alive.pop(each.id), event, "removed"))
            continue
        assert event.id is not None
        if event.kind in ("pushed", "redriven"):
            alive[event.id] = event
        elif event.kind in ("acked", "dead", "expired", "removed") and event.id in alive:
            outcome = "failed" if "gone" in event.marks else event.kind
            found.append(_life(alive.pop(event.id), event, outcome))
    return found


def _life(began: Event, ended: Event, outcome: str) -> dict[str, Any]:
    known = outcome != "removed"
    served = outcome in ("acked", "dead", "failed")
    return {
        "offset": ended.offset,
        "queue": began.queue,
        "id": began.id,
        "uuid": began.uuid,
        "outcome": outcome,
        "attempts": ended.attempts if known else None,
        "wait_ms": ended.first_leased_at - began.pushed_at if known and ended.first_leased_at else None,  # type: ignore[operator]
        "service_ms": ended.at - (ended.leased_at or 0) if served else None,
        "total_ms": ended.at - (began.pushed_at or 0),
        "errors": [each["error"] for each in ended.details.get("errors", [])] if known else [],
    }


def rows_of(lake: Lake, table: Table) -> list[dict[str, Any]]:
    """As delta-rs reads them, in the order of their keys."""
    found = lake[table].refresh().delta.to_pyarrow_table()
    return sorted(found.to_pylist(), key=lambda row: tuple(row[key] for key in table.keys))


def arrow_of(lake: Lake, table: Table) -> pa.Table:
    return lake[table].refresh().delta.to_pyarrow_table()


def minutes_by_duckdb(lake: Lake) -> list[dict[str, Any]]:
    """gold.queue_minutes from bronze, without Spark, but for the sketches."""
    counts = ", ".join(f"count(*) FILTER (kind = '{name}') AS {name}" for name in COUNTS)
    changes = ", ".join(f"sum({_CHANGES[state]}) AS {state}_change" for state in STATES)
    ends = ", ".join(
        f"sum({state}_change) OVER (PARTITION BY queue ORDER BY minute)::BIGINT AS {state}_end" for state in STATES
    )
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.register("events", arrow_of(lake, BRONZE).drop(["body"]))
        found = db.sql(
            f"""WITH minutes AS (
                SELECT queue, date_trunc('minute', "at") AS minute, {counts}, {changes},
                  list_sort(list(epoch_ms(leased_at) - epoch_ms(pushed_at))
                    FILTER (kind = 'leased' AND attempts = 1 AND marks & 4 = 0)) AS waits,
                  list_sort(list(epoch_ms("at") - epoch_ms(leased_at)) FILTER (kind = 'acked')) AS services
                FROM (SELECT *, CASE WHEN kind = 'queue' AND details ->> 'what' = 'entered' THEN 1 ELSE -1 END AS sign
                  FROM events WHERE kind <> 'worker') GROUP BY queue, minute)
              SELECT *, {ends} FROM minutes ORDER BY queue, minute"""
        ).to_arrow_table()
    return found.to_pylist()


_CHANGES = {
    "waiting": """CASE WHEN kind IN ('pushed', 'nacked', 'lapsed', 'redriven') THEN 1
        WHEN kind IN ('dead', 'expired') THEN -1
        WHEN kind = 'leased' AND marks & 4 = 0 THEN -1 WHEN kind = 'released' AND marks & 4 = 0 THEN 1
        WHEN kind = 'removed' AND marks & 13 = 0 THEN -1
        WHEN kind = 'queue' THEN sign * coalesce((details ->> 'waiting')::BIGINT, 0) ELSE 0 END""",
    "leased": """CASE WHEN kind = 'leased' THEN 1 WHEN kind IN ('acked', 'nacked', 'lapsed', 'released') THEN -1
        WHEN kind = 'removed' AND marks & 8 = 8 THEN -1
        WHEN kind = 'queue' THEN sign * coalesce((details ->> 'leased')::BIGINT, 0) ELSE 0 END""",
    "dead": """CASE WHEN kind = 'dead' AND marks & 2 = 0 THEN 1 WHEN kind = 'redriven' THEN -1
        WHEN kind = 'leased' AND marks & 4 = 4 THEN -1 WHEN kind = 'released' AND marks & 4 = 4 THEN 1
        WHEN kind = 'removed' AND marks & 12 = 4 THEN -1
        WHEN kind = 'queue' THEN sign * coalesce((details ->> 'dead')::BIGINT, 0) ELSE 0 END""",
}


def check_minutes(lake: Lake) -> None:
    """Gold is what DuckDB makes of bronze."""
    kept, expected = rows_of(lake, QUEUE_MINUTES), minutes_by_duckdb(lake)
    assert len(kept) == len(expected)
    for row, other in zip(kept, expected, strict=True):
        exact = ["queue", "minute", *COUNTS, *(f"{state}_{part}" for state in STATES for part in ("change", "end"))]
        assert {name: row[name] for name in exact} == {name: other[name] for name in exact}
        assert row["depth"] == other["waiting_end"] + other["leased_end"]
        for latency, values in (("wait", other["waits"] or []), ("service", other["services"] or [])):
            for share in (50, 95, 99):
                found = row[f"{latency}_p{share}_ms"]
                assert (found is None) == (not values)
                if values:
                    below = sum(value < found for value in values) / len(values)
                    up_to = sum(value <= found for value in values) / len(values)
                    assert below - 0.02 <= share / 100 <= up_to + 0.02


def check_lake(work: Busy, lake: Lake) -> None:
    """Every table says what the journal says."""
    bronze = rows_of(lake, BRONZE)
    events = list(work.events())
    # A server that ended since tells so.
    while events[-1].kind == "worker" and events[-1].offset > bronze[-1]["offset"]:
        events.pop()
    assert [(row["offset"], row["number"], row["kind"], row["id"], row["body"]) for row in bronze] == [
        (event.offset, event.number, event.kind, event.id, event.body) for event in events
    ]
    expected = sorted(lives_in(events), key=lambda life: (life["offset"], life["id"]))
    found = sorted(rows_of(lake, SILVER), key=lambda life: (life["offset"], life["id"]))
    shown = [{**row, "errors": [each["error"] for each in row["errors"] or []]} for row in found]
    assert [{name: row[name] for name in expected[0]} for row in shown] == expected
    check_held(work, lake)


def check_held(work: Busy, lake: Lake) -> None:
    """Gold is what bronze adds up to, and what the store says: a queue that is not in the journal holds nothing."""
    check_minutes(lake)
    for row in rows_of(lake, QUEUES):
        info = work.store.find_queue(row["queue"])
        told = info is not None and info.options.journal != "off"
        held = (info.ready + info.scheduled, info.leased, info.dead) if info and told else (0, 0, 0)
        assert tuple(row[f"{state}_now"] for state in STATES) == held
