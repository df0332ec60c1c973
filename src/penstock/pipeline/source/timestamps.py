"""Finds the offset for a time by binary search: a log of millions of records takes about twenty reads of one record.

The times of a stream's records never decrease. Those of a journal's events may step back a little, where a clock was
set back or a transaction on PostgreSQL committed late. The search then finds one of the places where the time passes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from penstock.pipeline.source.log_sources import SourceLog
from penstock.pipeline.source.offset_ranges import OffsetRange

OFFSET = "offset"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def offset_at(log: SourceLog, time_us: int, column: str) -> int:
    """Return the offset of the first record at or after a time; the next offset if there is none."""
    low, high = log.first_offset, log.next_offset
    while low < high:
        middle = (low + high) // 2
        found = _first_time(log, OffsetRange(middle, middle + 1), column)
        if found is None:  # A repair gave this record up.
            found = _first_time(log, OffsetRange(middle, high), column)
        if found is None or found[1] >= time_us:
            high = middle
        else:
            low = found[0] + 1
    return low


def _first_time(log: SourceLog, part: OffsetRange, column: str) -> tuple[int, int] | None:
    """Return the offset and the time of the first row of a range."""
    for batch in log.read(part, [OFFSET, column]):
        if batch.num_rows:
            return batch.column(0)[0].as_py(), batch.column(1)[0].cast(pa.int64()).as_py() or 0
    return None


def microseconds_of(text: str) -> int | None:
    """Parse milliseconds since 1970, or a date and time with its time zone, as in RFC 3339."""
    if text.isdecimal():
        return int(text) * 1_000
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    if parsed.tzinfo is None:
        return None
    return (parsed - EPOCH) // timedelta(microseconds=1)
