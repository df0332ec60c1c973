"""The index of a segment: a header, then for each record the position where it ends (u32). It is a cache.

It is checked before it is used: against the sum that sealing left in the header, against the manifest, or against the
records themselves. An entry that is wrong never costs a record; one that is right tells where a damaged record ends.
"""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_right
from dataclasses import astuple, dataclass
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from penstock.log.manifest import Manifest
from penstock.log.record import HEADER_BYTES, LENGTH_MAX, crc32, end_at, find, intact, walk
from penstock.log.segment_header import Owner

ENDS_AT = 64
# How many records share one of the sums that bulk readers check.
BLOCK_RECORDS = 1024
_HEADER = Struct("<8sQQqQIxxxxq")
_SUM = Struct("<I")
_MAGIC = b"PENSTKI1"
ACTIVE = -1

assert array("I").itemsize == 4
assert sys.byteorder == "little", "positions are written as the machine has them"


@dataclass(frozen=True)
class IndexHeader:
    uid: int
    first: int
    count: int = ACTIVE
    """Known once the segment is sealed."""
    log_bytes: int = 0
    ends_sum: int = 0
    last_time_ms: int = 0

    @property
    def sealed(self) -> bool:
        return self.count >= 0

    def pack(self) -> bytes:
        data = _HEADER.pack(_MAGIC, *astuple(self))
        return (data + _SUM.pack(crc32(data))).ljust(ENDS_AT, b"\0")


def read_header(fd: int, uid: int, first: int) -> IndexHeader | None:
    """None if this is not the index of that segment."""
    header = _any_header(fd)
    return header if header is not None and (header.uid, header.first) == (uid, first) else None


def owner_in(fd: int) -> Owner | None:
    """Return the segment that an index belongs to; None if its header is damaged."""
    header = _any_header(fd)
    return None if header is None else (header.uid, header.first)


def _any_header(fd: int) -> IndexHeader | None:
    data = os.pread(fd, ENDS_AT, 0)
    if len(data) < ENDS_AT or _SUM.unpack_from(data, _HEADER.size)[0] != crc32(data[: _HEADER.size]):
        return None
    magic, *fields = _HEADER.unpack_from(data)
    return IndexHeader(*fields) if magic == _MAGIC else None


def read_ends(fd: int, start: int, stop: int) -> array[int]:
    """The ends of records `start` to `stop`, as far as they are there."""
    data = os.pread(fd, 4 * (stop - start), ENDS_AT + 4 * start)
    ends = array("I")
    ends.frombytes(data[: len(data) // 4 * 4])
    return ends


def count_in(fd: int) -> int:
    return max(0, (os.fstat(fd).st_size - ENDS_AT) // 4)


def sum_of(ends: array[int], start: int = 0) -> int:
    return int(crc32(ends.tobytes(), start))


def vouched(ends: array[int], first: int, manifest: Manifest | None) -> int:
    """How many of the entries the manifest vouches for."""
    if manifest is None or manifest.active != first or manifest.count > len(ends):
        return 0
    return manifest.count if sum_of(ends[: manifest.count]) == manifest.ends_sum else 0


class Located(NamedTuple):
    ends: array[int]
    """Where each record ends, as far as it is certain which record it is."""
    claimed: int
    """So many records were acknowledged, as far as can be told: more than there are ends if some have vanished."""


def locate(
    view: memoryview,
    start: int,
    hints: array[int],
    *,
    known: int = 0,
    count: int | None = None,
    upto: int = 0,
) -> Located:
    """Find the records of a segment by the records themselves; an index only gives hints.

    The first `known` hints are trusted. If `count` is given, the first `upto` bytes held exactly so many records. A
    damaged record keeps its number, so that those after it keep theirs: an entry of the index after which an intact
    record follows tells where it ends, or its own length does, or the records after it are counted from the end.
    """
    ends = hints[:known]
    while (at := ends[-1] if ends else start) < len(view):
        number = len(ends)
        end = end_at(view, at)
        if end is not None and ((number < len(hints) and hints[number] == end) or intact(view, at, end)):
            ends.append(end)
            continue
        over = _step_over(view, at, hints, number)
        if over is None:
            within = upto if count is not None and number < count and at < upto <= len(view) else None
            over = _step_by_length(view, at, end, within, count == number + 1)
            if over is None and count is not None and within is not None:
                over = _count_back(view[:within], at, count - number)
        if over is None:
            break
        ends.extend(over)
    return Located(ends, max(len(ends), count or 0, _plausible(hints, len(ends), at)))


def _step_over(view: memoryview, at: int, hints: array[int], number: int) -> array[int] | None:
    """Return the ends of the damaged records from here up to the next intact one, by the index."""
    for place in range(number, len(hints)):
        end = hints[place]
        lost = place - number + 1
        if not at + HEADER_BYTES * lost <= end <= len(view):
            continue
        last = end == len(view) and place == len(hints) - 1
        own_end = end_at(view, end)
        if last or (own_end is not None and intact(view, end, own_end)):
            between = array("I", [at, *hints[number : place + 1]])
            if all(high - low >= HEADER_BYTES for low, high in pairwise(between)):
                return between[1:]
            return _spread(at, lost, end)
    # Nothing intact follows any entry. They still count, as far as no intact record gives the lie to them.
    found = find(view, at + 1, followed=False) or len(view)
    damaged = hints[number : _plausible(hints, number, at)]
    return damaged[: bisect_right(damaged, found)] or None


def _step_by_length(view: memoryview, at: int, end: int | None, within: int | None, is_last: bool) -> array[int] | None:
    """Return the end of one damaged record whose length is right: the next intact record begins exactly there."""
    if end is None:
        return None
    found = find(view, at + 1, within)
    if found == end or (found is None and is_last and end == within):
        return array("I", [end])
    return None


def _count_back(view: memoryview, at: int, count: int) -> array[int] | None:
    """Return the ends of the `count` records that fill the rest of this view, of which the first is damaged.

    Where it cannot be told how many were lost, nothing is guessed: what lies between two damaged places is given up.
    """
    damaged_end, after = at, array("I")
    position = at
    while position < len(view):
        found = find(view, position + 1) or len(view)
        if position > at and found == end_at(view, position):
            after.append(found)
        else:
            damaged_end, after = found, array("I")
        after.extend(walk(view, found))
        position = after[-1] if after else found
    lost = count - len(after)
    if not 0 < HEADER_BYTES * lost <= damaged_end - at:
        return None
    return _spread(at, lost, damaged_end) + after


def _spread(at: int, lost: int, end: int) -> array[int]:
    """Places for lost records between two positions, of which nothing more is known."""
    return array("I", [*(at + HEADER_BYTES * number for number in range(1, lost)), end])


def _plausible(hints: array[int], start: int, at: int) -> int:
    """How many records the index claims, from `start` on as far as its entries can be records' ends."""
    for number in range(start, len(hints)):
        if not HEADER_BYTES <= hints[number] - at <= HEADER_BYTES + LENGTH_MAX:
            return number
        at = hints[number]
    return len(hints)


def find_ends(
    hints: array[int],
    view: memoryview,
    start: int,
    first: int,
    manifest: Manifest | None,
    expected: int | None = None,
) -> Located:
    """Locate the records of a segment that no seal vouches for; `expected` is how many it held, if that is known."""
    if expected is not None:
        return locate(view, start, hints, count=expected, upto=len(view))
    if manifest is None or manifest.active != first:
        return locate(view, start, hints)
    known = bisect_right(hints, len(view), 0, vouched(hints, first, manifest))
    return locate(view, start, hints, known=known, count=manifest.count, upto=manifest.bytes)
