"""Recovers a log when it is opened for writing: finds its true end, cuts unacknowledged data and reports losses.

It only reads the records since the last manifest, unless an index is missing. Decisions rest on records that pass their
checksums, and no such record is discarded.
"""

from __future__ import annotations

import logging
import os
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

from penstock.core.model import system_clock
from penstock.errors import Damaged
from penstock.log.active_segment import ActiveSegment
from penstock.log.check_report import DamageKind, Finding
from penstock.log.consumers import FILE as CONSUMERS
from penstock.log.consumers import Consumers
from penstock.log.files import DISK, Files, replace
from penstock.log.index import (
    BLOCK_RECORDS,
    ENDS_AT,
    IndexHeader,
    Located,
    count_in,
    find_ends,
    read_ends,
    read_header,
    sum_of,
)
from penstock.log.manifest import Identity, Manifest, load_manifest, save_manifest, with_heads
from penstock.log.record import HEADER_BYTES, crc32, end_at, find, intact, time_at
from penstock.log.segment import INDEX, LOG, SUMS, Handle, Segment, file_name, firsts_in, index_header
from penstock.log.segment_header import head_of
from penstock.log.segment_placement import put_in_place

CUT = ".cut"
BAD = ".bad"
# Damage found by recoveries in this process, by kind, for the metrics.
FOUND: Counter[DamageKind] = Counter()
# File systems write multiples of this.
PAGE = 4096
log = logging.getLogger("penstock.log")


@dataclass
class Recovered:
    identity: Identity
    first: int
    firsts: list[int]
    active: ActiveSegment
    findings: list[Finding] = field(default_factory=list)


def recover(files: Files, folder: Path, identity: Identity) -> Recovered:
    """Recover a log. The caller holds the lock.

    1. Remove unfinished and trimmed files, and put misplaced segments back.
    2. Report the offsets that no segment holds.
    3. Find the end from everything that knows of it: manifest, consumers, and indexes without a segment.
    4. Recover the last segment, or begin a new one if it cannot be continued.
    5. Save the manifest, so that the next recovery starts from here.
    """
    for left_over in folder.glob("*.new"):
        # Consumer positions have a lock of their own and may be replaced right now.
        if left_over.stem != CONSUMERS:
            files.remove(left_over)
    manifest = load_manifest(folder, identity.uid)
    findings = put_in_place(files, folder, identity, manifest.first if manifest else 0)
    firsts = firsts_in(folder)
    first = manifest.first if manifest else firsts[0] if firsts else 0
    while len(firsts) > 1 and firsts[1] <= first:
        remove_segment(files, folder, firsts.pop(0))
    findings += gaps(folder, identity, first, firsts)
    known_end = max(
        manifest.next if manifest else 0,
        _end_of_consumers(folder, identity.name),
        *_ends_of_vanished(folder, identity.uid, firsts),
    )
    if manifest is None:
        text = "the manifest is missing or damaged; the last offset is taken from the segments and the consumers"
        findings.append(Finding(trouble=DamageKind.MANIFEST, text=text, repaired=True))
    identity, active = _tail(files, folder, identity, manifest, first, firsts, known_end, findings)
    if active.first not in firsts:
        firsts.append(active.first)
    recovered = Recovered(identity, max(first, firsts[0]), firsts, active, findings)
    save_manifest(files, folder, active.manifest(recovered.first))
    for finding in findings:
        place = f"{identity.name}, {finding.segment}" if finding.segment else identity.name
        log.warning("stream %s: %s", place, finding.text)
        FOUND[finding.trouble] += 1
    return recovered


def gaps(folder: Path, identity: Identity, first: int, firsts: list[int]) -> list[Finding]:
    """Return findings for the offsets that no segment holds."""
    findings = []
    if firsts and firsts[0] > first:
        findings.append(_lost(first, firsts[0] - 1))
    for one, following in pairwise(firsts):
        held = _count(folder, identity, one, following)
        if held < following - one:
            findings.append(_lost(one + held, following - 1))
    return findings


