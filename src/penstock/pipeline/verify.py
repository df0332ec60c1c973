"""Verifies the lake: recomputes every derived table from bronze and compares.

Where retention has dropped events, it compares what follows from those that bronze still has.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from msgspec import Struct
from pyspark.sql import functions as F

from penstock.pipeline.lake import gold, silver
from penstock.pipeline.lake.frames import read_files
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.tables import (
    BRONZE,
    COUNTS,
    EVENT_COLUMNS,
    LATENCIES,
    QUEUE_ERRORS,
    QUEUE_MINUTES,
    QUEUES,
    SILVER,
    Table,
)
from penstock.pipeline.models.definitions import Definitions
from penstock.pipeline.models.expected import expected_tables
from penstock.pipeline.retention import dropped_before, trimmed_before

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# An event's timestamp may be slightly earlier than that of its message.
CLOCKS_APART = timedelta(minutes=1)


class Verdict(Struct, frozen=True, kw_only=True):
    table: str
    rows: int
    missing: int
    """Expected rows that the table lacks."""
    unexpected: int
    """Rows that should not exist, or that have other values."""

    @property
    def good(self) -> bool:
        return not self.missing and not self.unexpected


def verify(spark: SparkSession, lake: Lake) -> Iterator[Verdict]:
    since = trimmed_before(lake[BRONZE])
    events = lake[BRONZE].read(spark, EVENT_COLUMNS)
    if since is not None:
        events = events.where(F.col("at") >= F.lit(since))
    total = events.count()
    distinct = events.select(*BRONZE.keys).distinct().count()
    yield Verdict(table=BRONZE.name, rows=total, missing=0, unexpected=total - distinct)
    totals = None if since is None else lake[QUEUES].read(spark)
    for name, expected in _expected(spark, events, totals).items():
        table = TABLE_OF[name]
        kept = lake[table].read(spark)
        if since is not None and table is QUEUES:
            minutes = lake[QUEUE_MINUTES].read(spark)
            kept, expected = kept.select("queue", *COUNTS), gold.totals_of(minutes)
        horizons = [each for each in (since, trimmed_before(lake[table])) if each is not None]
        if horizons:
            kept, expected = (_since(rows, max(horizons), table) for rows in (kept, expected))
        yield _compare(kept, expected, table)
    yield from verify_models(spark, lake)


TABLE_OF = {table.name: table for table in (SILVER, QUEUES, QUEUE_MINUTES, QUEUE_ERRORS)}


def verify_models(spark: SparkSession, lake: Lake) -> Iterator[Verdict]:
    """Recompute the tables of models from their definitions and compare.

    Once retention has dropped anything, what a query once found may be gone, and so are the bodies of older rows.
    """
    dropped = dropped_before(lake)
    definitions = Definitions(lake).all()
    for definition in definitions.values():
        if dropped is not None and definition.kind == "sql":
            continue
        for table, expected in expected_tables(spark, lake, definition, definitions):
            kept = table.read(spark)
            if dropped is not None:
                time = F.lit(dropped + CLOCKS_APART)
                kept, expected = (rows.where(F.col("pushed_at") >= time) for rows in (kept, expected))
            yield _compare(kept, expected, table.table)


def _since(rows: DataFrame, time: datetime, table: Table) -> DataFrame:
    """Return the rows that follow from events since a time alone."""
    if table is QUEUES:
        return rows
    if table is SILVER:
        # A life that ended with its queue follows from its push as well.
        whole = (F.col("outcome") != "removed") | (F.col("pushed_at") >= F.lit(time))
        return rows.where(whole & (F.col("finished_at") >= F.lit(time)))
    unit = timedelta(minutes=1) if table is QUEUE_MINUTES else timedelta(hours=1)
    seconds = -(-time.timestamp() // unit.total_seconds()) * unit.total_seconds()
    return rows.where(F.col(table.ranged[-1]) >= F.lit(datetime.fromtimestamp(seconds, UTC)))


def _expected(spark: SparkSession, events: DataFrame, totals: DataFrame | None) -> dict[str, DataFrame]:
    """Return what each table must be. `totals` are those of queues, if the events are not all there ever were."""

    def empty(table: Table) -> DataFrame:
        return read_files(spark, table.schema, [])

    lives = silver.finished_lives(events)
    removed = silver.lives_of_removed_queues(events, silver.removal_events(events))
    minutes = gold.minutes_of(events)
    queues = gold.queues_with(empty(QUEUES), minutes) if totals is None else totals
    return {
        SILVER.name: lives.unionByName(removed),
        QUEUES.name: queues,
        QUEUE_MINUTES.name: gold.minutes_with(empty(QUEUE_MINUTES), minutes, queues),
        QUEUE_ERRORS.name: gold.errors_of(events),
    }


def _compare(kept: DataFrame, expected: DataFrame, table: Table) -> Verdict:
    kept, expected = _comparable(kept, table), _comparable(expected, table)
    return Verdict(
        table=table.name,
        rows=kept.count(),
        missing=expected.exceptAll(kept).count(),
        unexpected=kept.exceptAll(expected).count(),
    )


def _comparable(rows: DataFrame, table: Table) -> DataFrame:
    """Replace sketches, which depend on merge order, by their number of values, and percentiles by a check that they
    match the sketch."""
    if table is not QUEUE_MINUTES:
        return rows
    expressions = {name: f"{name} <=> {value}" for name, value in gold.QUANTILES.items()}
    expressions |= {f"{latency}_sketch": f"kll_sketch_get_n_bigint({latency}_sketch)" for latency in LATENCIES}
    return rows.selectExpr([f"{expressions.get(name, name)} AS {name}" for name in table.schema.names])
