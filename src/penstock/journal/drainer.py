"""Drains the store's outbox into the journal: copies committed events, fsyncs them, then deletes them in the store.

Offsets are given by the store, in the transaction of the change. So whatever a crash interrupts, the log's own end
tells what it still lacks, and nothing is copied twice or left out.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

from penstock.core.commands import CatchUpJournal, ForgetJournal
from penstock.core.model import DAY_MS, Clock, system_clock
from penstock.errors import InvariantBroken, PenstockError, StoreBusy, StoreError
from penstock.journal.interface import JournalledStore, JournalRow
from penstock.log.consumers import Consumers
from penstock.log.files import DISK, typed_errors
from penstock.log.manifest import STREAM
from penstock.log.model import BATCH_BYTES_MAX, StreamOptions
from penstock.log.reader import LogReader
from penstock.log.record import sizes_of
from penstock.log.retention import TrimRequest, trim
from penstock.log.writer import Log

NAME = "journal"
STEP_BYTES = 4 << 20
APPEND_BYTES = BATCH_BYTES_MAX // 2
OPTIONS = StreamOptions(retention_bytes=4 << 30, retention_ms=30 * DAY_MS)


def journal_folder(path: str | os.PathLike[str]) -> Path:
    """Return the journal's folder, beside the database file."""
    return Path(f"{os.fspath(path)}.journal")


def log_end(path: str | os.PathLike[str]) -> int:
    """Return the next offset of a file's journal; 0 if there is none or it is unreadable."""
    folder = journal_folder(path)
    if (folder / STREAM).exists():
        with suppress(PenstockError), closing(LogReader(folder)) as log:
            return log.next_offset
    return 0


class Drain:
    """Drains one store. Holds the journal's write lock, so there is one per store. Not thread-safe."""

    def __init__(self, store: JournalledStore, folder: Path, log: Log) -> None:
        self._store = store
        self.log = log
        self._consumers = Consumers(folder, NAME, files=DISK, clock=log.clock)

    @classmethod
    def open(
        cls, store: JournalledStore, folder: Path, *, options: StreamOptions = OPTIONS, clock: Clock = system_clock
    ) -> Drain | None:
        """Open the drain; return None while another process has it."""
        first, last = store.journal_bounds()
        if not (folder / STREAM).exists():
            _create(folder, options, first, clock)
        try:
            log = Log(folder, clock=clock)
        except StoreBusy:
            return None
        try:
            if log.next_offset > last:
                # An older backup of the store was restored since this process opened it.
                store.apply([ForgetJournal(before=log.next_offset)])
        except BaseException:
            log.close()
            raise
        return cls(store, folder, log)

    @property
    def next_offset(self) -> int:
        return self.log.next_offset

    @property
    def must_catch_up(self) -> bool:
        return self._store.journal_waits

    def step(self, step_bytes: int = STEP_BYTES) -> ForgetJournal | None:
        """Copy a batch to the journal. Return the command that deletes it in the store; None if there was nothing."""
        rows = self._store.journal_from(self.log.next_offset, step_bytes)
        if not rows:
            return None
        # Fsync the store first: some commits did not wait for the disk, and the journal must never be ahead of it.
        self._store.sync()
        start = max(self.log.next_offset, rows[0].first_offset)
        appends = _appends(rows, start)
        end = rows[-1].first_offset + len(sizes_of(rows[-1].bytes))
        if start + sum(len(sizes) for _, sizes in appends) != end:
            raise InvariantBroken(f"the events from {start} to {end} are not consecutive")
        self.log.skip_to(start)
        for data, sizes in appends:
            self.log.append_encoded(data, sizes)
        return ForgetJournal(before=self.log.next_offset)

    def trim(self) -> None:
        """Apply retention, except for records that a known consumer still needs."""
        trim(self.log, self._consumers.all().values(), TrimRequest(), self.log.clock())

    def close(self) -> None:
        self.log.close()


def _create(folder: Path, options: StreamOptions, first: int, clock: Clock) -> None:
    """Create the journal atomically, also if another process does the same."""
    fresh = folder.with_name(f"{folder.name}.{uuid4().hex}.new")
    Log.create(fresh, NAME, options, first=first, clock=clock).close()
    try:
        with typed_errors(f"creating the folder {folder}"):
            fresh.rename(folder)
            DISK.sync_folder(folder.parent)
    except StoreError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not (folder / STREAM).exists():
            raise


def _appends(rows: list[JournalRow], next_offset: int) -> list[tuple[bytes, list[int]]]:
    """Yield the rows' records from an offset on, in batches that the log accepts."""
    pieces: list[tuple[bytes, list[int]]] = []
    parts: list[bytes] = []
    sizes: list[int] = []
    size = 0
    for row in rows:
        row_sizes = sizes_of(row.bytes)
        # A crash may have truncated the log in the middle of a row.
        done = max(0, next_offset - row.first_offset)
        data = row.bytes[sum(row_sizes[:done]) :]
        for part, part_sizes in _cut(data, row_sizes[done:]):
            if size + len(part) > APPEND_BYTES and parts:
                pieces.append((b"".join(parts), sizes))
                parts, sizes, size = [], [], 0
            parts.append(part)
            sizes += part_sizes
            size += len(part)
    if parts:
        pieces.append((b"".join(parts), sizes))
    return pieces


def _cut(data: bytes, sizes: list[int]) -> list[tuple[bytes, list[int]]]:
    if len(data) <= APPEND_BYTES:
        return [(data, sizes)]
    pieces, start, first = [], 0, 0
    end = 0
    for number, size in enumerate(sizes):
        if end + size - start > APPEND_BYTES and end > start:
            pieces.append((data[start:end], sizes[first:number]))
            start, first = end, number
        end += size
    pieces.append((data[start:end], sizes[first:]))
    return pieces


def drain_once(store: JournalledStore, path: str) -> None:
    """Drain everything committed so far; do nothing if another process drains."""
    store.apply([CatchUpJournal()])
    drain = Drain.open(store, journal_folder(path))
    if drain is not None:
        try:
            while forget := drain.step():
                store.apply([forget])
        finally:
            drain.close()
