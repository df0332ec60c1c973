"""Reads a log without a lock, in any process, also while another process writes it."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path

from penstock.core.limits import check_range
from penstock.errors import (
    CannotOpen,
    CorruptRecord,
    Damaged,
    OffsetBeyondEnd,
    OffsetTrimmed,
    StoreBusy,
    StoreClosed,
    UnknownStream,
)
from penstock.log.files import DISK, Files, FolderLock
from penstock.log.manifest import Identity, load_identity, load_manifest
from penstock.log.model import MIB, READ_BYTES_MAX, READ_RECORDS_MAX, LogPage, LogRecord, SegmentInfo
from penstock.log.record import LOST
from penstock.log.recovery import recover
from penstock.log.segment import Segment, file_name, firsts_in
from penstock.log.waiting import Listener, Stop, wait_for_offset

LOCK = "lock"
OPEN_SEGMENTS_MAX = 64
OFFSET_MAX = 2**53


class LogReader:
    """A log reader; any number may exist in threads and processes. It only returns verified, durable records."""

    def __init__(self, folder: Path | str, *, files: Files = DISK) -> None:
        self.folder = Path(folder)
        self.files = files
        self.identity: Identity = load_identity(self.folder)
        self._open: OrderedDict[int, Segment] = OrderedDict()
        self._mutex = threading.Lock()
        self._closed = False
        self._firsts: list[int] = []
        self._first = 0
        self._last: Segment | None = None
        self._reload()

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def first_offset(self) -> int:
        """Offset of the first retained record."""
        return self._first

    @property
    def next_offset(self) -> int:
        """Offset of the next record. Costs two system calls."""
        last = self._last_segment()
        if last.is_superseded():
            self._reload()
            last = self._last_segment()
        return last.first + last.count

    def _end_for(self, wanted: int) -> int:
        """Return the next offset, looking for a newer segment only if `wanted` is beyond the current one."""
        last = self._last_segment()
        end = last.first + last.count
        return end if wanted <= end and not last.unlinked() else self.next_offset

    def read(self, offset: int, limit: int = 1_000, bytes_max: int = MIB) -> LogPage:
        """Return records in order from a retained offset, at least one if there is one.

        A page ends before a damaged record; if the first record of the page is damaged, CorruptRecord is raised.
        """
        check_range("offset", offset, 0, OFFSET_MAX)
        check_range("limit", limit, 1, READ_RECORDS_MAX)
        check_range("bytes_max", bytes_max, 1, READ_BYTES_MAX)
        end, at, lost = self._end_for(offset + limit), offset, 0
        if offset > end:
            raise OffsetBeyondEnd(self.name, offset, end)
        records: list[LogRecord] = []
        while at < end and len(records) < limit and bytes_max > 0:
            try:
                chunk = self._chunk(at, min(limit - len(records), end - at), bytes_max)
            except CorruptRecord:
                if at == offset:
                    raise
                break
            at += len(chunk)
            bytes_max -= sum(len(record.data) for record in chunk)
            kept = [record for record in chunk if record.kind != LOST]
            lost += len(chunk) - len(kept)
            records += kept
            if not self._begins_segment(at):
                break
        if at == offset and offset < self.first_offset:
            raise OffsetTrimmed(self.name, offset, self.first_offset)
        return LogPage(records, at, lost)

    def _begins_segment(self, offset: int) -> bool:
        firsts = self._firsts
        return firsts[bisect_right(firsts, offset) - 1] == offset

    def _chunk(self, offset: int, limit: int, bytes_max: int) -> list[LogRecord]:
        segment = self.segment_of(offset)
        try:
            return self._from(segment, offset, limit, bytes_max)
        except CorruptRecord:
            return self._from(self.reopen_damaged(segment), offset, limit, bytes_max)

    def reopen_damaged(self, segment: Segment) -> Segment:
        """Reopen a segment with a damaged record: it may have been repaired, or only its index is wrong."""
        self._drop(segment.first)
        if segment.misplaced and self._recover():
            self._reload()
        again = self.segment_of(segment.first)
        if again.sealed or again.rebuilt is not None:
            return again
        return again.by_its_records(self.identity, again.count)

    def _from(self, segment: Segment, offset: int, limit: int, bytes_max: int) -> list[LogRecord]:
        start = offset - segment.first
        stop = min(start + limit, segment.count)
        if start >= stop:
            raise CorruptRecord(self.name, offset, segment.path.name, None)
        return segment.read(start, stop, bytes_max)

    def segment_of(self, offset: int) -> Segment:
        """Return the segment that holds an offset, opened and checked."""
        for _ in range(3):
            firsts = self._firsts
            place = bisect_right(firsts, offset) - 1
            if offset < self._first:
                raise OffsetTrimmed(self.name, offset, self._first)
            if place < 0:
                raise CorruptRecord(self.name, offset, file_name(offset), None)
            try:
                return self._segment(firsts, place)
            except FileNotFoundError:
                self._reload()
        raise CorruptRecord(self.name, offset, file_name(firsts[place]), None)

    def _segment(self, firsts: list[int], place: int) -> Segment:
        first = firsts[place]
        with self._mutex:
            segment = self._open.get(first)
            if segment is not None:
                self._open.move_to_end(first)
                return segment
        if place == len(firsts) - 1:
            return self._last_segment()
        segment = Segment(self.folder, self.identity, first, expected=firsts[place + 1] - first)
        self._keep(segment)
        return segment

    def _keep(self, segment: Segment) -> None:
        with self._mutex:
            self._open[segment.first] = segment
            while len(self._open) > OPEN_SEGMENTS_MAX:
                self._open.popitem(last=False)

    def _drop(self, first: int) -> None:
        with self._mutex:
            self._open.pop(first, None)
            if self._last is not None and self._last.first == first and self._last.stale():
                self._last = None
        if self._last is None:
            self._reload()

    def _last_segment(self) -> Segment:
        last = self._last
        if last is None or self._closed:
            raise StoreClosed(f"the log of stream {self.name!r} is closed")
        return last

    def _reload(self) -> None:
        """List the segments and verify the index of the last one, recovering the log if necessary."""
        for attempt in range(100):
            try:
                if self._try_reload():
                    return
            except (FileNotFoundError, CannotOpen) as error:
                if not self.folder.is_dir():
                    raise UnknownStream(self.name) from None
                if isinstance(error, CannotOpen):
                    raise
            time.sleep(0.001 * min(attempt, 10))
        raise Damaged(
            f"the folder of stream {self.name!r} keeps changing", hint="check whether another program writes there"
        )

    def _try_reload(self) -> bool:
        manifest = load_manifest(self.folder, self.identity.uid)
        firsts = firsts_in(self.folder)
        first = manifest.first if manifest else firsts[0] if firsts else 0
        while len(firsts) > 1 and firsts[1] <= first:
            firsts.pop(0)
        # Read after the names: a 0.1.0 stream saves `headed_from` before it creates its first segment with a head.
        self.identity = load_identity(self.folder)
        last = Segment(self.folder, self.identity, firsts[-1]) if firsts else None
        if last is None or not last.sealed:
            holds = last is not None and last.index_holds(manifest)
            if last is None or not holds or last.has_tail():
                repaired = self._recover()
                if repaired or (repaired is None and not holds):
                    return False
        elif manifest is not None and manifest.next > last.first + last.count and self._recover():
            # The following segments are missing entirely.
            return False
        assert last is not None
        with self._mutex:
            self._open.clear()
            self._first, self._firsts, self._last = max(first, firsts[0]), firsts, last
            return True

    def _recover(self) -> bool | None:
        """Recover the log if it has no writer. Return False if not permitted, None if there is a writer."""
        try:
            lock = FolderLock(self.folder / LOCK, patience_s=0)
        except StoreBusy:
            return None
        except CannotOpen:
            return False
        try:
            recover(self.files, self.folder, self.identity).active.close()
        finally:
            lock.close()
        return True

    def segments(self) -> list[SegmentInfo]:
        """Return the retained segments, oldest first, with current sizes."""
        found, firsts, end = [], self._firsts, self.next_offset
        for place, first in enumerate(firsts):
            following = firsts[place + 1] if place + 1 < len(firsts) else end
            path = self.folder / file_name(first)
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                continue
            sealed = place + 1 < len(firsts)
            size = max(0, size - self.identity.start_of(first))
            found.append(SegmentInfo(first=first, records=following - first, bytes=size, sealed=sealed, path=str(path)))
        return found

    def wait(self, offset: int, seconds: float) -> bool:
        """Wait until there is a record at this offset; return False on timeout."""
        return wait_for_offset(offset, seconds, lambda: self.next_offset, self.listen, lambda: self._closed)

    def listen(self, listener: Listener) -> Stop | None:
        """Call `listener` after every append until the returned function is called.

        Return None if another process may write: its appends are found only by polling.
        """
        return None

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            self._open.clear()
            self._last = None

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
