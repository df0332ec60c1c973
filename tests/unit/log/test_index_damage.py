"""An index is a cache: damage to it costs no record, and records that were cut from a log can be restored."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.model import system_clock
from penstock.errors import DiskFull, OffsetBeyondEnd
from penstock.log import record
from penstock.log.arrow import batches
from penstock.log.check import check, repair
from penstock.log.check_report import DamageKind
from penstock.log.consumers import CommitPosition, Consumers
from penstock.log.files import DISK, Files
from penstock.log.reader import LogReader
from penstock.log.record import HEADER_BYTES, encode_event
from penstock.log.segment import INDEX, SUMS, Segment, firsts_in
from penstock.log.writer import Log
from tests.unit.log.support import (
    SMALL,
    assert_true,
    fill,
    flip,
    index_of,
    log_of,
    make,
    payload,
    read_all,
    segment_files,
)

COUNT = 60


@pytest.fixture(scope="module")
def intact_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sound") / "log", COUNT)


@pytest.fixture
def folder(intact_log: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact_log, tmp_path / "log"))


def corrupt_entry(folder: Path, number: int) -> None:
    """Set the highest bit of an entry, so that its record seems to end far beyond the end of the file."""
    path = segment_files(folder, INDEX)[-1]
    data = bytearray(path.read_bytes())
    data[64 + 4 * number + 3] |= 0x80
    path.write_bytes(data)


@pytest.mark.parametrize("number", [0, 1, 30, COUNT - 2, COUNT - 1])
@pytest.mark.parametrize("manifest", ["with a manifest", "without"])
def test_a_bad_index_entry_costs_no_record(folder: Path, number: int, manifest: str) -> None:
    size = segment_files(folder)[-1].stat().st_size
    corrupt_entry(folder, number)
    if manifest == "without":
        for name in ("manifest", "manifest.copy"):
            (folder / name).unlink(missing_ok=True)
    assert {each.trouble for each in check(folder, "s").findings} <= {DamageKind.INDEX, DamageKind.MANIFEST}
    for kind in (LogReader, Log, LogReader):
        with kind(folder) as log:
            served, damaged = read_all(log)
            assert_true(served)
            assert (len(served), damaged, log.next_offset) == (COUNT, [], COUNT)
    assert segment_files(folder)[-1].stat().st_size == size
    assert not list(folder.glob("*.cut"))
    assert check(folder, "s").findings == []


@pytest.mark.parametrize("number", [0, 30, COUNT - 1])
def test_a_bad_index_entry_is_harmless_while_the_writer_has_the_log_open(folder: Path, number: int) -> None:
    with Log(folder) as log:
        corrupt_entry(folder, number)
        served, damaged = read_all(log)
        assert_true(served)
        assert (len(served), damaged) == (COUNT, [])
        fill(log, 10)
        served, damaged = read_all(log)
        assert (len(served), damaged) == (COUNT + 10, [])
    with Log(folder) as log:
        served, damaged = read_all(log)
        assert_true(served)
        assert (len(served), damaged) == (COUNT + 10, [])


def test_an_index_truncated_while_the_log_is_open_is_not_trusted(folder: Path) -> None:
    with Log(folder) as log:
        path = segment_files(folder, INDEX)[-1]
        data = path.read_bytes()
        path.write_bytes(data[:100] + data[104:])
        served, damaged = read_all(log)
        assert_true(served)
        assert (len(served), damaged) == (COUNT, [])


@pytest.mark.parametrize("opened", [Log, LogReader])
@pytest.mark.parametrize("place", [0, -1], ids=["sealed", "active"])
def test_an_index_shifted_while_it_is_open_serves_no_wrong_record(
    tmp_path: Path, opened: type[LogReader], place: int
) -> None:
    """Records of equal size fit a shifted index, so only the entries that were read before show the change."""
    with Log.create(tmp_path / "s", "s", SMALL) as log:
        for first in range(0, 300, 10):
            log.append([b"%0400d" % offset for offset in range(first, first + 10)])
    expected_data = {offset: b"%0400d" % offset for offset in range(300)}
    with opened(tmp_path / "s") as log:
        assert read_all(log)[0] == expected_data
        path = segment_files(tmp_path / "s", INDEX)[place]
        data = path.read_bytes()
        path.write_bytes(data[:100] + data[104:] + data[-4:])
        # These reads start behind the gap, because a read across it would notice that a length does not fit.
        for offset in (50, 100, 200, 250):
            assert [record.data for record in log.read(offset, 1).records] == [expected_data[offset]]
            assert [batch["data"].to_pylist() for batch in batches(log, offset, offset + 1)] == [
                [expected_data[offset]]
            ]


def test_an_index_damaged_while_it_is_open_is_rebuilt_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rebuilds: list[int] = []

    def count_rebuild(self: Segment, expected: int, log_bytes: int | None) -> None:
        rebuilds.append(self.first)
        rebuild(self, expected, log_bytes)

    rebuild = Segment._rebuild
    monkeypatch.setattr(Segment, "_rebuild", count_rebuild)
    with LogReader(make(tmp_path / "s")) as log:
        log.read(0, 1)
        flip(segment_files(tmp_path / "s", INDEX)[0], 8 * (64 + 4 * 30))
        served = {record.offset: record.data for offset in range(0, 60, 3) for record in log.read(offset, 3).records}
    assert_true(served)
    assert (len(served), rebuilds) == (60, [0])


class FullAtIndex(Files):
    """A disk that becomes full when the index is written. It calls `then` before the writer gets the error."""

    index: Path
    then: Callable[[], object] | None = None

    def write(self, fd: int, data: bytes | memoryview, position: int) -> None:
        super().write(fd, data, position)
        if self.then is not None and os.path.samestat(os.fstat(fd), self.index.stat()):
            self.then()
            self.then = None
            raise OSError(errno.ENOSPC, "disk full")


def test_a_reader_that_saw_an_undone_append_serves_the_records_after_it(tmp_path: Path) -> None:
    """Two small records end where an undone record did, so the entries that the reader cached fit the new records."""
    files = FullAtIndex()
    with Log.create(tmp_path / "s", "s", files=files) as log, LogReader(tmp_path / "s") as reader:
        log.append([b"%0100d" % offset for offset in range(10)])
        files.index = index_of(tmp_path / "s", 0)
        files.then = lambda: reader.read(10)
        with pytest.raises(DiskFull):
            log.append([b"%0100d" % number for number in range(4)])
        small = (100 - HEADER_BYTES) // 2
        sizes = [small, small, 100, 100, 100]
        log.append([b"%d" % offset + bytes(size - 2) for offset, size in enumerate(sizes, start=10)])
        for offset in range(10, 15):
            assert [record.data[:2] for record in reader.read(offset, 1).records] == [b"%d" % offset]


@pytest.mark.parametrize("damaged", [10, COUNT - 1])
def test_a_damaged_record_and_index_cost_only_that_record(folder: Path, damaged: int) -> None:
    with LogReader(folder) as log:
        start, end = log.segment_of(damaged).ends(damaged, damaged + 1)
    path = log_of(folder, 0)
    data = bytearray(path.read_bytes())
    data[start:end] = bytes(end - start)
    path.write_bytes(data)
    corrupt_entry(folder, 5)
    with Log(folder) as log:
        served, lost = read_all(log)
        assert_true(served)
        assert (len(served), lost) == (COUNT - 1, [damaged])


def test_a_long_run_of_garbage_is_searched_in_one_pass(folder: Path) -> None:
    """The test counts checksummed bytes, because trusting every length that garbage suggests would be quadratic."""
    from penstock.log import record

    summed = 0
    real = record.crc32

    def count_rebuild(data: bytes, start: int = 0) -> int:
        nonlocal summed
        summed += len(data)
        return int(real(data, start))

    import random

    garbage = memoryview(random.Random(1).randbytes(1 << 20))
    record.crc32 = count_rebuild  # type: ignore[assignment]
    try:
        assert record.find(garbage, 0) is None
    finally:
        record.crc32 = real
    assert summed < 2 * len(garbage)


def cut_as_0_1_0(folder: Path, at: int) -> Path:
    """Cut the log as 0.1.0 did after a bad entry: move the later records to another file, and leave a gap of one
    offset."""
    with LogReader(folder) as log:
        position = log.segment_of(at).ends(at, at)[-1]
    path = log_of(folder, 0)
    data = path.read_bytes()
    cut = folder / f"{0:020}.{position}.cut"
    cut.write_bytes(data[position:])
    path.write_bytes(data[:position])
    for suffix in (INDEX, SUMS):
        path.with_suffix(suffix).unlink()
    for name in ("manifest", "manifest.copy"):
        (folder / name).unlink(missing_ok=True)
    with Log(folder) as log:
        log.skip_to(at + 1)
    return cut


@pytest.mark.parametrize("repaired_before", [False, True])
def test_repair_restores_cut_records_at_their_offsets(folder: Path, repaired_before: bool) -> None:
    cut = cut_as_0_1_0(folder, 20)
    if repaired_before:
        # Version 0.1.0 put a marker into the gap.
        aside = cut.rename(folder / "kept")
        assert repair(folder, "s").ok
        aside.rename(cut)
    assert DamageKind.CUT in {finding.trouble for finding in check(folder, "s").findings}
    report = repair(folder, "s")
    assert report.ok
    assert [each.text for each in report.findings if each.trouble is DamageKind.CUT and "back" in each.text] == [
        "40 records are back at their offsets"
    ]
    with Log(folder) as log:
        served, damaged = read_all(log)
        assert_true(served)
        assert (len(served), damaged) == (COUNT, [])
        assert log.append([payload(COUNT)]).first == COUNT
    assert not cut.exists()
    assert check(folder, "s").findings == []


def test_repair_appends_cut_records_if_their_offsets_are_taken(folder: Path) -> None:
    cut = cut_as_0_1_0(folder, 20)
    with Log(folder) as log:
        log.append([b"new"])
    assert repair(folder, "s").ok
    with Log(folder) as log:
        served, _ = read_all(log)
    assert [served[offset] for offset in range(21)] == [payload(offset) for offset in range(21)]
    assert served[21] == b"new"
    assert [served[offset] for offset in range(22, 22 + 39)] == [payload(offset) for offset in range(21, COUNT)]
    assert not cut.exists()


def test_intact_records_of_unknown_offset_are_kept_reported_and_restored(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = log_of(folder, 0)
    data = bytearray(path.read_bytes())
    data[164:2_064] = bytes(1_900)
    path.write_bytes(data)
    index_of(folder, 0).unlink()
    for name in ("manifest", "manifest.copy"):
        (folder / name).unlink(missing_ok=True)
    with Log(folder) as log:
        assert DamageKind.CUT in {each.trouble for each in log.findings}
        assert log.next_offset >= COUNT, "offsets that may have been acknowledged are not reused"
    assert "whole records of unknown offset were cut off" in caplog.text
    assert len(list(folder.glob("*.cut"))) == 1
    assert repair(folder, "s").ok
    with LogReader(folder) as log:
        served, damaged = read_all(log)
    originals = {payload(offset) for offset in range(COUNT)}
    assert damaged == []
    assert len([data for data in served.values() if data in originals]) > COUNT - 15
    assert not list(folder.glob("*.cut"))


@pytest.mark.parametrize("processed", [False, True])
def test_an_append_torn_at_its_start_takes_no_offsets(folder: Path, processed: bool) -> None:
    log = Log(folder)
    fill(log, 40, batch=40)
    log.abandon()
    path, index = log_of(folder, 0), index_of(folder, 0)
    data = bytearray(path.read_bytes())
    # Neither the page in which the append began nor the index reached the disk.
    end = struct.unpack_from("<I", index.read_bytes(), 64 + 4 * (COUNT - 1))[0]
    page_end = end // 4096 * 4096 + 4096
    data[end:page_end] = bytes(page_end - end)
    path.write_bytes(data)
    index.write_bytes(index.read_bytes()[: 64 + 4 * COUNT])
    if processed:
        # The append was acknowledged all the same, so the disk has lost it since.
        Consumers(folder, "s", files=DISK, clock=system_clock).submit(CommitPosition(consumer="c", offset=COUNT + 39))
    with Log(folder) as log:
        found = {each.trouble for each in log.findings}
        assert found == ({DamageKind.CUT, DamageKind.LOST} if processed else {DamageKind.TORN_TAIL})
        assert (log.next_offset >= COUNT + 40) if processed else (log.next_offset == COUNT)
        served, _ = read_all(log)
        assert_true(served)
        assert len(served) == COUNT
    assert len(list(folder.glob("*.cut" if processed else "*.bad"))) == 1, "intact records are not discarded"


def test_a_segment_before_the_last_is_never_cut(tmp_path: Path) -> None:
    folder = make(tmp_path / "log", 300)
    first, second = firsts_in(folder)[:2]
    header = index_of(folder, first).read_bytes()
    size = log_of(folder, first).stat().st_size
    index_of(folder, first).write_bytes(header[:64][::-1] + header[64:])
    with Log(folder) as log:
        served, damaged = read_all(log)
        assert (len(served), damaged) == (300, [])
    assert log_of(folder, first).stat().st_size == size
    assert second > 0


def test_reading_after_the_end_is_still_an_error(folder: Path) -> None:
    with LogReader(folder) as log, pytest.raises(OffsetBeyondEnd):
        log.read(COUNT + 1)


def test_a_torn_record_that_contains_record_like_bytes_costs_bounded_checksumming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 1 << 20
    unit = struct.pack("<I", (size // 4) & ~0xFF) + b"\1\2\3\4" + bytes(8)
    torn = memoryview(encode_event(0, 1_700_000_000_000, b"", unit * (size // 8))[:size])
    summed = 0
    intact = record.intact

    def count_checksummed(buffer: memoryview, start: int, end: int) -> bool:
        nonlocal summed
        summed += end - start
        return intact(buffer, start, end)

    monkeypatch.setattr(record, "intact", count_checksummed)
    assert record.find(torn, 1) is None
    assert summed <= 65 * size
