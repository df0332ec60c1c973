"""The journal of a data folder, as Arrow: which ranges there are, and the events in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock.journal.arrow import SCHEMA, events_table
from penstock.log.arrow import Mapped, mapped
from penstock.log.reader import LogReader
from penstock.log.record import HEADER_BYTES

BATCH_EVENTS = 32 << 10


class Part(Struct, frozen=True):
    """Offsets from `start` up to, but not including, `end`, of the log in a folder."""

    folder: str
    start: int
    end: int


def parts_of(log: LogReader, start: int, end: int, count: int) -> list[Part]:
    """At most `count` ranges of about as many bytes each, cut at segments where that is even enough."""
    pieces: list[tuple[int, int, float]] = []
    for segment in log.segments():
        low, high = max(start, segment.first), min(end, segment.first + segment.records)
        if low < high:
            pieces.append((low, high, segment.bytes / max(1, segment.records)))
    total = sum((high - low) * weight for low, high, weight in pieces)
    share = total / max(1, count)
    parts: list[Part] = []
    begin, filled = start, 0.0
    for low, high, weight in pieces:
        # A segment that alone is more than a share is cut within.
        while filled + (high - low) * weight > share * 1.25 and len(parts) < count - 1:
            take = min(high - low, max(1, round((share - filled) / weight)))
            low += take
            parts.append(Part(str(log.folder), begin, low))
            begin, filled = low, 0.0
        filled += (high - low) * weight
    if begin < end:
        parts.append(Part(str(log.folder), begin, end))
    return parts


def end_within(log: LogReader, start: int, end: int, bytes_max: int) -> int:
    """The offset up to which about so many bytes of records lie; at least one record."""
    left = float(bytes_max)
    for segment in log.segments():
        low, high = max(start, segment.first), min(end, segment.first + segment.records)
        if low >= high:
            continue
        weight = segment.bytes / segment.records
        if (high - low) * weight > left:
            return max(start + 1, low + int(left / weight))
        left -= (high - low) * weight
    return end


def read_events(
    part: Part, columns: Sequence[str] = SCHEMA.names, *, skip_lost: bool = False
) -> Iterator[pa.RecordBatch]:
    """Events of a range, in order. Offsets whose records were lost are an error, or passed over."""
    with LogReader(part.folder) as log:
        for start, end in _unbroken(log, part) if skip_lost else [(part.start, part.end)]:
            for piece in mapped(log, start, end):
                for first, last in _runs(piece):
                    yield from _table(piece, first, last, columns).to_batches()


def _unbroken(log: LogReader, part: Part) -> Iterator[tuple[int, int]]:
    for info in log.segments():
        segment = log.segment_of(info.first)
        start, end = max(part.start, info.first), min(part.end, info.first + segment.count)
        if start < end:
            yield start, end


def _table(piece: Mapped, first: int, last: int, columns: Sequence[str]) -> pa.Table:
    low, high = int(piece.ends[first]), int(piece.ends[last])
    ends: Any = piece.ends[first + 1 : last + 1] - low
    return events_table(piece.view[low:high], ends, piece.first + first, columns)


def _runs(piece: Mapped) -> Iterator[tuple[int, int]]:
    """Records, by number, that are whole and hold few enough events for one batch."""
    counts = piece.gather(HEADER_BYTES, "<u4").astype(np.int64)
    kept = piece.kept()
    if kept is not None:
        counts[~kept] = 0
    # A new run begins where the events so far fill another batch, and on both sides of what was given up.
    before = np.cumsum(counts) - counts
    group = before // BATCH_EVENTS
    breaks = np.diff(group) != 0
    if kept is not None:
        breaks |= np.diff(kept.astype(np.int8)) != 0
    cuts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(counts)]
    for first, last in pairwise(cuts):
        if kept is None or kept[first]:
            yield first, last
