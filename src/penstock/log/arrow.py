"""Reads records as Arrow columns without a loop over them: positions from the index, gathered by NumPy, cut by Arrow.

Whole blocks are verified by their checksums; each record of a block that is read in part or does not match is verified.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import CorruptRecord, InvalidInput, OffsetBeyondEnd, OffsetTrimmed
from penstock.log.index import BLOCK_RECORDS
from penstock.log.reader import LogReader
from penstock.log.record import HEADER_BYTES, LOST, crc32, intact
from penstock.log.segment import SUMS, Segment

BATCH_RECORDS = 32 * BLOCK_RECORDS
BATCH_BYTES = 32 << 20
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("data", pa.binary()),
    ]
)


class Piece:
    """Verified records in memory, from which readers of columns take their fields."""

    first: int
    view: memoryview
    bytes: np.ndarray[Any, Any]
    ends: np.ndarray[Any, Any]
    """Start of the first record, then the end of each record."""

    @property
    def starts(self) -> np.ndarray[Any, Any]:
        starts: np.ndarray[Any, Any] = self.ends[:-1]
        return starts

    def __len__(self) -> int:
        return len(self.ends) - 1

    def gather(self, at: int, kind: str, which: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Return the number at byte `at` of each record, or of some, by one gather over a strided view."""
        dtype = np.dtype(kind)
        view = np.ndarray((len(self.bytes) - dtype.itemsize + 1,), dtype, self.bytes.data, strides=(1,))
        starts = self.starts if which is None else self.starts[which]
        found: np.ndarray[Any, Any] = view[starts + at]
        return found

    def payloads(self, skip: int = 0) -> pa.Array:
        """Return the payload of each record without its first `skip` bytes."""
        offsets = pa.py_buffer(self.ends.astype(np.int32))
        whole = pa.BinaryArray.from_buffers(pa.binary(), len(self), [None, offsets, pa.py_buffer(self.view)])
        return pc.binary_slice(whole, HEADER_BYTES + skip, 2**31 - 1)

    def kept(self) -> np.ndarray[Any, Any] | None:
        """Return a mask of the records that no repair gave up; None if all are kept."""
        kinds = self.gather(16, "u1")
        return None if not (kinds == LOST).any() else kinds != LOST


class Mapped(Piece):
    """Verified records of a segment, mapped from its file."""

    def __init__(self, segment: Segment, start: int, stop: int) -> None:
        self.first = segment.first + start
        entries = segment.ends(start, stop)
        self.ends = np.frombuffer(entries, dtype=np.uint32).astype(np.int64)
        low, high = entries[0], entries[-1]
        size = segment.log.size
        if not _rising(self.ends) or high > size:
            bad = int(np.argmax((np.diff(self.ends) < HEADER_BYTES) | (self.ends[1:] > size)))
            raise CorruptRecord(segment.stream, self.first + bad, segment.path.name, entries[bad])
        # A mapping begins at a page boundary.
        base = low // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(segment.log.fd, high - base, prot=mmap.PROT_READ, offset=base)
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        self.view = memoryview(mapped)
        self.ends -= base
        self.bytes = np.frombuffer(mapped, dtype=np.uint8)
        self._verify(segment, start, [end - base for end in entries], base)

    def _verify(self, segment: Segment, start: int, ends: list[int], base: int) -> None:
        sums = _sums(segment)
        for low in range(-(start % BLOCK_RECORDS), len(ends) - 1, BLOCK_RECORDS):
            block, high = (start + low) // BLOCK_RECORDS, low + BLOCK_RECORDS
            whole = low >= 0 and high < len(ends) and block < len(sums)
            if whole and sums[block] == crc32(self.view[ends[low] : ends[high]]):
                continue
            places = ends[max(low, 0) : high + 1]
            for number, (at, end) in enumerate(pairwise(places), max(low, 0)):
                if not intact(self.view, at, end):
                    raise CorruptRecord(segment.stream, self.first + number, segment.path.name, base + at)
        lengths = np.ndarray((len(self.bytes) - 3,), "<u4", self.bytes.data, strides=(1,))[self.ends[:-1]]
        wrong = lengths != np.diff(self.ends) - HEADER_BYTES
        if wrong.any():
            number = int(np.argmax(wrong))
            raise CorruptRecord(segment.stream, self.first + number, segment.path.name, base + ends[number])


def _rising(ends: np.ndarray[Any, Any]) -> bool:
    return bool((np.diff(ends) >= HEADER_BYTES).all())


def _sums(segment: Segment) -> array[int]:
    try:
        data = segment.path.with_suffix(SUMS).read_bytes()
    except FileNotFoundError:
        return array("I")
    return array("I", data[: len(data) // 4 * 4])


def mapped(log: LogReader, offset: int, end: int | None = None) -> Iterator[Mapped]:
    """Yield pieces of the log in order, each within one segment and of at most BATCH_RECORDS records."""
    last = log.next_offset if end is None else min(end, log.next_offset)
    if offset > log.next_offset:
        raise OffsetBeyondEnd(log.name, offset, log.next_offset)
    if offset < log.first_offset:
        raise OffsetTrimmed(log.name, offset, log.first_offset)
    while offset < last:
        segment = log.segment_of(offset)
        try:
            piece = _piece(segment, offset, last)
        except CorruptRecord:
            piece = _piece(log.reopen_damaged(segment), offset, last)
        yield piece
        offset += len(piece)


def _piece(segment: Segment, offset: int, last: int) -> Mapped:
    start = offset - segment.first
    stop = min(segment.count, start + BATCH_RECORDS - start % BLOCK_RECORDS, last - segment.first)
    if start >= stop:
        raise CorruptRecord(segment.stream, offset, segment.path.name, None)
    ends = segment.ends(start, stop)
    # Offsets into a column must stay far below the int32 limit.
    fitting = int(np.searchsorted(np.frombuffer(ends, dtype=np.uint32), ends[0] + BATCH_BYTES, "right")) - 1
    return Mapped(segment, start, start + max(1, min(fitting, stop - start)))


def batches(
    log: LogReader, offset: int, end: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the user records of a log as record batches."""
    yield from batches_of(mapped(log, offset, end), columns)


def batches_of(pieces: Iterable[Piece], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield user records as record batches, without those given up by a repair."""
    names = SCHEMA.names if columns is None else list(columns)
    unknown = [name for name in names if name not in SCHEMA.names]
    if unknown:
        raise InvalidInput(
            f"unknown column {unknown[0]!r}", field="columns", hint="columns: " + ", ".join(SCHEMA.names)
        )
    schema = pa.schema([SCHEMA.field(name) for name in names])
    for piece in pieces:
        made = {
            "offset": lambda piece=piece: pa.array(np.arange(piece.first, piece.first + len(piece))),
            "timestamp": lambda piece=piece: pa.array(piece.gather(8, "<i8") * 1000).view(
                SCHEMA.field("timestamp").type
            ),
            "data": lambda piece=piece: piece.payloads(),
        }
        batch = pa.RecordBatch.from_arrays([made[name]() for name in names], schema=schema)
        kept = piece.kept()
        yield batch if kept is None else batch.filter(pa.array(kept))
