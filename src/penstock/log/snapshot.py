"""Copies a log up to an offset while others keep writing it; every record is verified and copied verbatim.

Damaged records are omitted and reported. Their offsets stay empty, and reading them raises, as in the original.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from penstock.errors import CorruptRecord, Damaged, OffsetTrimmed
from penstock.log.consumers import FILE
from penstock.log.files import sync_path
from penstock.log.model import MIB
from penstock.log.reader import LogReader
from penstock.log.segment import Segment
from penstock.log.writer import Log

CHUNK_RECORDS = 10_000
CHUNK_BYTES = 4 * MIB
TRIES = 5


@dataclass
class LogCopy:
    records: int = 0
    damaged: int = 0
    first_damage: Damaged | None = None

    def leave_out(self, damage: Damaged) -> None:
        self.damaged += 1
        self.first_damage = self.first_damage or damage


def copy_log(source: Path, target: Path, *, end: int | None = None, positions: bytes | None = None) -> LogCopy:
    """Copy a log; `positions` are its consumers, by default as they are now."""
    if positions is None:
        # Read before the records, so that no position is beyond the copy's end.
        positions = read_positions(source)
    for tries_left in reversed(range(TRIES)):
        try:
            copied = _copy(source, target, end)
            break
        except OffsetTrimmed:
            # Retention removed them meanwhile.
            shutil.rmtree(target)
            if not tries_left:
                raise
    if positions:
        (target / FILE).write_bytes(positions)
        sync_path(target / FILE)
    sync_path(target)
    return copied


def read_positions(folder: Path) -> bytes | None:
    """Copy the consumers' file, which is always replaced atomically."""
    try:
        return (folder / FILE).read_bytes()
    except FileNotFoundError:
        return None


def _copy(source: Path, target: Path, end: int | None) -> LogCopy:
    copied = LogCopy()
    with LogReader(source) as reader:
        stop = reader.next_offset if end is None else min(end, reader.next_offset)
        first = min(reader.first_offset, stop)
        with Log.create(target, reader.name, reader.identity.options, first=first) as log:
            for offset, data, sizes in raw_records(reader, first, stop, copied.leave_out):
                if offset > log.next_offset:
                    log.skip_to(offset)
                log.append_encoded(data, sizes)
                copied.records += len(sizes)
            # Do not reuse offsets lost at the end, because consumers may be beyond them.
            log.skip_to(stop)
    return copied


def raw_records(
    reader: LogReader, offset: int, stop: int, leave_out: Callable[[CorruptRecord], None] | None = None
) -> Iterator[tuple[int, bytes, list[int]]]:
    """Yield encoded records in chunks: the offset of the first, the bytes, and the size of each.

    With `leave_out`, damaged records are passed to it and skipped.
    """
    while offset < stop:
        segment = reader.segment_of(offset)
        try:
            try:
                found = _raw(segment, offset, stop)
            except CorruptRecord:
                found = _raw(reader.reopen_damaged(segment), offset, stop)
        except CorruptRecord as error:
            if leave_out is None:
                raise
            leave_out(error)
            offset += 1
            continue
        if found is None:
            # Offsets between two segments were lost before they were written.
            following = [info.first for info in reader.segments() if info.first > offset]
            offset = min(following, default=stop)
            continue
        data, sizes = found
        yield offset, data, sizes
        offset += len(sizes)


def _raw(segment: Segment, offset: int, stop: int) -> tuple[bytes, list[int]] | None:
    """Return some records of a segment from an offset on; None if it ends before."""
    start = offset - segment.first
    count = min(segment.count, stop - segment.first, start + CHUNK_RECORDS)
    if segment.misplaced:
        raise CorruptRecord(segment.stream, offset, segment.path.name, None)
    if start >= count:
        return None
    ends = segment.ends(start, count)
    taken = max(1, bisect_right(ends, ends[0] + CHUNK_BYTES) - 1)
    ends = ends[: len(segment.read(start, start + taken, 2 * CHUNK_BYTES)) + 1]
    data = os.pread(segment.log.fd, ends[-1] - ends[0], ends[0])
    return data, [high - low for low, high in pairwise(ends)]
