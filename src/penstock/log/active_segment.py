"""The segment being written: data, then fsync, then the index, which readers trust."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from penstock.errors import InvariantBroken
from penstock.log.files import Files
from penstock.log.index import BLOCK_RECORDS, ENDS_AT, IndexHeader
from penstock.log.manifest import Identity, Manifest
from penstock.log.record import crc32
from penstock.log.segment import INDEX, LOG, SUMS, file_name
from penstock.log.segment_header import head_of


@dataclass
class ActiveSegment:
    """The active segment, with its three files open for writing. `count` and `size` cover published records."""

    files: Files
    folder: Path
    uid: int
    first: int
    log_fd: int
    index_fd: int
    sums_fd: int
    ends: array[int] = field(default_factory=lambda: array("I"))
    """Positions where published records end. The writer relies on these and not on the index file."""
    size: int = 0
    ends_sum: int = 0
    block_sum: int | None = 0
    """Sum of the records since the last whole block; None if one of them is damaged."""
    last_time_ms: int = 0
    sealed: bool = False

    @classmethod
    def create(cls, files: Files, folder: Path, identity: Identity, first: int) -> ActiveSegment:
        """Create the files durably; remove them again if one fails."""
        paths = [folder / file_name(first, suffix) for suffix in (LOG, INDEX, SUMS)]
        opened: list[int] = []
        uid, start = identity.uid, identity.start_of(first)
        # Outside the `try`, whose handler removes the files.
        if paths[0].exists() and paths[0].stat().st_size > start:
            raise InvariantBroken(f"a new segment would overwrite the records in {paths[0].name}")
        try:
            for path in paths:
                opened.append(files.open(path))
                files.truncate(opened[-1], 0)
            log_fd, index_fd, sums_fd = opened
            if start:
                # The first append syncs the header; until then there are no records.
                files.write(log_fd, head_of(uid, first), 0)
            files.write(index_fd, IndexHeader(uid, first).pack(), 0)
            files.sync(index_fd)
            files.sync_folder(folder)
        except OSError:
            for fd in opened:
                files.close(fd)
            with suppress(OSError):
                # Readers would wait for the rest of a segment that has no index.
                for path in paths:
                    files.remove(path)
            raise
        return cls(files, folder, uid, first, log_fd, index_fd, sums_fd, size=start)

    @property
    def count(self) -> int:
        return len(self.ends)

    @property
    def next(self) -> int:
        return self.first + self.count

    def write(self, data: bytes) -> None:
        """Write data that is not yet durable or visible to readers."""
        self.files.write(self.log_fd, data, self.size)

    def sync(self) -> None:
        if not os.fstat(self.log_fd).st_nlink:
            raise OSError(errno.ENOENT, f"{file_name(self.first)} was removed while it was open")
        self.files.sync(self.log_fd)

    def undo(self) -> None:
        """Remove data that was written but not published."""
        self.files.truncate(self.log_fd, self.size)
        self.files.truncate(self.index_fd, ENDS_AT + 4 * self.count)

    def publish(self, data: bytes, sizes: Sequence[int], last_time_ms: int) -> None:
        """Make written records visible to readers."""
        ends = array("I", accumulate(sizes, initial=self.size))
        sums, block_sum = self._sums(data, ends)
        if sums:
            self.files.write(self.sums_fd, sums.tobytes(), 4 * (self.count // BLOCK_RECORDS))
        entries = memoryview(ends).cast("B")[4:]
        self.files.write(self.index_fd, entries, ENDS_AT + 4 * self.count)
        self.ends_sum = crc32(entries, self.ends_sum)
        self.block_sum = block_sum
        self.ends.extend(ends[1:])
        self.size += len(data)
        self.last_time_ms = max(self.last_time_ms, last_time_ms)

    def _sums(self, data: bytes, ends: array[int]) -> tuple[array[int], int | None]:
        """Return the sums of the blocks that these records complete, and of the open block."""
        view, sums, at = memoryview(data), array("I"), 0
        block_sum = self.block_sum
        for last in range(BLOCK_RECORDS - self.count % BLOCK_RECORDS, len(ends), BLOCK_RECORDS):
            cut = ends[last] - self.size
            # A sum that never matches makes bulk readers check each record of the block.
            sums.append(0 if block_sum is None else crc32(view[at:cut], block_sum))
            block_sum, at = 0, cut
        return sums, None if block_sum is None else crc32(view[at:], block_sum)

    def seal(self) -> None:
        """Seal the segment; its header then carries a checksum of the whole index."""
        header = IndexHeader(self.uid, self.first, self.count, self.size, self.ends_sum, self.last_time_ms)
        self.files.write(self.index_fd, header.pack(), 0)
        self.files.sync(self.index_fd)
        self.files.sync(self.sums_fd)
        self.sealed = True

    def manifest(self, first: int) -> Manifest:
        self.files.sync(self.index_fd)
        return Manifest(
            first=first,
            next=self.next,
            active=self.first,
            count=self.count,
            bytes=self.size,
            ends_sum=self.ends_sum,
            uid=self.uid,
        )

    def close(self) -> None:
        for fd in (self.log_fd, self.index_fd, self.sums_fd):
            self.files.close(fd)
