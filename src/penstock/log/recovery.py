"""Opening a log for writing: find where it truly ends, cut what was never promised, and name what is missing.

Nothing here reads more than the records since the last manifest, unless an index is gone.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from penstock.log.active import Active
from penstock.log.consumers import FILE as CONSUMERS
from penstock.log.files import Files, replace
from penstock.log.findings import Finding, Trouble
from penstock.log.index import (
    BLOCK_RECORDS,
    ENDS_AT,
    IndexHeader,
    count_in,
    find_ends,
    read_ends,
    read_header,
    sum_of,
)
from penstock.log.manifest import MANIFEST, Identity, Manifest, load_manifest, save
from penstock.log.record import crc32, find, intact, time_at
from penstock.log.segment import INDEX, LOG, SUMS, Handle, file_name, firsts_in


@dataclass
class Recovered:
    first: int
    firsts: list[int]
    active: Active
    findings: list[Finding] = field(default_factory=list)


def recover(files: Files, folder: Path, identity: Identity) -> Recovered:
    """The caller holds the lock."""
    for left_over in folder.glob("*.new"):
        # Positions are replaced under a lock of their own, perhaps at this moment.
        if left_over.stem != CONSUMERS:
            files.remove(left_over)
    manifest = load_manifest(folder)
    firsts = firsts_in(folder)
    first = manifest.first if manifest else firsts[0] if firsts else 0
    while len(firsts) > 1 and firsts[1] <= first:
        remove_segment(files, folder, firsts.pop(0))
    findings = gaps(folder, first, firsts)
    if manifest is None and firsts:
        findings.append(Finding(trouble=Trouble.MANIFEST, text="the manifest is missing or damaged", mended=True))
    known_end = max([manifest.next if manifest else 0, *_ends_of_vanished(folder, identity.uid, firsts)])
    active = _tail(files, folder, identity, manifest, first, firsts, known_end, findings)
    if active.first not in firsts:
        firsts.append(active.first)
    recovered = Recovered(max(first, firsts[0]), firsts, active, findings)
    save(files, folder / MANIFEST, active.manifest(recovered.first))
    return recovered


def gaps(folder: Path, first: int, firsts: list[int]) -> list[Finding]:
    """Offsets that no segment can hold, by the sizes of the indexes alone."""
    findings = []
    if firsts and firsts[0] > first:
        findings.append(_lost(first, firsts[0] - 1))
    for one, following in pairwise(firsts):
        try:
            count = ((folder / file_name(one, INDEX)).stat().st_size - ENDS_AT) // 4
        except FileNotFoundError:
            continue
        if 0 <= count < following - one:
            findings.append(_lost(one + count, following - 1))
    return findings


def _lost(first: int, last: int) -> Finding:
    text = f"records {first} to {last} are gone" if last > first else f"record {first} is gone"
    return Finding(trouble=Trouble.LOST, text=text, first=first, last=last)


def _ends_of_vanished(folder: Path, uid: int, firsts: list[int]) -> list[int]:
    """Where segments ended of which only the index is left."""
    ends = []
    for first in firsts_in(folder, INDEX):
        if first not in firsts:
            index = Handle(folder / file_name(first, INDEX))
            if read_header(index.fd, uid, first):
                ends.append(first + count_in(index.fd))
    return ends


def _tail(
    files: Files,
    folder: Path,
    identity: Identity,
    manifest: Manifest | None,
    first: int,
    firsts: list[int],
    known_end: int,
    findings: list[Finding],
) -> Active:
    """The segment to go on writing to."""
    if not firsts:
        if known_end > first:
            findings.append(_lost(first, known_end - 1))
        return Active.create(files, folder, identity.uid, known_end)
    if len(firsts) > 1:
        _finish_sealing(files, folder, identity.uid, firsts[-2], firsts[-1])
    last = SegmentRecovery(files, folder, identity.uid, firsts[-1], manifest)
    active = last.run()
    findings += last.findings
    known_end = max(known_end, active.first + last.claimed)
    if known_end > active.next:
        findings.append(_lost(active.next, known_end - 1))
        if not active.count:
            # An empty segment would take the new one's place among the names for nothing.
            active.close()
            remove_segment(files, folder, firsts.pop())
            return Active.create(files, folder, identity.uid, known_end)
    elif not active.sealed:
        return active
    if not active.sealed:
        active.seal()
    active.close()
    return Active.create(files, folder, identity.uid, known_end)


def _finish_sealing(files: Files, folder: Path, uid: int, first: int, following: int) -> None:
    """A crash in the middle of a roll-over leaves the segment before the last unsealed."""
    try:
        index = Handle(folder / file_name(first, INDEX))
    except FileNotFoundError:
        header = None
    else:
        header = read_header(index.fd, uid, first)
    if header is None or not header.sealed:
        before = SegmentRecovery(files, folder, uid, first, None, expected=following - first)
        active = before.run()
        active.seal()
        active.close()


def remove_segment(files: Files, folder: Path, first: int) -> None:
    for suffix in (LOG, INDEX, SUMS):
        files.remove(folder / file_name(first, suffix))
    files.sync_folder(folder)


class SegmentRecovery:
    """One segment that no seal vouches for."""

    def __init__(
        self, files: Files, folder: Path, uid: int, first: int, manifest: Manifest | None, expected: int | None = None
    ) -> None:
        self.files = files
        self.folder = folder
        self.uid = uid
        self.first = first
        self.manifest = manifest if manifest is not None and manifest.active == first else None
        self.expected = expected
        self.findings: list[Finding] = []
        self.claimed = 0
        """How many records it is known to have had."""
        self.log_fd, self.index_fd, self.sums_fd = (
            files.open(folder / file_name(first, suffix)) for suffix in (LOG, INDEX, SUMS)
        )

    def run(self) -> Active:
        log = Handle(self.folder / file_name(self.first))
        # After a failed fsync the cache may hold what the disk does not.
        os.posix_fadvise(log.fd, self.manifest.bytes if self.manifest else 0, 0, os.POSIX_FADV_DONTNEED)
        view = log.map()
        header = read_header(self.index_fd, self.uid, self.first)
        ends = array("I") if header is None else read_ends(self.index_fd, 0, count_in(self.index_fd))
        if header is not None and header.sealed and header.count == len(ends) and header.ends_sum == sum_of(ends):
            self.claimed = len(ends)
            good = bisect_right(ends, len(view))
            return self._active(view, ends[:good], sealed=good == len(ends))
        had = len(ends)
        ends, vetted = find_ends(ends, view, self.first, self.manifest, self.expected)
        self.claimed = max(vetted.claimed, len(ends))
        self._report_index(header is not None, had, vetted.good)
        self._cut(view, ends[-1] if ends else 0, ends[vetted.good - 1] if vetted.good else 0)
        self._write_index(header is not None, ends, vetted.good)
        return self._active(view, ends)

    def _report_index(self, ours: bool, had: int, good: int) -> None:
        if not ours and self.claimed:
            text = "the index is missing, damaged or from elsewhere"
        elif had > good and self.claimed <= had:
            text = f"the index does not fit the records from {self.first + good} on"
        else:
            return
        self._find(Trouble.INDEX, text, mended=True)

    def _cut(self, view: memoryview, end: int, published: int) -> None:
        """Nobody was promised what comes after the last whole record, and what no index knew is synced before use."""
        if end < len(view):
            found = find(view, end)
            if found is not None:
                name = f"{file_name(self.first, '')}.{end}.cut"
                replace(self.files, self.folder / name, bytes(view[end:]))
                text = f"{len(view) - end} bytes were cut, whole records of unknown offset among them; kept as {name}"
                self._find(Trouble.CORRUPT, text, position=end, mended=True)
            else:
                self._find(Trouble.TORN_TAIL, f"{len(view) - end} bytes were cut", position=end, mended=True)
            self.files.truncate(self.log_fd, end)
        if published < end:
            # Written once more, because a page that failed to sync counts as synced from then on.
            self.files.write(self.log_fd, bytes(view[published:end]), published)
        if published < end or end < len(view):
            self.files.sync(self.log_fd)

    def _write_index(self, ours: bool, ends: array[int], known: int) -> None:
        if not ours:
            self.files.truncate(self.index_fd, 0)
        self.files.truncate(self.index_fd, ENDS_AT + 4 * known)
        self.files.write(self.index_fd, ends[known:].tobytes(), ENDS_AT + 4 * known)
        self.files.write(self.index_fd, IndexHeader(self.uid, self.first).pack(), 0)
        self.files.sync(self.index_fd)

    def _active(self, view: memoryview, ends: array[int], *, sealed: bool = False) -> Active:
        blocks = len(ends) // BLOCK_RECORDS
        # Blocks whose sums were lost get ones that never fit: bulk readers then look at each record.
        self.files.truncate(self.sums_fd, 4 * blocks)
        self.files.truncate(self.index_fd, ENDS_AT + 4 * len(ends))
        active = Active(
            self.files, self.folder, self.uid, self.first, self.log_fd, self.index_fd, self.sums_fd, len(ends)
        )
        active.sealed = sealed
        active.ends_sum = sum_of(ends)
        active.size = ends[-1] if ends else 0
        at = ends[BLOCK_RECORDS * blocks - 1] if blocks else 0
        block_at = at
        for end in ends[BLOCK_RECORDS * blocks :]:
            if not intact(view, at, end):
                active.block_sum = None
            at = end
        if active.block_sum is not None:
            active.block_sum = crc32(view[block_at:at])
        if len(ends):
            last_at = ends[-2] if len(ends) > 1 else 0
            if intact(view, last_at, ends[-1]):
                active.last_time_ms = time_at(view, last_at)
        return active

    def _find(self, trouble: Trouble, text: str, *, position: int | None = None, mended: bool = False) -> None:
        name = file_name(self.first)
        self.findings.append(Finding(trouble=trouble, text=text, segment=name, position=position, mended=mended))