def _count(folder: Path, identity: Identity, first: int, following: int) -> int:
    """Return the number of records of a segment before the last, from its seal or by counting."""
    header = index_header(folder, identity, first)
    if header is not None and header.sealed:
        return header.count
    return Segment(folder, identity, first, expected=following - first).count


def _lost(first: int, last: int) -> Finding:
    text = f"records {first} to {last} are gone" if last > first else f"record {first} is gone"
    return Finding(trouble=DamageKind.LOST, text=text, first=first, last=last)


def _ends_of_vanished(folder: Path, uid: int, firsts: list[int]) -> list[int]:
    """Return the end offsets of segments of which only the index is left."""
    ends = []
    for first in firsts_in(folder, INDEX):
        if first not in firsts:
            index = Handle(folder / file_name(first, INDEX))
            if read_header(index.fd, uid, first):
                ends.append(first + count_in(index.fd))
    return ends


def _end_of_consumers(folder: Path, name: str) -> int:
    """Return the offset after the last record that any consumer has processed, which therefore existed."""
    try:
        known = Consumers(folder, name, files=DISK, clock=system_clock).all()
    except Damaged:
        return 0
    return max((each.offset + 1 for each in known.values() if each.offset is not None), default=0)


def _tail(
    files: Files,
    folder: Path,
    identity: Identity,
    manifest: Manifest | None,
    first: int,
    firsts: list[int],
    known_end: int,
    findings: list[Finding],
) -> tuple[Identity, ActiveSegment]:
    """Return the segment to continue writing to."""
    if not firsts:
        if known_end > first:
            findings.append(_lost(first, known_end - 1))
        return _new_tail(files, folder, identity, known_end)
    if len(firsts) > 1:
        _finish_sealing(files, folder, identity, firsts[-2], firsts[-1])
    last = SegmentRecovery(files, folder, identity, firsts[-1], manifest, known_end=known_end)
    active = last.run()
    findings += last.findings
    known_end = max(known_end, active.first + last.claimed)
    if known_end > active.next:
        findings.append(_lost(active.next, known_end - 1))
        if not active.count:
            # An empty segment serves no purpose beside the new one.
            active.close()
            remove_segment(files, folder, firsts.pop())
            return _new_tail(files, folder, identity, known_end)
    elif not active.sealed:
        return identity, active
    if not active.sealed:
        active.seal()
    active.close()
    return _new_tail(files, folder, identity, known_end)


def _new_tail(files: Files, folder: Path, identity: Identity, first: int) -> tuple[Identity, ActiveSegment]:
    identity = with_heads(files, folder, identity, first)
    return identity, ActiveSegment.create(files, folder, identity, first)


def _finish_sealing(files: Files, folder: Path, identity: Identity, first: int, following: int) -> None:
    """Seal the segment before the last, which a crash during a roll-over leaves unsealed."""
    header = index_header(folder, identity, first)
    if header is None or not header.sealed:
        before = SegmentRecovery(files, folder, identity, first, None, expected=following - first)
        active = before.run()
        active.seal()
        active.close()


def remove_segment(files: Files, folder: Path, first: int) -> None:
    for suffix in (LOG, INDEX, SUMS):
        files.remove(folder / file_name(first, suffix))
    files.sync_folder(folder)


