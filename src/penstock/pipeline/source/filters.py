"""Applies a query's filters while reading: those on offsets, and on times of streams, narrow the range that is read;
others drop rows before they reach the JVM.

Spark applies every filter again, because the JVM reader applies none (`jvm/Extension.scala`). So a filter that is not
understood here only costs time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.pipeline.source.log_sources import SourceLog
from penstock.pipeline.source.timestamps import offset_at

OFFSET, TIMESTAMP = "offset", "timestamp"
# Columns by which most queries choose rows; others are left to Spark.
FILTERED = (OFFSET, TIMESTAMP, "at", "kind", "queue")
COMPARISONS: dict[str, Callable[..., Any]] = {
    "EqualTo": pc.equal,
    "EqualNullSafe": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
}
IN = "In"


class Condition(Struct, frozen=True):
    """One comparison of a column; all conditions of a query must hold."""

    column: str
    name: str
    values: list[Any]
    """As Arrow stores them: times are microseconds since 1970."""

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        column = batch.column(batch.schema.get_field_index(self.column))
        values = pa.array(self.values, pa.int64()).cast(column.type) if _is_time(column.type) else self.values
        if self.name == IN:
            return pc.is_in(column, value_set=pa.array(values, column.type))
        return COMPARISONS[self.name](column, pa.scalar(values[0], column.type))

    def bounds(self) -> tuple[int | None, int | None]:
        """Return the lowest value that meets the condition, and the lowest one above all that do."""
        low, high = min(self.values), max(self.values)
        if self.name in ("GreaterThan", "GreaterThanOrEqual"):
            return low + (self.name == "GreaterThan"), None
        return (None if self.name.startswith("Less") else low), high + (self.name != "LessThan")


class RowFilters:
    """The filters of one read."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._conditions: list[Condition] = []

    def add(self, filters: Sequence[Any]) -> None:
        """Take filters of PySpark's, which are all to be met."""
        self._conditions += filter(None, (self._condition(each) for each in filters))

    def _condition(self, given: Any) -> Condition | None:
        """Return a filter as a condition, None if it is not among those that are applied here."""
        name = type(given).__name__
        path: Sequence[str] = getattr(given, "attribute", ())
        if (name not in COMPARISONS and name != IN) or len(path) != 1 or path[0] not in FILTERED:
            return None
        if path[0] not in self._schema.names:
            return None
        values = [_plain(value) for value in (given.value if name == IN else [given.value])]
        proper = str if pa.types.is_string(self._schema.field(path[0]).type) else int
        if not values or not all(type(value) is proper for value in values):
            return None
        return Condition(path[0], name, values)

    def narrowed(self, log: SourceLog, start: int, end: int) -> tuple[int, int]:
        """Return the part of a range outside of which no record meets the filters.

        The times of a journal may step back, so they do not bound a range.
        """
        for each in self._conditions:
            if each.column in (OFFSET, TIMESTAMP):
                low, high = each.bounds()
                if each.column == TIMESTAMP:
                    low, high = (bound if bound is None else offset_at(log, bound, TIMESTAMP) for bound in (low, high))
                start = start if low is None else max(start, low)
                end = end if high is None else min(end, high)
        return start, end

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that meet the filters."""
        for each in self._conditions:
            if each.column in batch.schema.names:
                batch = batch.filter(each.mask(batch))
        return batch


def _plain(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return pa.scalar(value, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()
    return value


def _is_time(kind: pa.DataType) -> bool:
    found: bool = pa.types.is_timestamp(kind)
    return found
