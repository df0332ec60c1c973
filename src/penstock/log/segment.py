"""Reads one segment: `<first offset>.log` holds records, `.idx` where each ends, `.sum` checksums of blocks."""

from __future__ import annotations

import mmap
import os
import threading
from array import array
from bisect import bisect_right
from pathlib import Path

from penstock.errors import CorruptRecord
from penstock.log.index import IndexHeader, count_confirmed, count_in, find_ends, locate, read_ends, read_header, sum_of
from penstock.log.manifest import Identity, Manifest
from penstock.log.model import LogRecord
from penstock.log.record import HEADER, HEADER_BYTES, REST_AT, crc32, end_at
from penstock.log.segment_header import HEAD_BYTES, Owner, is_misplaced, owners_in

LOG, INDEX, SUMS = ".log", ".idx", ".sum"


def file_name(first: int, suffix: str = LOG) -> str:
    return f"{first:020}{suffix}"


def firsts_in(folder: Path, suffix: str = LOG) -> list[int]:
    """Return the first offsets of the segments in a folder, in order."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(suffix)]
    return sorted(int(stem) for name in names if (stem := name.removesuffix(suffix)).isdecimal() and len(stem) == 20)


class Handle:
    """An open file, closed when the last reference to it is gone."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self.fd).st_ino

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def map(self) -> memoryview:
        """Map the whole file. Read only what cannot be truncated meanwhile: a page that is gone raises SIGBUS."""
        size = self.size
        return memoryview(mmap.mmap(self.fd, size, prot=mmap.PROT_READ)) if size else memoryview(b"")


def index_header(folder: Path, identity: Identity, first: int) -> IndexHeader | None:
    """Return the header of a segment's index; None if it is missing, damaged or of another segment."""
    try:
        index = Handle(folder / file_name(first, INDEX))
    except FileNotFoundError:
        return None
    return read_header(index.fd, identity.uid, first)


def owners_of(handle: Handle) -> set[Owner]:
    return owners_in(os.pread(handle.fd, HEAD_BYTES, 0))


def lies_elsewhere(handle: Handle, identity: Identity, first: int) -> bool:
    """Return True if a segment's file belongs to another stream or offset than its name says."""
    owner, start = identity.owner_of(first), identity.start_of(first)
    if start and owner in owners_of(handle):
        return False  # The usual case; it does not map the file.
    return is_misplaced(handle.map(), owner, start)


