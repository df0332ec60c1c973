"""Splits a log's offsets into ranges for parallel tasks and for steps of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from penstock.log.model import SegmentInfo

SMALL_BYTES = 16 << 20


class OffsetRange(Struct, frozen=True):
    """Offsets from `start` up to, but not including, `end`."""

    start: int
    end: int


def parts_of(segments: Sequence[SegmentInfo], start: int, end: int, count: int) -> list[OffsetRange]:
    """Return at most `count` ranges of about equal bytes, split at segment boundaries if that is even enough."""
    pieces = list(_pieces(segments, start, end))
    total = sum((high - low) * weight for low, high, weight in pieces)
    share = total / max(1, count)
    parts: list[OffsetRange] = []
    begin, filled = start, 0.0
    for low, high, weight in pieces:
        # Split a segment that is larger than a share.
        while filled + (high - low) * weight > share * 1.25 and len(parts) < count - 1:
            take = min(high - low, max(1, round((share - filled) / weight)))
            low += take
            parts.append(OffsetRange(begin, low))
            begin, filled = low, 0.0
        filled += (high - low) * weight
    if begin < end:
        parts.append(OffsetRange(begin, end))
    return parts


def is_small(segments: Sequence[SegmentInfo], start: int, end: int) -> bool:
    """Return True if one process would read the range before Spark tasks have started."""
    return sum((high - low) * weight for low, high, weight in _pieces(segments, start, end)) < SMALL_BYTES


def end_within(segments: Sequence[SegmentInfo], start: int, end: int, bytes_max: int) -> int:
    """Return the offset after about `bytes_max` bytes of records, at least one record."""
    left = float(bytes_max)
    for low, high, weight in _pieces(segments, start, end):
        if (high - low) * weight > left:
            return max(start + 1, low + int(left / weight))
        left -= (high - low) * weight
    return end


def _pieces(segments: Sequence[SegmentInfo], start: int, end: int) -> Iterator[tuple[int, int, float]]:
    """Yield each segment's part of the range and the mean bytes per record."""
    for segment in segments:
        low, high = max(start, segment.first), min(end, segment.first + segment.records)
        if low < high:
            yield low, high, max(1.0, segment.bytes / segment.records)
