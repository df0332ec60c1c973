"""A log with records, ways to damage its files, and disks that fail or lose data."""

from __future__ import annotations

import errno
import os
import random
from array import array
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import CorruptRecord
from penstock.log.files import DISK, Files
from penstock.log.index import IndexHeader
from penstock.log.manifest import save
from penstock.log.model import StreamOptions
from penstock.log.reader import LogReader
from penstock.log.record import crc32
from penstock.log.segment import INDEX, LOG, SUMS, file_name
from penstock.log.writer import Log
from tests.conformance.support import START_MS, Clock

SMALL = StreamOptions(segment_bytes=64 << 10)


def payload(offset: int) -> bytes:
    """Return a payload that differs for each offset, in content and in length."""
    return b"%d " % offset + random.Random(offset).randbytes(50 + offset * 37 % 400)


def fill(log: Log, count: int, batch: int = 10) -> None:
    end = log.next_offset + count
    for first in range(log.next_offset, end, batch):
        log.append([payload(offset) for offset in range(first, min(first + batch, end))])


def make(folder: Path, count: int = 500, options: StreamOptions = SMALL) -> Path:
    """Create a closed log with `count` records. About 240 of them fill a segment."""
    with Log.create(folder, "s", options, clock=Clock()) as log:
        fill(log, count)
    return folder


def write_as_0_1_0(folder: Path, segments: Sequence[tuple[bytes, list[int]]], name: str = "s") -> None:
    """Write a closed log as 0.1.0 did: segments have no headers, and the identity has fewer fields."""
    folder.mkdir(parents=True)
    uid, first = 4711, 0
    _save_fields(folder / "stream", name=name, uid=uid, created_ms=START_MS, options=SMALL, version=1)
    for data, sizes in segments:
        ends = array("I", accumulate(sizes)).tobytes()
        manifest = {"first": 0, "next": first + len(sizes), "active": first, "count": len(sizes), "bytes": len(data)}
        header = IndexHeader(uid, first)
        if data is not segments[-1][0]:
            header = IndexHeader(uid, first, len(sizes), len(data), crc32(ends), START_MS)
        (folder / file_name(first)).write_bytes(data)
        (folder / file_name(first, INDEX)).write_bytes(header.pack() + ends)
        (folder / file_name(first, SUMS)).write_bytes(b"")
        first += len(sizes)
    _save_fields(folder / "manifest", **manifest, ends_sum=crc32(ends), version=1)


def _save_fields(path: Path, **fields: Any) -> None:
    save(DISK, path, msgspec.defstruct("Old", list(fields), kw_only=True)(**fields))


def segment_files(folder: Path, suffix: str = LOG) -> list[Path]:
    return sorted(folder.glob(f"*{suffix}"))


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def read_all(log: LogReader) -> tuple[dict[int, bytes], list[int]]:
    """Return the records that are served, by offset, and the offsets that are reported as damaged."""
    served: dict[int, bytes] = {}
    damaged: list[int] = []
    at = log.first_offset
    while at < log.next_offset:
        try:
            page = log.read(at)
        except CorruptRecord as error:
            damaged.append(error.offset)
            at += 1
        else:
            served.update((record.offset, record.data) for record in page.records)
            at = page.next
    return served, damaged


def assert_true(served: dict[int, bytes]) -> None:
    for offset, data in served.items():
        assert data == payload(offset), f"wrong bytes for {offset}"


def log_of(folder: Path, first: int) -> Path:
    return folder / file_name(first)


def index_of(folder: Path, first: int) -> Path:
    return folder / file_name(first, INDEX)


class FailingDisk(Files):
    """A disk on which the chosen operation fails, after the given number of successes."""

    def __init__(self) -> None:
        # For each operation, the number of successes left and the error number that follows.
        self.fail: dict[str, tuple[int, int]] = {}

    def _count(self, operation: str) -> None:
        left, number = self.fail.get(operation, (1, 0))
        if number:
            self.fail[operation] = (left - 1, number)
            if left <= 0:
                raise OSError(number, os.strerror(number))

    def write(self, fd: int, data: bytes | memoryview, position: int) -> None:
        left, number = self.fail.get("write", (1, 0))
        if number and left <= 0:
            # A full disk writes a part of the data.
            super().write(fd, memoryview(data)[: len(data) // 2], position)
        self._count("write")
        super().write(fd, data, position)

    def sync(self, fd: int) -> None:
        self._count("sync")
        super().sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self._count("truncate")
        super().truncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        self._count("rename")
        super().rename(source, target)


FULL, BROKEN = errno.ENOSPC, errno.EIO
