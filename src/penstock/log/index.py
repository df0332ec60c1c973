"""The index of a segment: a header, then the end position of each record (u32). It is a cache.

It is verified before use: against the checksum in the header of a sealed segment, against the manifest, or against the
records. A wrong entry never costs a record, and a correct one shows where a damaged record ends.
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
# Number of records that share a checksum, which bulk readers verify.
BLOCK_RECORDS = 1024
_HEADER = Struct("<8sQQqQIxxxxq")
_SUM = Struct("<I")
_MAGIC = b"PENSTKI1"
ACTIVE = -1

assert array("I").itemsize == 4
assert sys.byteorder == "little", "positions are stored in the byte order of the machine"


@dataclass(frozen=True)
class IndexHeader:
    uid: int
    first: int
    count: int = ACTIVE
    """ACTIVE until the segment is sealed."""
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
    """Return the header; None if it is damaged or belongs to another segment."""
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
    """Return the ends of records `start` to `stop - 1`; fewer if the file is shorter."""
    data = os.pread(fd, 4 * (stop - start), ENDS_AT + 4 * start)
    ends = array("I")
    ends.frombytes(data[: len(data) // 4 * 4])
    return ends


def count_in(fd: int) -> int:
    return max(0, (os.fstat(fd).st_size - ENDS_AT) // 4)


def sum_of(ends: array[int], start: int = 0) -> int:
    return int(crc32(ends.tobytes(), start))


def count_confirmed(ends: array[int], first: int, manifest: Manifest | None) -> int:
    """Return how many leading entries the manifest confirms."""
    if manifest is None or manifest.active != first or manifest.count > len(ends):
        return 0
    return manifest.count if sum_of(ends[: manifest.count]) == manifest.ends_sum else 0


class Located(NamedTuple):
    ends: array[int]
    """End of each record whose offset is certain."""
    claimed: int
    """Number of acknowledged records, as far as known. More than `ends` if records have vanished."""


def locate(
    view: memoryview,
    start: int,
    hints: array[int],
    *,
    known: int = 0,
    count: int | None = None,
    upto: int = 0,
) -> Located:
    """Find where each record ends by the records themselves; the entries of the index are only hints.

    The first `known` hints are trusted. With `count`, the first `upto` bytes held exactly that many records. A damaged
    record keeps its number, and so do the records after it. Its end is found in one of three ways: a hint after which
    an intact record begins, its own length, or by counting the intact records back from the end.
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
    """Return the ends of the damaged records up to the next intact one, taken from the index."""
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
    # No intact record follows any entry. Entries count up to the next intact record, which would contradict them.
    found = find(view, at + 1, followed=False) or len(view)
    damaged = hints[number : _plausible(hints, number, at)]
    return damaged[: bisect_right(damaged, found)] or None


def _step_by_length(view: memoryview, at: int, end: int | None, within: int | None, is_last: bool) -> array[int] | None:
    """Return the end of a damaged record with a correct length: the next intact record begins exactly there."""
    if end is None:
        return None
    found = find(view, at + 1, within)
    if found == end or (found is None and is_last and end == within):
        return array("I", [end])
    return None


def _count_back(view: memoryview, at: int, count: int) -> array[int] | None:
    """Return the ends of the `count` records that fill the rest of the view, of which the first is damaged.

    Nothing is guessed: if records lie between two damaged places, their numbers are unknown, and they are given up.
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
    """Return ends for lost records between two positions; where each one was is unknown."""
    return array("I", [*(at + HEADER_BYTES * number for number in range(1, lost)), end])


def _plausible(hints: array[int], start: int, at: int) -> int:
    """Return the number of the first entry from `start` on that cannot be the end of a record."""
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
    """Locate the records of an unsealed segment. `expected` is the number it held, if known."""
    if expected is not None:
        return locate(view, start, hints, count=expected, upto=len(view))
    if manifest is None or manifest.active != first:
        return locate(view, start, hints)
    known = bisect_right(hints, len(view), 0, count_confirmed(hints, first, manifest))
    return locate(view, start, hints, known=known, count=manifest.count, upto=manifest.bytes)
