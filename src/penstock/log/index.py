"""The index of a segment: a header, then for each record the position where it ends (u32). It is a cache.

Whoever trusts it has checked it: against the sum that sealing left in the header, against the manifest, or against the
records themselves. What it says of synced records outlives a damaged record; what no index knows is found by scanning.
"""

from __future__ import annotations

import os
import sys
from array import array
from dataclasses import astuple, dataclass
from struct import Struct
from typing import NamedTuple

from penstock.log.manifest import Manifest
from penstock.log.record import HEADER_BYTES, crc32, end_at, find, intact, walk

ENDS_AT = 64
BLOCK_RECORDS = 1024
"""How many records share one of the sums that bulk readers check."""
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
    data = os.pread(fd, ENDS_AT, 0)
    if len(data) < ENDS_AT or _SUM.unpack_from(data, _HEADER.size)[0] != crc32(data[: _HEADER.size]):
        return None
    magic, *fields = _HEADER.unpack_from(data)
    header = IndexHeader(*fields)
    return header if (magic, header.uid, header.first) == (_MAGIC, uid, first) else None


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


class Vetted(NamedTuple):
    good: int
    """So many entries fit the records."""
    claimed: int
    """So many were acknowledged, as far as the index can tell: more than `good` when the log has lost its tail."""


def vet(ends: array[int], view: memoryview, start: int) -> Vetted:
    """Hold the entries from `start` on against the records' own lengths.

    Where the two differ, an intact record gives the lie to the index; otherwise it is the record that is damaged.
    """
    at = ends[start - 1] if start else 0
    for number in range(start, len(ends)):
        end = ends[number]
        if end > len(view):
            return Vetted(number, _plausible(ends, number, at))
        own_end = end_at(view, at)
        if own_end != end and (end < at + HEADER_BYTES or (own_end is not None and intact(view, at, own_end))):
            return Vetted(number, number)
        at = end
    return Vetted(len(ends), len(ends))


def _plausible(ends: array[int], start: int, at: int) -> int:
    for number in range(start, len(ends)):
        if ends[number] < at + HEADER_BYTES:
            return number
        at = ends[number]
    return len(ends)


def complete(known: array[int], view: memoryview, expected: int) -> array[int]:
    """All ends of a segment of `expected` records of which only the first few are known, by a scan; fewer if need be.

    A record that is damaged keeps its number, so that those after it keep theirs. Where it cannot be told how many were
    lost, nothing is guessed: what lies between is given up, and the good records after it are counted from the end.
    """
    before, after = known[:expected], array("I")
    region: tuple[int, int] | None = None
    ends, at = before, known[-1] if known else 0
    while at < len(view):
        ends.extend(walk(view, at))
        at = max(at, ends[-1] if ends else 0)
        if at == len(view):
            break
        found = find(view, at + 1) or len(view)
        if found == end_at(view, at):
            ends.append(found)
        else:
            region = (region[0] if region else at, found)
            ends = after = array("I")
        at = found
    lost = expected - len(before) - len(after)
    if region is not None and 0 < lost * HEADER_BYTES <= region[1] - region[0]:
        before.extend(region[0] + HEADER_BYTES * number for number in range(1, lost))
        before.append(region[1])
        before.extend(after)
    return before[:expected]


def find_ends(
    ends: array[int], view: memoryview, first: int, manifest: Manifest | None, expected: int | None = None
) -> tuple[array[int], Vetted]:
    """The ends of all whole records of a segment that no seal vouches for, and what its index was worth."""
    if manifest is not None and manifest.active != first:
        manifest = None
    vetted = vet(ends, view, vouched(ends, first, manifest))
    ends = ends[: vetted.good]
    if vetted.claimed > vetted.good:
        return ends, vetted
    if expected is not None:
        return complete(ends, view, expected), vetted
    if manifest is not None and len(ends) < manifest.count and manifest.bytes <= len(view):
        ends = complete(ends, view[: manifest.bytes], manifest.count)
        if len(ends) < manifest.count:
            return ends, vetted
    ends.extend(walk(view, ends[-1] if ends else 0))
    return ends, vetted
