"""Ranges of a log's offsets, for many tasks to read at once, and for steps of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from penstock.log.model import SegmentInfo

LITTLE_BYTES = 16 << 20


class OffsetRange(Struct, frozen=True):
    """Offsets from `start` up to, but not including, `end`."""

    start: int
    end: int


def parts_of(segments: Sequence[SegmentInfo], start: int, end: int, count: int) -> list[OffsetRange]:
    """At most `count` ranges of about as many bytes each, cut at segments where that is even enough."""
    pieces = list(_pieces(segments, start, end))
    total = sum((high - low) * weight for low, high, weight in pieces)
    share = total / max(1, count)
    parts: list[OffsetRange] = []
    begin, filled = start, 0.0
    for low, high, weight in pieces:
        # A segment that alone is more than a share is cut within.
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
    """Are the records between two offsets so few that one process is done before others have started?"""
    return sum((high - low) * weight for low, high, weight in _pieces(segments, start, end)) < LITTLE_BYTES


def end_within(segments: Sequence[SegmentInfo], start: int, end: int, bytes_max: int) -> int:
    """The offset up to which about so many bytes of records lie; at least one record."""
    left = float(bytes_max)
    for low, high, weight in _pieces(segments, start, end):
        if (high - low) * weight > left:
            return max(start + 1, low + int(left / weight))
        left -= (high - low) * weight
    return end


def _pieces(segments: Sequence[SegmentInfo], start: int, end: int) -> Iterator[tuple[int, int, float]]:
    """What of each segment lies between two offsets, and how many bytes a record of it has."""
    for segment in segments:
        low, high = max(start, segment.first), min(end, segment.first + segment.records)
        if low < high:
            yield low, high, max(1.0, segment.bytes / segment.records)
