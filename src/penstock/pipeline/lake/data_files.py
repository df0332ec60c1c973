"""Data files as the log of a table describes them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction
from msgspec import Struct

# More queues than this are looked for by their first and last name.
QUEUES_MAX = 100


class NewFile(Struct, frozen=True):
    """A Parquet file that a task has written but no table has committed."""

    path: str
    """Path within the table's folder."""
    bytes: int
    rows: int
    least: dict[str, Any]
    greatest: dict[str, Any]
    nulls: dict[str, int] = {}

    def action(self, *, changes_data: bool = True) -> AddAction:
        stats = {
            "numRecords": self.rows,
            "minValues": _as_json(self.least),
            "maxValues": _as_json(self.greatest),
            "nullCount": self.nulls,
        }
        return AddAction(self.path, self.bytes, {}, now_ms(), changes_data, msgspec.json.encode(stats).decode())


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with times as Delta writes them."""
    return {name: as_time(value) if isinstance(value, datetime) else value for name, value in values.items()}


def as_time(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def of_queues(entries: pa.Table, queues: Collection[str]) -> pa.Table:
    """Return the entries of files that may hold rows of these queues, or all if none is given."""
    if not queues or "min.queue" not in entries.column_names:
        return entries
    names = sorted(queues)
    ranges = zip(names, names, strict=True) if len(names) <= QUEUES_MAX else [(names[0], names[-1])]
    wanted = [
        pc.and_(pc.less_equal(entries["min.queue"], last), pc.greater_equal(entries["max.queue"], first))
        for first, last in ranges
    ]
    return entries.filter(pc.fill_null(reduce(pc.or_, wanted), True))


def literal(value: Any) -> str:
    """Return a value as delta-rs reads it in a condition."""
    if isinstance(value, datetime):
        return f"arrow_cast('{as_time(value)}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    return str(value)
