"""Failing disks: a full disk fails the request, and a failed fsync stops the log until it is reopened."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock import DiskFull, LogFailed, StoreError
from penstock.config import Settings
from penstock.log.check import check
from penstock.log.consumers import CommitPosition, Consumers
from penstock.log.manifest import STREAM
from penstock.log.model import SEGMENT_BYTES_MIN, StreamOptions
from penstock.log.reader import LogReader
from penstock.log.retention import TrimRequest, trim
from penstock.log.segment import file_name, firsts_in
from penstock.log.snapshot import LogCopy, copy_log
from penstock.log.streams import FileStreams
from penstock.log.writer import CHECKPOINT_MS, Log
from penstock.server.serve import open_store_from as open_served
from tests.conformance.support import Clock
from tests.unit.log.support import BROKEN, FULL, FailingDisk, assert_true, fill, make, payload, read_all


@pytest.fixture
def files() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def log(tmp_path: Path, files: FailingDisk) -> Iterator[Log]:
    make(tmp_path / "log", 20)
    log = Log(tmp_path / "log", files=files, clock=Clock())
    yield log
    files.fail.clear()
    log.close()


def assert_sound(folder: Path, count: int) -> None:
    with LogReader(folder) as reader:
        served, damaged = read_all(reader)
    assert_true(served)
    assert (len(served), damaged) == (count, [])


@pytest.mark.parametrize("successes", [0, 1])
def test_a_full_disk_within_a_batch_keeps_nothing_of_it_and_the_log_continues(
    log: Log, files: FailingDisk, successes: int
) -> None:
    """The first write holds the data, the second one the index."""
    files.fail["write"] = (successes, FULL)
    with pytest.raises(DiskFull):
        log.append([payload(offset) for offset in range(20, 30)])
    assert log.next_offset == 20
    files.fail.clear()
    fill(log, 10)
    assert_sound(log.folder, 30)
    assert check(log.folder, "s").findings == []


def test_a_full_disk_that_cannot_be_truncated_stops_the_log(log: Log, files: FailingDisk) -> None:
    files.fail = {"write": (0, FULL), "truncate": (0, BROKEN)}
    with pytest.raises(DiskFull):
        log.append([payload(20)])
    files.fail.clear()
    with pytest.raises(LogFailed):
        log.append([payload(20)])
    log.close()
    with Log(log.folder) as again:
        fill(again, 5)
    assert_sound(log.folder, 25)


def test_a_failed_fsync_stops_the_log_until_it_is_reopened(log: Log, files: FailingDisk) -> None:
    files.fail["sync"] = (0, BROKEN)
    with pytest.raises(LogFailed):
        log.append([payload(20)])
    files.fail.clear()
    with pytest.raises(LogFailed):
        log.append([payload(20)])
    assert log.next_offset == 20
    assert len(log.read(0).records) == 20, "acknowledged records can still be read"
    log.close()
    with Log(log.folder) as again:
        assert again.next_offset == 20
        fill(again, 5)
    assert_sound(log.folder, 25)


def test_a_roll_over_succeeds_once_the_disk_has_space(log: Log, files: FailingDisk) -> None:
    fill(log, 200)
    room = log.identity.options.segment_bytes - log.active.size
    batch = [b"x" * 500] * (room // 500 + 1)
    files.fail["write"] = (1, FULL)
    for _ in range(2):
        with pytest.raises(DiskFull):
            log.append(batch)
    files.fail.clear()
    assert log.append(batch).first == 220
    assert check(log.folder, "s").findings == []


def test_a_failed_manifest_update_fails_no_append(tmp_path: Path, files: FailingDisk) -> None:
    clock = Clock()
    make(tmp_path / "log", 0)
    with Log(tmp_path / "log", files=files, clock=clock) as log:
        clock.advance(CHECKPOINT_MS)
        files.fail["rename"] = (0, FULL)
        fill(log, 10)
        assert log.checkpoint_error is not None
        files.fail.clear()
        fill(log, 10)
        assert log.checkpoint_error is None
    assert_sound(tmp_path / "log", 20)


def test_a_failed_commit_keeps_the_old_position(tmp_path: Path, files: FailingDisk) -> None:
    make(tmp_path / "log", 20)
    consumers = Consumers(tmp_path / "log", "s", files=files, clock=Clock())
    consumers.submit(CommitPosition(consumer="c", offset=5))
    for operation in ("write", "sync", "rename"):
        files.fail = {operation: (0, FULL)}
        with pytest.raises(StoreError):
            consumers.submit(CommitPosition(consumer="c", offset=9))
        assert consumers.get("c").offset == 5
    files.fail.clear()
    assert consumers.submit(CommitPosition(consumer="c", offset=9)).offset == 9


def test_a_full_file_system_keeps_nothing_of_the_batch(tmp_path: Path) -> None:
    """The file system enforces a real limit on the file size, in another process."""
    make(tmp_path / "log", 20)
    pid = os.fork()
    if not pid:
        os._exit(_append_until_full(tmp_path / "log"))
    assert os.waitpid(pid, 0)[1] == 0
    with LogReader(tmp_path / "log") as reader:
        count = reader.next_offset
    assert count > 20
    assert_sound(tmp_path / "log", count)


def _append_until_full(folder: Path) -> int:
    import resource
    import signal

    try:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        log = Log(folder)
        acknowledged = 20
        try:
            for _ in range(100):
                fill(log, 7)
                acknowledged = log.next_offset
        except StoreError:
            return 0 if log.next_offset == acknowledged else 1
    except BaseException:
        return 2
    return 3


def test_a_full_disk_at_a_roll_over_leaks_no_descriptor_and_breaks_no_reader(
    tmp_path: Path, files: FailingDisk
) -> None:
    with Log.create(tmp_path / "log", "s", StreamOptions(segment_bytes=SEGMENT_BYTES_MIN), files=files) as log:
        log.append([bytes(SEGMENT_BYTES_MIN // 2)])
        opened = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            # The first write that succeeds is the seal, which overwrites another header.
            files.fail["write"] = (1, FULL)
            with pytest.raises(DiskFull):
                log.append([bytes(SEGMENT_BYTES_MIN)])
        assert len(list(Path("/proc/self/fd").iterdir())) == opened
        with LogReader(log.folder) as reader:
            assert reader.next_offset == 1
        files.fail.clear()
        assert log.append([bytes(SEGMENT_BYTES_MIN)]).first == 1


@pytest.mark.parametrize(("operation", "successes"), [("write", 0), ("write", 1), ("sync", 0), ("truncate", 1)])
def test_a_full_disk_leaves_a_log_that_skips_offsets_unchanged(
    tmp_path: Path, files: FailingDisk, operation: str, successes: int
) -> None:
    with Log.create(tmp_path / "log", "s", files=files) as log, LogReader(tmp_path / "log") as reader:
        before = {path.name: path.read_bytes() for path in log.folder.iterdir()}
        for _ in range(2):
            files.fail[operation] = (successes, FULL)
            with pytest.raises(DiskFull):
                log.skip_to(100)
            assert log.next_offset == reader.next_offset == 0
            assert {path.name: path.read_bytes() for path in log.folder.iterdir()} == before
        files.fail.clear()
        fill(log, 3)
        assert reader.next_offset == 3
        assert firsts_in(log.folder) == [0]
    assert_sound(tmp_path / "log", 3)
    assert check(tmp_path / "log", "s").findings == []


def test_a_log_can_skip_offsets_after_a_full_disk(tmp_path: Path, files: FailingDisk) -> None:
    with Log.create(tmp_path / "log", "s", files=files) as log:
        files.fail["write"] = (0, FULL)
        with pytest.raises(DiskFull):
            log.skip_to(100)
        files.fail.clear()
        log.skip_to(100)
        assert log.append([b"x"]).first == 100
    with Log(tmp_path / "log") as again:
        assert (again.next_offset, again.read(100).records[0].data) == (101, b"x")
        assert again.append([b"y"]).first == 101


def test_a_failed_seal_of_an_empty_segment_stops_the_log_until_it_is_reopened(
    tmp_path: Path, files: FailingDisk
) -> None:
    with Log.create(tmp_path / "log", "s", files=files) as log:
        files.fail["sync"] = (1, BROKEN)
        with pytest.raises(StoreError):
            log.skip_to(100)
        files.fail.clear()
        with pytest.raises(LogFailed):
            log.append([b"x"])
    with Log(tmp_path / "log") as again:
        assert again.append([b"x"]).first == again.next_offset - 1
        assert again.read(again.next_offset - 1).records[0].data == b"x"


def test_a_trim_that_failed_on_a_full_disk_can_be_repeated(tmp_path: Path, files: FailingDisk) -> None:
    with Log.create(tmp_path / "log", "s", StreamOptions(segment_bytes=SEGMENT_BYTES_MIN), files=files) as log:
        for _ in range(3):
            log.append([bytes(SEGMENT_BYTES_MIN)])
        files.fail["write"] = (0, FULL)
        with pytest.raises(DiskFull):
            trim(log, [], TrimRequest(before=2), 0)
        assert log.first_offset == 0
        files.fail.clear()
        assert trim(log, [], TrimRequest(before=2), 0).removed_segments == 2
        assert firsts_in(log.folder) == [2]


def test_leftovers_of_a_killed_drop_are_removed_on_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(FileStreams(tmp_path)) as streams, monkeypatch.context() as killed:
        streams.create("s")
        killed.setattr(shutil, "rmtree", lambda *_, **__: None)
        streams.drop("s")
        assert list((tmp_path / "trash").iterdir())
    FileStreams(tmp_path).close()
    assert not list((tmp_path / "trash").iterdir())


def test_a_log_whose_creation_failed_does_not_exist(tmp_path: Path, files: FailingDisk) -> None:
    """A migration that resumes after a kill would take such a log for its own."""
    files.fail["rename"] = (1, BROKEN)
    with pytest.raises(StoreError):
        Log.create(tmp_path / "log", "s", first=100, files=files)
    assert not (tmp_path / "log" / STREAM).exists()
    with Log.create(tmp_path / "log", "s", first=100) as log:
        assert log.next_offset == 100


def test_a_copy_of_a_log_with_a_missing_tail_reuses_no_offset(tmp_path: Path) -> None:
    with Log.create(tmp_path / "log", "s", StreamOptions(segment_bytes=SEGMENT_BYTES_MIN)) as log:
        for _ in range(4):
            log.append([bytes(SEGMENT_BYTES_MIN)])
    for first in (2, 3):
        (tmp_path / "log" / file_name(first)).unlink()
    assert copy_log(tmp_path / "log", tmp_path / "copy") == LogCopy(2)
    with Log(tmp_path / "copy") as copy:
        assert copy.append([b"new"]).first == 4


def test_new_folders_survive_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent of every new folder is fsynced, including the one that holds the data folder."""
    synced: set[int] = set()
    real = os.fsync

    def record_fsync(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr(os, "fsync", record_fsync)
    store, _ = open_served(Settings(data=str(tmp_path / "new" / "data")))
    store.close()
    assert {path.stat().st_ino for path in (tmp_path, tmp_path / "new")} <= synced
    synced.clear()
    FileStreams(tmp_path / "other" / "streams").close()
    assert {path.stat().st_ino for path in (tmp_path, tmp_path / "other", tmp_path / "other" / "streams")} <= synced
