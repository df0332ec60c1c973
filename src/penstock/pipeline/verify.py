"""Verifies the lake: recomputes every derived table from bronze and compares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.pipeline.lake import gold, silver
from penstock.pipeline.lake.lake import Lake, read_files
from penstock.pipeline.lake.tables import (
    BRONZE,
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    events = lake[BRONZE].read(spark, EVENT_COLUMNS)
    total = events.count()
    distinct = events.select(*BRONZE.keys).distinct().count()
    yield Verdict(table=BRONZE.name, rows=total, missing=0, unexpected=total - distinct)
    for table, expected in _expected(spark, events).items():
        yield _compare(lake[TABLE_OF[table]].read(spark), expected, TABLE_OF[table])
    yield from verify_models(spark, lake)


TABLE_OF = {table.name: table for table in (SILVER, QUEUES, QUEUE_MINUTES, QUEUE_ERRORS)}


def verify_models(spark: SparkSession, lake: Lake) -> Iterator[Verdict]:
    """Recompute the tables of models from their definitions and compare."""
    definitions = Definitions(lake).all()
    for definition in definitions.values():
        for table, expected in expected_tables(spark, lake, definition, definitions):
            yield _compare(table.read(spark), expected, table.table)


def _expected(spark: SparkSession, events: DataFrame) -> dict[str, DataFrame]:
    def empty(table: Table) -> DataFrame:
        return read_files(spark, table.schema, [])

    lives = silver.finished_lives(events)
    removed = silver.lives_of_removed_queues(events, silver.removal_events(events))
    minutes = gold.minutes_of(events)
    queues = gold.queues_with(empty(QUEUES), minutes)
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
