"""Encodes batches of records as rows, and verifies them when read."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from sys import byteorder
from typing import NamedTuple

from penstock.errors import CorruptRecord
from penstock.log.model import LogRecord
from penstock.log.record import HEADER_BYTES, crc32, decode, intact

# Larger batches become several rows, so that reading one record fetches little.
ROW_BYTES = 64 << 10


class NewRow(NamedTuple):
    records: int
    sum: int
    ends: bytes
    data: bytes


def cut(data: bytes, sizes: Sequence[int]) -> list[NewRow]:
    """Split encoded records into rows; a larger record gets a row of its own."""
    ends = list(accumulate(sizes))
    if len(data) <= ROW_BYTES:
        return [NewRow(len(sizes), crc32(data), pack_ends(ends), data)]
    rows, start, base = [], 0, 0
    while start < len(ends):
        stop = max(start + 1, bisect_right(ends, base + ROW_BYTES, start))
        part = data[base : ends[stop - 1]]
        rows.append(NewRow(stop - start, crc32(part), pack_ends([end - base for end in ends[start:stop]]), part))
        start, base = stop, ends[stop - 1]
    return rows


def pack_ends(ends: Sequence[int]) -> bytes:
    packed = array("I", ends)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


class Row(NamedTuple):
    """A row as stored in the database."""

    last: int
    records: int
    sum: int
    ends: bytes
    data: bytes

    @property
    def first(self) -> int:
        return self.last - self.records + 1

    @property
    def where(self) -> str:
        return f"the batch that ends at {self.last}"

    def places(self) -> list[int]:
        """Return the start of the first record and the end of each."""
        ends = array("I", self.ends[: len(self.ends) // 4 * 4])
        if byteorder == "big":
            ends.byteswap()
        return [0, *ends]

    def intact(self) -> bool:
        return len(self.ends) == 4 * self.records and crc32(self.data) == self.sum

    def read(self, stream: str, offset: int) -> Iterator[tuple[LogRecord, int]]:
        """Yield the records from an offset on, each verified, with its size."""
        places, view = self.places(), memoryview(self.data)
        for number in range(offset - self.first, self.records):
            start, end = (places[number], places[number + 1]) if number + 1 < len(places) else (0, 0)
            if not intact(view, start, end):
                raise CorruptRecord(stream, self.first + number, self.where, start)
            yield decode(self.data, start, end, self.first + number), end - start

    def damaged(self) -> list[int]:
        """Return the numbers of the damaged records, counted from the first."""
        if self.intact() and _rising(self.places(), len(self.data)):
            return []
        places, view = self.places(), memoryview(self.data)
        return [
            number
            for number in range(self.records)
            if number + 1 >= len(places) or not intact(view, places[number], places[number + 1])
        ]


def _rising(places: Sequence[int], size: int) -> bool:
    return places[-1] == size and all(b - a >= HEADER_BYTES for a, b in pairwise(places))
