"""Checks every record of a log, and repairs damage without moving intact records."""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import pairwise
from pathlib import Path
from secrets import randbits

import msgspec

from penstock.core.model import Clock, Progress, system_clock
from penstock.errors import Damaged, StoreBusy
from penstock.log.active_segment import ActiveSegment
from penstock.log.check_report import DamageKind, Finding, Report
from penstock.log.consumers import FILE as CONSUMERS
from penstock.log.consumers import Consumers
from penstock.log.cut_records import cut_files, restore_cuts
from penstock.log.files import DISK, Files, FolderLock, replace, typed_errors
from penstock.log.index import BLOCK_RECORDS, IndexHeader
from penstock.log.manifest import (
    HEADED_VERSION,
    MANIFEST,
    MANIFEST_COPY,
    STREAM,
    VERSION,
    Identity,
    Manifest,
    load_identity,
    load_manifest,
    load_one_manifest,
    save_identity,
    save_manifest,
)
from penstock.log.model import SEGMENT_BYTES_MAX, StreamOptions
from penstock.log.reader import LOCK
from penstock.log.record import HEADER_BYTES, LOST, crc32, intact, kind_at, time_at, tombstones
from penstock.log.recovery import gaps
from penstock.log.segment import INDEX, SUMS, Handle, Segment, file_name, firsts_in, owners_of
from penstock.log.segment_header import head_of
from penstock.log.segment_placement import check_identity, uids_in
from penstock.log.writer import Log


def check(folder: Path, name: str, progress: Progress | None = None) -> Report:
    """Check every record. Changes nothing and needs no lock."""
    report = Report(stream=name, findings=[])
    try:
        identity = load_identity(folder)
        check_identity(folder, identity)
    except Damaged as error:
        report.findings.append(Finding(trouble=DamageKind.IDENTITY, text=str(error.args[0])))
        return report
    Checker(folder, identity, report).run(progress)
    for path in cut_files(folder):
        text = "whole records were cut off the log"
        report.findings.append(Finding(trouble=DamageKind.CUT, text=text, segment=path.name))
    _check_consumers(folder, name, report)
    return report


def _check_consumers(folder: Path, name: str, report: Report) -> None:
    try:
        Consumers(folder, name, files=DISK, clock=system_clock).all()
    except Damaged as error:
        report.findings.append(Finding(trouble=DamageKind.CONSUMERS, text=str(error.args[0])))


def _has_writer(folder: Path) -> bool:
    """Return True if a writer is active, whose unpublished data is not a torn tail."""
    try:
        FolderLock(folder / LOCK, patience_s=0).close()
    except StoreBusy:
        return True
    return False