class Segment:
    """A segment with a verified index, rebuilt in memory if the file was wrong."""

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        first: int,
        *,
        expected: int | None = None,
        ends: array[int] | None = None,
    ) -> None:
        self.path = folder / file_name(first)
        self.stream = identity.name
        self.identity = identity
        self.uid = identity.uid
        self.first = first
        self.start = identity.start_of(first)
        self.log = Handle(self.path)
        self.header: IndexHeader | None = None
        # In memory if the file is missing or wrong, or if this is the writer's own segment, which is still growing.
        self.rebuilt: array[int] | None = ends
        # Entries read so far of the index of a segment that is not sealed. A read compares them with the file.
        self._seen = array("I")
        self._seen_lock = threading.Lock()
        self._index: Handle | None = None
        self._vetted: tuple[int, int] | None = None
        try:
            self._index = Handle(folder / file_name(first, INDEX))
        except FileNotFoundError:
            pass
        else:
            self.header = read_header(self._index.fd, self.uid, first)
        self._head = b""
        # True if the file belongs to another stream or offset. Then none of its records is served.
        self.misplaced = False
        self._check_head()
        if self.misplaced:
            self.rebuilt = array("I")
        elif ends is not None:
            return
        elif self.header is not None and self.header.sealed:
            self._check_sealed(self.header)
        elif expected is not None:
            self._rebuild(expected, None)

    def _check_head(self) -> None:
        """Check whose file this is. A restore or a copy can overwrite an open file, so every read compares the head."""
        head = os.pread(self.log.fd, HEAD_BYTES, 0)
        if head != self._head:
            self.misplaced, self._head = lies_elsewhere(self.log, self.identity, self.first), head

    @property
    def sealed(self) -> bool:
        return self.header is not None and self.header.sealed

    @property
    def count(self) -> int:
        if self.rebuilt is not None:
            return len(self.rebuilt)
        if self._vetted is not None and self.header is not None:
            return self.header.count
        return count_in(self._index.fd) if self._index is not None else 0

    def _check_sealed(self, header: IndexHeader) -> None:
        stamp = self._stamp()
        ends = self._all_ends()
        if len(ends) >= header.count and sum_of(ends[: header.count]) == header.ends_sum:
            self._vetted = stamp
        else:
            self._rebuild(header.count, header.log_bytes)

    def _stamp(self) -> tuple[int, int]:
        """Return what changes when a program overwrites the index. Penstock itself never does so after sealing."""
        assert self._index is not None
        status = os.fstat(self._index.fd)
        return status.st_mtime_ns, status.st_size

    def _all_ends(self) -> array[int]:
        if self.header is None or self._index is None:
            return array("I")
        return read_ends(self._index.fd, 0, count_in(self._index.fd))

    def _rebuild(self, expected: int, log_bytes: int | None) -> None:
        view = self.log.map()
        located = locate(view, self.start, self._all_ends(), count=expected, upto=log_bytes or len(view))
        self.rebuilt = located.ends[:expected]

    def index_holds(self, manifest: Manifest | None) -> bool:
        """Return True if the index of an unsealed segment agrees with the manifest and the records."""
        self._seen = ends = self._all_ends()
        if (
            self.header is None
            or self.misplaced
            or (manifest is not None and manifest.active == self.first and manifest.count > len(ends))
        ):
            return False
        known, view = count_confirmed(ends, self.first, manifest), self.log.map()
        at = ends[known - 1] if known else self.start
        if at > len(view):
            return False
        for number in range(known, len(ends)):
            end = ends[number]
            if end_at(view, at) != end:
                located = locate(view, self.start, ends, known=number)
                return located.ends[: len(ends)] == ends
            at = end
        return True

    def has_tail(self) -> bool:
        """Return True if the file goes on after the last record in the index."""
        count = self.count
        return self.log.size > (self.ends(count - 1, count)[-1] if count else self.start)

    def scan(self, manifest: Manifest | None) -> int:
        """Rebuild the index from the records alone; return how many records there should be."""
        located = find_ends(self._all_ends(), self.log.map(), self.start, self.first, manifest)
        self.rebuilt = located.ends
        return located.claimed

    def by_its_records(self, identity: Identity, count: int) -> Segment:
        """Return this segment with the ends of its first `count` records taken from the records, not from the index."""
        found = Segment(self.path.parent, identity, self.first)
        if not found.misplaced:
            found.rebuilt = locate(found.log.map(), found.start, found._all_ends()).ends[:count]
        return found

    def ends(self, start: int, stop: int) -> array[int]:
        """Return where record `start` begins, followed by the ends of records `start` to `stop - 1`."""
        low = max(start - 1, 0)
        if self.rebuilt is None and self._vetted is not None and self._vetted != self._stamp():
            assert self.header is not None
            self._check_sealed(self.header)
        if self.rebuilt is not None:
            ends = self.rebuilt[low:stop]
        elif self._vetted is not None:
            assert self._index is not None
            ends = read_ends(self._index.fd, low, stop)
        else:
            ends = self._growing_ends(low, stop)
        if not start:
            ends.insert(0, self.start)
        self._check_head()
        if start < stop and (self.misplaced or len(ends) < 2):
            raise CorruptRecord(self.stream, self.first + start, self.path.name, None)
        return ends

    def _growing_ends(self, low: int, stop: int) -> array[int]:
        """Return the ends of records `low` to `stop - 1` of a segment that is being written."""
        assert self._index is not None
        with self._seen_lock:
            seen = self._seen[low:stop]
            if read_ends(self._index.fd, low, low + len(seen)) != seen:
                # The writer undid an append that was read here, or a program overwrote the index: the records decide.
                hints = self._all_ends()
                view = self.log.map()[: max(hints, default=self.start)]
                self._seen = locate(view, self.start, hints).ends[: len(hints)]
            if stop > len(self._seen):
                self._seen.extend(read_ends(self._index.fd, len(self._seen), stop))
            return self._seen[low:stop]

    def read(self, start: int, stop: int, bytes_max: int) -> list[LogRecord]:
        """Return verified records, at least one, and no more once `bytes_max` is reached."""
        ends = self.ends(start, stop)
        base = ends[0]
        count = max(1, bisect_right(ends, base + bytes_max) - 1)
        size = max(0, ends[min(count, len(ends) - 1)] - base)
        buffer = os.pread(self.log.fd, size, base)
        view = memoryview(buffer)
        records: list[LogRecord] = []
        offset = self.first + start
        low = 0
        for end in ends[1 : count + 1]:
            high = end - base
            if high - low >= HEADER_BYTES and high <= len(buffer):
                length, checksum, time_ms, kind, flags, field_bytes, tag = HEADER.unpack_from(buffer, low)
                if length == high - low - HEADER_BYTES and crc32(view[low + REST_AT : high], length) == checksum:
                    data = buffer[low + HEADER_BYTES : high]
                    records.append(LogRecord(offset, time_ms, data, kind, flags, field_bytes, tag))
                    low, offset = high, offset + 1
                    continue
            if records:
                break
            raise CorruptRecord(self.stream, offset, self.path.name, base + low)
        return records

    def is_superseded(self) -> bool:
        """Return True if the segment is sealed, so that another follows, or if its files were replaced."""
        if self.unlinked():
            return True
        assert self._index is not None
        header = read_header(self._index.fd, self.uid, self.first)
        return header is None or header.sealed

    def unlinked(self) -> bool:
        return self._index is None or os.fstat(self._index.fd).st_nlink == 0

    def stale(self) -> bool:
        """Return True if a repair replaced the files of this segment."""
        try:
            if self.path.stat().st_ino != self.log.inode:
                return True
            index = self.path.with_suffix(INDEX).stat().st_ino
        except FileNotFoundError:
            return True
        return self._index is None or index != self._index.inode
