"""Finds and restores records that were cut off a log and are kept beside it (`*.cut`)."""

from __future__ import annotations

from pathlib import Path

from penstock.core.model import Clock
from penstock.log.active_segment import ActiveSegment
from penstock.log.check_report import DamageKind, Finding
from penstock.log.files import Files, FolderLock
from penstock.log.manifest import Identity, load_identity
from penstock.log.model import BATCH_BYTES_MAX
from penstock.log.reader import LOCK
from penstock.log.record import LOST, kind_at, time_at
from penstock.log.recovery import CUT, intact_records, remove_segment
from penstock.log.segment import Segment, firsts_in
from penstock.log.writer import Log


class Cut:
    """One file of cut records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        first, position = path.name.split(".")[:2]
        # First offset of the segment that the records were cut from.
        self.first = int(first)
        self.position = int(position)
        data = memoryview(path.read_bytes())
        places = list(intact_records(data))
        self.records = [bytes(data[low:high]) for low, high in places]
        # Number of records that directly follow the rest of the segment, so that their offsets are known.
        at = self.unbroken = 0
        for low, high in places:
            if low != at:
                break
            at = high
            self.unbroken += 1


def cut_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"*{CUT}") if all(map(str.isdecimal, path.name.split(".")[:2])))


def restore_cuts(files: Files, folder: Path, clock: Clock, *, append: bool = True) -> list[Finding]:
    """Restore cut records at their offsets if these are known and free; `append` the others to the log."""
    findings = []
    for path in cut_files(folder):
        cut = Cut(path)
        lock = FolderLock(folder / LOCK)
        try:
            back = _restore_in_place(files, folder, load_identity(folder), cut)
        finally:
            lock.close()
        left = cut.records[back:]
        text = f"{back} records are back at their offsets"
        with Log(folder, files=files, clock=clock) as log:
            if left and append:
                text += f"; {len(left)}, whose offsets are not known or not free, are back from {log.next_offset} on"
                _append(log, left)
        if left and not append:
            text += f"; {len(left)}, whose offsets are not known or not free, stay in this file"
        else:
            files.remove(path)
            files.sync_folder(folder)
        findings.append(Finding(trouble=DamageKind.CUT, text=text, segment=path.name, repaired=not left or append))
    return findings


def _restore_in_place(files: Files, folder: Path, identity: Identity, cut: Cut) -> int:
    """Restore the records that directly followed their segment as a new segment; return how many."""
    firsts = firsts_in(folder)
    if cut.first not in firsts or not cut.unbroken:
        return 0
    segment = Segment(folder, identity, cut.first)
    if segment.misplaced or segment.ends(segment.count, segment.count)[-1] != cut.position:
        return 0
    begin, room = cut.first + segment.count, cut.unbroken
    for first in firsts[firsts.index(cut.first) + 1 :]:
        if _holds_records(folder, identity, first):
            if first == begin and _begins_with(folder, identity, first, cut.records[0]):
                return cut.unbroken  # An earlier repair was killed before it removed the cut file.
            room = min(room, first - begin)
            break
        remove_segment(files, folder, first)
    back = cut.records[:room]
    if back:
        data = b"".join(back)
        fresh = ActiveSegment.create(files, folder, identity, begin)
        fresh.write(data)
        fresh.sync()
        fresh.publish(data, [len(record) for record in back], time_at(back[-1], 0))
        fresh.seal()
        fresh.close()
    return len(back)


def _holds_records(folder: Path, identity: Identity, first: int) -> bool:
    """Return False for a segment that is empty or holds only markers of lost records."""
    segment = Segment(folder, identity, first)
    view, ends = segment.log.map(), segment.ends(0, segment.count)
    return segment.misplaced or any(kind_at(view, start) != LOST for start in ends[:-1])


def _begins_with(folder: Path, identity: Identity, first: int, record: bytes) -> bool:
    segment = Segment(folder, identity, first)
    return segment.log.map()[segment.start : segment.start + len(record)] == record


def _append(log: Log, records: list[bytes]) -> None:
    batch: list[bytes] = []
    size = 0
    for record in records:
        if size + len(record) > BATCH_BYTES_MAX:
            log.append_encoded(b"".join(batch), [len(each) for each in batch])
            batch, size = [], 0
        batch.append(record)
        size += len(record)
    log.append_encoded(b"".join(batch), [len(each) for each in batch])