class Checker:
    def __init__(self, folder: Path, identity: Identity, report: Report) -> None:
        self.folder = folder
        self.identity = identity
        self.report = report

    def run(self, progress: Progress | None) -> None:
        report, manifest = self.report, load_manifest(self.folder, self.identity.uid)
        firsts = firsts_in(self.folder)
        first = manifest.first if manifest else firsts[0] if firsts else 0
        for name in (MANIFEST, MANIFEST_COPY):
            if load_one_manifest(self.folder / name, self.identity.uid) is None:
                self._find(DamageKind.MANIFEST, None, f"{name} is missing or damaged")
        while len(firsts) > 1 and firsts[1] <= first:
            firsts.pop(0)
        report.first = report.next = max(first, firsts[0]) if firsts else first
        report.findings += gaps(self.folder, self.identity, first, firsts)
        for place, one in enumerate(firsts):
            following = firsts[place + 1] if place + 1 < len(firsts) else None
            self._segment(one, following, manifest)
            if progress is not None:
                progress(place + 1, len(firsts))
        if manifest is not None and manifest.next > report.next:
            self._lost(report.next, manifest.next - 1)
            report.next = manifest.next

    def _segment(self, first: int, following: int | None, manifest: Manifest | None) -> None:
        segment, report = self._open(first, following), self.report
        if segment.misplaced:
            self._misplaced(first, following, manifest)
            return
        self._head(segment)
        claimed = segment.count
        if following is None and not segment.sealed and not segment.index_holds(manifest):
            claimed = segment.scan(manifest)
        if segment.rebuilt is not None and claimed == segment.count:
            self._find(DamageKind.INDEX, first, "the index is missing, short, damaged or from elsewhere")
        ends = segment.ends(0, segment.count)
        view = segment.log.map()
        bad = self._records(segment, view, ends)
        self._sums(segment, view, ends, bad)
        report.segments += 1
        report.records += segment.count - len(bad)
        report.bytes += len(view)
        report.next = first + segment.count
        if following is None and ends[-1] < len(view) and not _has_writer(self.folder):
            self._find(DamageKind.TORN_TAIL, first, f"{len(view) - ends[-1]} bytes at the end", position=ends[-1])
        if claimed > segment.count:
            self._lost(report.next, first + claimed - 1)
            report.next = first + claimed

    def _open(self, first: int, following: int | None) -> Segment:
        expected = None if following is None else following - first
        return Segment(self.folder, self.identity, first, expected=expected)

    def _misplaced(self, first: int, following: int | None, manifest: Manifest | None) -> None:
        end = following if following is not None else max(first, manifest.next if manifest else 0)
        owners = sorted(owners_of(Handle(self.folder / file_name(first))))
        whose = f"offset {owners[0][1]} of stream id {owners[0][0]}" if owners else "a stream that 0.1.0 wrote"
        self.report.findings.append(
            Finding(
                trouble=DamageKind.MISPLACED,
                text=f"the file belongs to {whose}, and nothing of it is served",
                segment=file_name(first),
                first=first,
                last=max(first, end - 1),
            )
        )
        self.report.segments += 1
        self.report.next = end

    def _head(self, segment: Segment) -> None:
        view = segment.log.map()
        if segment.start and view and view[: segment.start] != head_of(*self.identity.owner_of(segment.first)):
            self._find(DamageKind.HEAD, segment.first, "the head is damaged", position=0)

    def _records(self, segment: Segment, view: memoryview, ends: array[int]) -> list[int]:
        bad, given_up = [], []
        for number, (start, end) in enumerate(pairwise(ends)):
            if not intact(view, start, end):
                bad.append(number)
                self._find(
                    DamageKind.CORRUPT,
                    segment.first,
                    f"record {segment.first + number} is damaged",
                    offset=segment.first + number,
                    position=start,
                )
            elif kind_at(view, start) == LOST:
                given_up.append(segment.first + number)
        if given_up:
            self.report.findings.append(
                Finding(
                    trouble=DamageKind.GIVEN_UP,
                    text=f"{len(given_up)} records were given up by a repair",
                    segment=segment.path.name,
                    first=given_up[0],
                    last=given_up[-1],
                )
            )
        return bad

    def _sums(self, segment: Segment, view: memoryview, ends: array[int], bad: list[int]) -> None:
        try:
            data = segment.path.with_suffix(SUMS).read_bytes()
        except FileNotFoundError:
            data = b""
        sums = array("I", data[: len(data) // 4 * 4])
        wrong = 0
        for block in range(segment.count // BLOCK_RECORDS):
            low, high = block * BLOCK_RECORDS, (block + 1) * BLOCK_RECORDS
            fits = block < len(sums) and sums[block] == crc32(view[ends[low] : ends[high]])
            wrong += not fits and not any(low <= number < high for number in bad)
        if wrong:
            self._find(DamageKind.SUMS, segment.first, f"the sums of {wrong} blocks do not fit")

    def _lost(self, first: int, last: int) -> None:
        text = f"records {first} to {last} are gone"
        self.report.findings.append(Finding(trouble=DamageKind.LOST, text=text, first=first, last=last))

    def _find(
        self,
        trouble: DamageKind,
        first: int | None,
        text: str,
        *,
        offset: int | None = None,
        position: int | None = None,
    ) -> None:
        self.report.findings.append(
            Finding(
                trouble=trouble,
                text=text,
                segment=None if first is None else file_name(first),
                first=offset,
                last=offset,
                position=position,
            )
        )


def repair(
    folder: Path,
    name: str,
    progress: Progress | None = None,
    *,
    append_cuts: bool = True,
    files: Files = DISK,
    clock: Clock = system_clock,
) -> Report:
    """Repair what a check finds, as far as possible. Takes the log's write lock."""
    with typed_errors(f"repairing stream {name!r}"):
        report = check(folder, name)
        _repair_small_files(folder, name, report, files, clock)
        with Log(folder, files=files, clock=clock) as log:
            findings = log.findings
        restored = restore_cuts(files, folder, clock, append=append_cuts)
        lock = FolderLock(folder / LOCK)
        try:
            _Repairer(folder, load_identity(folder), files).run(progress)
        finally:
            lock.close()
        after = check(folder, name)
    seen = {(each.trouble, each.segment, each.first, each.position) for each in report.findings}
    both = report.findings + [
        each for each in findings if (each.trouble, each.segment, each.first, each.position) not in seen
    ]
    both = [each for each in both if each.trouble is not DamageKind.CUT] + restored
    left = {(each.trouble, each.segment, each.first) for each in after.findings}
    after.findings = [
        Finding(
            trouble=each.trouble,
            text=each.text,
            segment=each.segment,
            first=each.first,
            last=each.last,
            position=each.position,
            repaired=(each.trouble, each.segment, each.first) not in left,
        )
        for each in both
        if each.trouble is not DamageKind.GIVEN_UP
    ]
    return after


def _repair_small_files(folder: Path, name: str, report: Report, files: Files, clock: Clock) -> None:
    troubles = {finding.trouble for finding in report.findings}
    if DamageKind.IDENTITY in troubles:
        if (folder / STREAM).exists():
            files.rename(folder / STREAM, folder / f"{STREAM}.bad")
        save_identity(files, folder, _restored_identity(folder, name, clock))
    if DamageKind.CONSUMERS in troubles:
        files.rename(folder / CONSUMERS, folder / f"{CONSUMERS}.bad")
        files.sync_folder(folder)


def _restored_identity(folder: Path, name: str, clock: Clock) -> Identity:
    """Return an identity with the id that segments and indexes carry, and default options."""
    uids = Counter(uids_in(folder)).most_common(1)
    uid = uids[0][0] if uids else randbits(63)
    headed = [first for first in firsts_in(folder) if (uid, first) in owners_of(Handle(folder / file_name(first)))]
    return Identity(
        name=name,
        uid=uid,
        created_ms=clock(),
        options=StreamOptions(),
        version=HEADED_VERSION if headed else VERSION,
        headed_from=min(headed, default=None),
    )


class _Repairer:
    """Replaces damaged records by markers, and rebuilds indexes and sums."""

    def __init__(self, folder: Path, identity: Identity, files: Files) -> None:
        self.folder = folder
        self.identity = identity
        self.files = files

    def run(self, progress: Progress | None) -> None:
        manifest = load_manifest(self.folder, self.identity.uid)
        firsts = firsts_in(self.folder)
        for one, following in pairwise(firsts):
            self._fill(one, following)
        firsts = firsts_in(self.folder)
        for place, one in enumerate(firsts):
            self._segment(one, firsts[place + 1] if place + 1 < len(firsts) else None)
            if progress is not None:
                progress(place + 1, len(firsts))
        if manifest is not None and firsts and firsts[0] > manifest.first:
            # Earlier segments are lost, so the stream now begins here.
            save_manifest(self.files, self.folder, msgspec.structs.replace(manifest, first=firsts[0]))

    def _fill(self, first: int, following: int) -> None:
        """Write markers for the records missing between two segments."""
        segment = Segment(self.folder, self.identity, first, expected=following - first)
        at = first + segment.count
        while at < following:
            count = min(following - at, SEGMENT_BYTES_MAX // HEADER_BYTES)
            data, _ = tombstones(count, count * HEADER_BYTES)
            filler = ActiveSegment.create(self.files, self.folder, self.identity, at)
            filler.write(data)
            filler.sync()
            filler.publish(data, [HEADER_BYTES] * count, 0)
            filler.seal()
            filler.close()
            at += count

    def _segment(self, first: int, following: int | None) -> None:
        segment = Segment(self.folder, self.identity, first, expected=following and following - first)
        view, ends = segment.log.map(), segment.ends(0, segment.count)
        bad = [number for number, (start, end) in enumerate(pairwise(ends)) if not intact(view, start, end)]
        if bad:
            self._mark(segment, view, ends, bad)
            segment.log = Handle(segment.path)
            view = segment.log.map()
        self._head(segment, view)
        self._index(segment, view, ends, sealed=following is not None)

    def _head(self, segment: Segment, view: memoryview) -> None:
        head = head_of(*self.identity.owner_of(segment.first))
        if segment.start and view[: segment.start] != head:
            fd = self.files.open(segment.path)
            try:
                self.files.write(fd, head, 0)
                self.files.sync(fd)
            finally:
                self.files.close(fd)

    def _mark(self, segment: Segment, view: memoryview, ends: array[int], bad: list[int]) -> None:
        """Replace records by markers of the same length, so that no other record moves."""
        data = bytearray(view)
        data.extend(bytes(max(0, ends[-1] - len(data))))
        for number in bad:
            start, end = ends[number], ends[number + 1]
            replace(self.files, segment.path.with_suffix(f".{start}.bad"), bytes(view[start:end]))
            data[start:end] = tombstones(1, end - start)[0]
        replace(self.files, segment.path, bytes(data))

    def _index(self, segment: Segment, view: memoryview, ends: array[int], *, sealed: bool) -> None:
        sums = array("I")
        for high in range(BLOCK_RECORDS, len(ends), BLOCK_RECORDS):
            sums.append(crc32(view[ends[high - BLOCK_RECORDS] : ends[high]]))
        entries = ends[1:]
        header = IndexHeader(self.identity.uid, segment.first)
        if sealed:
            last_time_ms = max((time_at(view, start) for start in ends[-2:-1]), default=0)
            entries_sum = crc32(entries.tobytes())
            header = IndexHeader(self.identity.uid, segment.first, len(entries), ends[-1], entries_sum, last_time_ms)
        self._renew(segment.path.with_suffix(SUMS), sums.tobytes())
        self._renew(segment.path.with_suffix(INDEX), header.pack() + entries.tobytes())

    def _renew(self, path: Path, data: bytes) -> None:
        try:
            same = path.read_bytes() == data
        except FileNotFoundError:
            same = False
        if not same:
            replace(self.files, path, data)
