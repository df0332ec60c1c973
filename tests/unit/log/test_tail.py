"""After a crash a log ends at its last whole record, and missing acknowledged records are reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.log.check import check, repair
from penstock.log.check_report import DamageKind
from penstock.log.files import FolderLock
from penstock.log.reader import LogReader
from penstock.log.record import encode
from penstock.log.segment import INDEX
from penstock.log.writer import Log
from tests.conformance.support import Clock
from tests.unit.log.support import assert_true, fill, make, payload, read_all, segment_files

COUNT = 30


@pytest.fixture(scope="module")
def intact_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sound") / "log", COUNT)


@pytest.fixture
def folder(intact_log: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact_log, tmp_path / "log"))


@pytest.mark.parametrize("index", ["whole", "missing", "behind"])
def test_a_last_record_torn_at_any_byte_is_named_and_all_others_are_served(tmp_path: Path, index: str) -> None:
    count = 12
    intact_log = make(tmp_path / "sound", count)
    size = segment_files(intact_log)[-1].stat().st_size
    with LogReader(intact_log) as log:
        start = log.segment_of(count - 1).ends(count - 1, count)[0]
    for cut in range(start, size):
        folder = Path(shutil.copytree(intact_log, tmp_path / f"log{cut}"))
        with segment_files(folder)[-1].open("r+b") as file:
            file.truncate(cut)
        (path,) = segment_files(folder, INDEX)
        if index == "missing":
            path.unlink()
        elif index == "behind":
            path.write_bytes(path.read_bytes()[:-20])
        assert any(each.loses_records for each in check(folder, "s").findings)
        with Log(folder) as log:
            served, damaged = read_all(log)
            assert_true(served)
            assert sorted(served) == list(range(count - 1))
            assert damaged == [count - 1]
            assert log.append([payload(count)]).first == count


def test_a_tail_lost_at_a_record_boundary_is_noticed(folder: Path) -> None:
    with LogReader(folder) as log:
        at = log.segment_of(20).ends(20, 21)[0]
    with segment_files(folder)[0].open("r+b") as file:
        file.truncate(at)
    segment_files(folder, INDEX)[0].unlink()
    with Log(folder) as log:
        assert [(each.trouble, each.first, each.last) for each in log.findings if each.loses_records] == [
            (DamageKind.LOST, 20, COUNT - 1)
        ]
        assert log.append([b"x"]).first == COUNT
    assert repair(folder, "s").ok
    with LogReader(folder) as log:
        assert [record.offset for record in log.read(0).records] == [*range(20), COUNT]


@pytest.mark.parametrize("tail", [b"\0" * 10, b"\0" * 4096, encode([payload(COUNT)], 1)[0][:-1], b"\xff" * 30])
def test_a_torn_tail_is_cut_at_the_last_whole_record(folder: Path, tail: bytes) -> None:
    with segment_files(folder)[0].open("ab") as file:
        file.write(tail)
    assert [each.trouble for each in check(folder, "s").findings] == [DamageKind.TORN_TAIL]
    with Log(folder) as log:
        assert [(each.trouble, each.repaired) for each in log.findings] == [(DamageKind.TORN_TAIL, True)]
        fill(log, 10)
        served, damaged = read_all(log)
        assert_true(served)
        assert (len(served), damaged) == (COUNT + 10, [])


def test_intact_unacknowledged_records_are_kept(folder: Path) -> None:
    with segment_files(folder)[0].open("ab") as file:
        file.write(encode([payload(COUNT), payload(COUNT + 1)], 1)[0])
    writer = FolderLock(folder / "lock")
    with LogReader(folder) as log:
        assert log.next_offset == COUNT, "a reader trusts only the index while a writer may be active"
    writer.close()
    with Log(folder) as log:
        assert log.next_offset == COUNT + 2
        served, _ = read_all(log)
        assert_true(served)


def test_a_reader_recovers_the_log_if_there_is_no_writer(folder: Path) -> None:
    index = segment_files(folder, INDEX)[0]
    index.write_bytes(index.read_bytes()[:-40] + bytes(40))
    with LogReader(folder) as log:
        served, damaged = read_all(log)
        assert_true(served)
        assert (len(served), damaged) == (COUNT, [])


def test_appending_works_after_any_number_of_reopenings(tmp_path: Path) -> None:
    make(tmp_path / "log", 0)
    for _ in range(20):
        log = Log(tmp_path / "log", clock=Clock())
        fill(log, 33)
        log.abandon()
    with LogReader(tmp_path / "log") as reader:
        served, damaged = read_all(reader)
        assert_true(served)
        assert (len(served), damaged) == (660, [])
    assert check(tmp_path / "log", "s").ok
