"""The rows that the tables of a model should have, computed from the journal's events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.pipeline.lake.frames import read_files
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.lake.tables import BRONZE
from penstock.pipeline.models.catalog import as_it_is, tables_of_model
from penstock.pipeline.models.decode import Split
from penstock.pipeline.models.definitions import Definition
from penstock.pipeline.models.sql_files import parse
from penstock.pipeline.models.sql_models import frame_of
from penstock.pipeline.models.typed import pushed, ranges, splitter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOREVER = 1 << 62


def expected_tables(
    spark: SparkSession, lake: Lake, definition: Definition, others: Mapping[str, Definition]
) -> Iterator[tuple[LakeTable, DataFrame]]:
    """Yield each existing table of a model with the rows that it should have."""
    tables = tables_of_model(lake, definition)
    if not all(table.exists() for table in tables):
        return  # It was added since the last run.
    if definition.kind == "sql":
        with frame_of(spark, lake, parse(definition.name, definition.sql), others, 0, FOREVER) as frame:
            yield as_it_is(tables[0]), frame
        return
    for part, table in enumerate(tables):
        yield table, _typed(spark, lake, definition, part, table.table.schema)


def _typed(spark: SparkSession, lake: Lake, definition: Definition, part: int, schema: pa.Schema) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = read_files(spark, schema, [])
    for version, low, high in ranges(definition.versions, 0, FOREVER):
        events = lake[BRONZE].read(spark, offset=low)
        messages = pushed(events.where((events["offset"] >= low) & (events["offset"] < high)), definition.queue)
        split = splitter(version, definition.tables[0].schema)
        rows = rows.unionByName(messages.mapInArrow(_only(split, part), from_arrow_schema(schema)))
    return rows


def _only(split: Callable[[pa.RecordBatch], Split], part: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def only(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield split(batch)[part]

    return only