class SegmentRecovery:
    """Recovers one unsealed segment."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        identity: Identity,
        first: int,
        manifest: Manifest | None,
        expected: int | None = None,
        known_end: int = 0,
    ) -> None:
        self.files = files
        self.folder = folder
        self.uid = identity.uid
        self.first = first
        self.start = identity.start_of(first)
        self.manifest = manifest if manifest is not None and manifest.active == first else None
        # Number of records it held, if another segment follows.
        self.expected = expected
        # Offset after the last record that manifest, consumers or other indexes know of.
        self.known_end = known_end
        self.findings: list[Finding] = []
        # Number of records it is known to have had.
        self.claimed = 0
        self.log_fd, self.index_fd, self.sums_fd = (
            files.open(folder / file_name(first, suffix)) for suffix in (LOG, INDEX, SUMS)
        )

    def run(self) -> ActiveSegment:
        log = Handle(self.folder / file_name(self.first))
        # After a failed fsync the page cache may hold data that is not on disk.
        os.posix_fadvise(log.fd, self.manifest.bytes if self.manifest else 0, 0, os.POSIX_FADV_DONTNEED)
        self._restore_head(log.size)
        view = log.map()
        header = read_header(self.index_fd, self.uid, self.first)
        hints = array("I") if header is None else read_ends(self.index_fd, 0, count_in(self.index_fd))
        if header is not None and header.sealed and header.count == len(hints) and header.ends_sum == sum_of(hints):
            self.claimed = len(hints)
            good = bisect_right(hints, len(view))
            return self._active(view, hints[:good], sealed=good == len(hints))
        located = find_ends(hints, view, self.start, self.first, self.manifest, self.expected)
        ends = located.ends[: self.expected]
        self.claimed = max(located.claimed, self.known_end - self.first)
        agreed = _agreed(hints, ends)
        self._report_index(header is not None, len(hints), agreed, located)
        if self.expected is None:
            known = min(len(hints), len(ends))
            published = ends[known - 1] if known else self.manifest.bytes if self.manifest else self.start
            self._cut(view, ends, min(published, len(view)), ours=header is not None)
        self._write_index(header is not None, ends, agreed)
        return self._active(view, ends)

    def _restore_head(self, size: int) -> None:
        head = head_of(self.uid, self.first)
        if self.start and os.pread(self.log_fd, len(head), 0) != head:
            self.files.write(self.log_fd, head, 0)
            self.files.sync(self.log_fd)
            if size:
                self._find(DamageKind.HEAD, "the head was damaged", repaired=True)

    def _report_index(self, ours: bool, had: int, agreed: int, located: Located) -> None:
        if not ours and located.claimed:
            text = "the index is missing, damaged or from elsewhere; it was rebuilt"
        elif agreed < had and (agreed < len(located.ends) or located.claimed < had):
            text = f"the index does not fit the records from {self.first + agreed} on; it was rebuilt"
        else:
            return
        self._find(DamageKind.INDEX, text, repaired=True)

    def _cut(self, view: memoryview, ends: array[int], published: int, *, ours: bool) -> None:
        """Cut the bytes after the last whole record, and fsync records that were not in the index."""
        end = ends[-1] if ends else self.start
        if end < len(view):
            self._keep_cut(view[end:], end, len(ends), ours)
            self.files.truncate(self.log_fd, end)
        if published < end:
            # Write again, because the kernel treats a page that failed to sync as clean.
            self.files.write(self.log_fd, bytes(view[published:end]), published)
        if published < end or end < len(view):
            self.files.sync(self.log_fd)

    def _keep_cut(self, tail: memoryview, end: int, kept: int, ours: bool) -> None:
        """Save the cut bytes, unless they are the rest of an unacknowledged append.

        A power failure can keep later pages of such an append and lose earlier ones, so whole records may follow a
        hole. If the index exists and nothing knows of more records than are kept, they are no loss and take no offsets.
        """
        found = list(intact_records(tail))
        if found and ours and self.claimed <= kept and _only_holes(tail, end, found):
            name = self._keep(BAD, tail, end)
            text = f"{len(tail)} bytes of an unfinished append were cut off, and are kept in {name}"
            self._find(DamageKind.TORN_TAIL, text, position=end, repaired=True)
            return
        if found:
            name = self._keep(CUT, tail, end)
            text = f"{len(found)} whole records of unknown offset were cut off, and are kept in {name}"
            # Leave as many offsets free as there can have been records.
            damaged = len(tail) - sum(high - low for low, high in found)
            self.claimed = max(self.claimed, kept + len(found) + damaged // HEADER_BYTES)
            self._find(DamageKind.CUT, text, position=end)
            return
        text = f"{len(tail)} bytes of an unfinished append were cut off"
        if self.claimed > kept:
            text = f"{len(tail)} damaged bytes were cut off, and are kept in {self._keep(BAD, tail, end)}"
        self._find(DamageKind.TORN_TAIL, text, position=end, repaired=True)

    def _keep(self, suffix: str, tail: memoryview, end: int) -> str:
        stem = file_name(self.first, f".{end}")
        names = (f"{stem}{f'.{number}' if number else ''}{suffix}" for number in count())
        name = next(name for name in names if not (self.folder / name).exists())
        replace(self.files, self.folder / name, bytes(tail))
        return name

    def _write_index(self, ours: bool, ends: array[int], agreed: int) -> None:
        if not ours:
            self.files.truncate(self.index_fd, 0)
        self.files.truncate(self.index_fd, ENDS_AT + 4 * agreed)
        self.files.write(self.index_fd, ends[agreed:].tobytes(), ENDS_AT + 4 * agreed)
        self.files.write(self.index_fd, IndexHeader(self.uid, self.first).pack(), 0)
        self.files.sync(self.index_fd)

    def _active(self, view: memoryview, ends: array[int], *, sealed: bool = False) -> ActiveSegment:
        blocks = len(ends) // BLOCK_RECORDS
        # Lost block sums become ones that never match, so bulk readers check each record.
        self.files.truncate(self.sums_fd, 4 * blocks)
        self.files.truncate(self.index_fd, ENDS_AT + 4 * len(ends))
        active = ActiveSegment(
            self.files, self.folder, self.uid, self.first, self.log_fd, self.index_fd, self.sums_fd, ends
        )
        active.sealed = sealed
        active.ends_sum = sum_of(ends)
        active.size = ends[-1] if ends else self.start
        at = ends[BLOCK_RECORDS * blocks - 1] if blocks else self.start
        block_at = at
        for end in ends[BLOCK_RECORDS * blocks :]:
            if not intact(view, at, end):
                active.block_sum = None
            at = end
        if active.block_sum is not None:
            active.block_sum = crc32(view[block_at:at])
        if len(ends):
            last_at = ends[-2] if len(ends) > 1 else self.start
            if intact(view, last_at, ends[-1]):
                active.last_time_ms = time_at(view, last_at)
        return active

    def _find(self, trouble: DamageKind, text: str, *, position: int | None = None, repaired: bool = False) -> None:
        name = file_name(self.first)
        self.findings.append(Finding(trouble=trouble, text=text, segment=name, position=position, repaired=repaired))


def intact_records(view: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each intact record in unknown bytes."""
    at = find(view, 0, followed=False)
    while at is not None:
        end = end_at(view, at)
        assert end is not None
        yield at, end
        at = find(view, end, followed=False)


def _only_holes(tail: memoryview, position: int, found: list[tuple[int, int]]) -> bool:
    """Return True if unwritten pages explain the damage before each of these records.

    `position` is where the tail begins in its file. Such a page is zero, from the old end of the file on if that was
    within the page.
    """
    at = 0
    for low, high in found:
        first_stop = PAGE - (position + at) % PAGE + at
        stops = range(first_stop, low + 1, PAGE)
        if low > at and all(any(tail[max(at, stop - PAGE) : stop]) for stop in stops):
            return False
        at = high
    return True


def _agreed(hints: array[int], ends: array[int]) -> int:
    """Return how many leading entries are correct."""
    common = min(len(hints), len(ends))
    if hints[:common] == ends[:common]:
        return common
    return next(number for number in range(common) if hints[number] != ends[number])
