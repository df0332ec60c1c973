"""Compares the lake of a killed pipeline with the clients' histories and between its own tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import duckdb
import pyarrow.compute as pc

from penstock.core.model import QueueOptions
from penstock.journal.events import Event
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import BRONZE, COUNTS, QUEUE_MINUTES, QUEUES, SILVER
from tests.crash import pipeline_traffic
from tests.crash.pipeline_traffic import History
from tests.spark.support import arrow_of, lives_in, rows_of


def check_silver(lake: Lake, events: Iterable[Event]) -> int:
    """What following every message, one event at a time, gives."""
    expected = sorted(lives_in(events), key=lambda life: (life["offset"], life["id"]))
    found = sorted(rows_of(lake, SILVER), key=lambda life: (life["offset"], life["id"]))
    assert len(found) == len(expected)
    for row, life in zip(found, expected, strict=True):
        row["errors"] = [each["error"] for each in row["errors"] or []]
        assert {name: row[name] for name in life} == life
    return len(found)


def check_history(lake: Lake, history: History, held: Counter[str]) -> str:
    """Each message that a client pushed ended once, as it was told, or is one of those held; and there is no other."""
    lives = {row["id"]: row for row in rows_of(lake, SILVER)}
    assert len(lives) == arrow_of(lake, SILVER).num_rows, "no message here has two lives"
    bodies = _bodies(lake)
    told: Counter[str] = Counter()
    for id_, (queue, payload) in history.pushed.items():
        assert bodies[id_] == (queue, payload)
    unanswered = bodies.keys() - history.pushed.keys()
    assert all(bodies[id_][1] in history.attempted for id_ in unanswered)
    for id_, delivery in history.acked.items():
        assert (lives[id_]["outcome"], lives[id_]["attempts"]) == ("acked", delivery)
        told["acked"] += 1
    for (id_, delivery), error in history.nacked.items():
        most = pipeline_traffic.QUEUES[bodies[id_][0]].get("max_attempts", QueueOptions().max_attempts)
        told["nacked"] += 1
        if delivery == most:
            assert lives[id_]["outcome"] == "dead"
            assert [(each["attempt"], each["error"]) for each in lives[id_]["errors"]][-1] == (delivery, error)
            told["dead"] += 1
    alive = Counter(bodies[id_][0] for id_ in bodies.keys() - lives.keys())
    assert +alive == +held, "what has not ended is in its queue"
    return f"{dict(told)}, {alive.total()} not ended, {len(unanswered)} pushed without an answer"


def _bodies(lake: Lake) -> dict[int, tuple[str, str]]:
    """By id, the queue and the payload, which was JSON."""
    events = arrow_of(lake, BRONZE)
    pushed = events.filter(pc.equal(events["kind"], "pushed")).select(["id", "queue", "body"])
    return {row["id"]: (row["queue"], row["body"].decode().strip('"')) for row in pushed.to_pylist()}


def check_gold_against_silver(lake: Lake) -> int:
    """What silver, summed by DuckDB, says of each minute."""
    kept = {(row["queue"], row["minute"]): row for row in rows_of(lake, QUEUE_MINUTES)}
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.register("lives", arrow_of(lake, SILVER))
        found = db.sql(
            """SELECT queue, date_trunc('minute', finished_at) AS minute,
                 count(*) FILTER (outcome = 'acked') AS acked, count(*) FILTER (outcome = 'dead') AS dead,
                 count(*) FILTER (outcome = 'expired') AS expired, count(*) FILTER (outcome = 'removed') AS removed
               FROM lives GROUP BY ALL"""
        ).to_arrow_table()
    counts = ("acked", "dead", "expired", "removed")
    for row in found.to_pylist():
        gold = kept.pop((row["queue"], row["minute"]))
        assert {name: gold[name] for name in counts} == {name: row[name] for name in counts}
    assert not any(row[name] for row in kept.values() for name in counts)
    return found.num_rows


def check_queues(lake: Lake, held: Counter[str]) -> int:
    """Each queue is there once, with all that its minutes add up to and with what it holds."""
    sums: dict[str, Counter[str]] = {}
    for row in rows_of(lake, QUEUE_MINUTES):
        sums.setdefault(row["queue"], Counter()).update({name: row[name] for name in COUNTS})
    found = rows_of(lake, QUEUES)
    assert [row["queue"] for row in found] == sorted(sums)
    for row in found:
        assert {name: row[name] for name in COUNTS} == {name: sums[row["queue"]][name] for name in COUNTS}
        assert row["waiting_now"] + row["leased_now"] == held[row["queue"]], row["queue"]
    return len(found)
