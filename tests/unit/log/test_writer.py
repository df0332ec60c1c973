"""The single writer: locking, group commit for threads and coroutines, and encoded records."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from penstock import BatchTooLarge, CorruptRecord, InvalidInput, PayloadTooLarge, StoreBusy, StoreClosed
from penstock.log.active_segment import ActiveSegment
from penstock.log.aio import AsyncStreams
from penstock.log.consumers import FILE, CommitPosition, Consumers
from penstock.log.files import DISK, Files
from penstock.log.manifest import load_manifest
from penstock.log.model import AppendOutcome
from penstock.log.reader import LogReader
from penstock.log.record import encode, encode_event
from penstock.log.streams import FileStreams
from penstock.log.writer import CHECKPOINT_MS, Log
from penstock.server.log_waiters import LogWaiters
from tests.conformance.support import Clock
from tests.unit.log.support import SMALL, fill, make, payload, read_all, segment_files


class GatedDisk(Files):
    """A disk that can block fsyncs, and counts them."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()
        self.syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        self.arrived.set()
        assert self.gate.wait(60)
        super().sync(fd)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "log", 20)


@pytest.fixture
def gated() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
def log(folder: Path, gated: GatedDisk) -> Iterator[Log]:
    with Log(folder, files=gated, clock=Clock()) as log:
        yield log


def test_a_second_writer_is_refused(log: Log) -> None:
    with pytest.raises(StoreBusy):
        Log(log.folder)
    log.close()
    Log(log.folder).close()


def test_a_second_writer_can_wait_for_the_first(log: Log) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Log, log.folder, wait=True)
        fill(log, 5)
        log.close()
        with waiting.result(60) as second:
            assert second.next_offset == 25


def test_the_lock_ends_with_the_process_that_holds_it(folder: Path) -> None:
    pid = os.fork()
    if not pid:
        Log(folder)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    Log(folder).close()


def test_a_child_cannot_append_to_its_parents_log(log: Log) -> None:
    pid = os.fork()
    if not pid:
        try:
            log.append([b"from the child"])
        except StoreClosed:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    fill(log, 5)
    with pytest.raises(StoreBusy):
        Log(log.folder)
    with LogReader(log.folder) as reader:
        assert len(read_all(reader)[0]) == 25


def test_waiting_threads_share_one_fsync(log: Log, gated: GatedDisk) -> None:
    gated.gate.clear()
    gated.arrived.clear()
    before = gated.syncs
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(log.append, [b"first"])
        assert gated.arrived.wait(60)
        others = [pool.submit(log.append, [b"%d" % number]) for number in range(8)]
        while len(log._committer._lanes[0].waiting) < 8:
            pass
        assert log.next_offset == 20, "records that are not fsynced are not visible"
        gated.gate.set()
        assert first.result(60).first == 20
        assert sorted(each.result(60).first for each in others) == list(range(21, 29))
    assert gated.syncs - before == 2


def test_waiting_coroutines_share_one_fsync_without_blocking_the_loop(tmp_path: Path, gated: GatedDisk) -> None:
    async def main() -> None:
        streams = FileStreams(tmp_path / "streams", files=gated, clock=Clock())
        streams.create("s", SMALL)
        streams.append("s", [b"opened"])
        both = AsyncStreams(streams)
        gated.gate.clear()
        gated.arrived.clear()
        before = gated.syncs
        first = asyncio.create_task(both.append("s", [b"first"]))
        while not gated.arrived.is_set():
            await asyncio.sleep(0)
        others = [asyncio.create_task(both.append("s", [b"%d" % number])) for number in range(50)]
        bad = asyncio.create_task(both.append("s", [b"x" * (1 << 20)]))
        await asyncio.sleep(0)
        gated.gate.set()
        answers = await asyncio.gather(first, *others)
        assert [answer.first for answer in answers] == list(range(1, 52))
        with pytest.raises(PayloadTooLarge):
            await bad
        assert gated.syncs - before == 2
        assert len(streams.read("s").records) == 52
        await both.close()
        with pytest.raises(StoreClosed):
            await both.append("s", [b"late"])
        streams.close()

    asyncio.run(main())


def test_coroutines_and_threads_append_to_one_stream_and_roll_over(tmp_path: Path) -> None:
    async def main() -> None:
        streams = FileStreams(tmp_path / "streams")
        streams.create("s", SMALL)
        both = AsyncStreams(streams)
        data = b"x" * 3_000
        tasks = [both.append("s", [data]) for _ in range(100)]
        tasks += [both.call(streams.append, "s", [data]) for _ in range(100)]
        answers: list[AppendOutcome] = await asyncio.gather(*tasks)
        assert sorted(answer.first for answer in answers) == list(range(200))
        assert streams.show("s").segments > 5
        await both.close()
        streams.close()

    asyncio.run(main())


def test_a_coroutine_waits_for_records_of_this_process_and_of_others(tmp_path: Path) -> None:
    async def main() -> None:
        ours, other = FileStreams(tmp_path / "streams"), FileStreams(tmp_path / "streams")
        ours.create("s", SMALL)
        for looked_at in (ours, other):
            end = ours.append("s", [b"x"]).last + 1
            waiters = LogWaiters(looked_at, asyncio.to_thread)
            waiting = asyncio.create_task(waiters.wait("s", end, 3_600))
            await asyncio.sleep(0)
            await asyncio.to_thread(ours.append, "s", [b"y"])
            await waiting
            waiters.close()
        ours.close()
        other.close()

    asyncio.run(main())


def test_encoded_records_are_copied_verbatim(log: Log) -> None:
    events = [encode_event(3, 77, b"fields", b"body"), encode_event(4, 78, b"", b"")]
    data = b"".join(events) + encode([b"user"], 79)[0]
    assert log.append_encoded(data) == AppendOutcome(20, 22, 79)
    records = log.read(20).records
    assert [(each.kind, each.time_ms, each.field_bytes, each.data) for each in records] == [
        (3, 77, 6, b"fieldsbody"),
        (4, 78, 0, b""),
        (0, 79, 0, b"user"),
    ]
    ends = log.segment_of(20).ends(20, 23)
    assert log.segment_of(20).path.read_bytes()[ends[0] : ends[-1]] == data


def test_partial_records_cannot_be_copied(log: Log) -> None:
    data = encode([b"one"], 1)[0]
    for bad in (b"", data[:-1], data + b"\0"):
        with pytest.raises(InvalidInput):
            log.append_encoded(bad)
    with pytest.raises(InvalidInput):
        log.append_encoded(data, [len(data) - 1])
    with pytest.raises(BatchTooLarge):
        log.append_encoded(bytes(33 << 20))
    assert log.next_offset == 20


def test_the_manifest_is_updated_at_intervals(tmp_path: Path) -> None:
    clock = Clock()
    with Log.create(tmp_path / "log", "s", SMALL, clock=clock) as log:
        fill(log, 10)
        assert load_manifest(log.folder, log.identity.uid).next == 0  # type: ignore[union-attr]
        clock.advance(CHECKPOINT_MS)
        fill(log, 10)
        assert load_manifest(log.folder, log.identity.uid).next == 20  # type: ignore[union-attr]


def test_a_closed_log_raises_store_closed(log: Log) -> None:
    log.close()
    with pytest.raises(StoreClosed):
        log.append([payload(20)])
    with pytest.raises(StoreClosed):
        log.read(0)
    log.close()


def test_opening_a_log_does_not_disturb_a_commit_in_progress(folder: Path) -> None:
    being_replaced = folder / "consumers.new"
    being_replaced.write_bytes(b"by another process, at this moment")
    (folder / "manifest.new").write_bytes(b"left over")
    Log(folder).close()
    assert being_replaced.exists()
    assert not (folder / "manifest.new").exists()


def test_a_record_can_be_committed_before_its_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = FileStreams(tmp_path / "streams")
    streams.create("s")
    streams.append("s", [b"0"])
    published, go_on, publish = threading.Event(), threading.Event(), ActiveSegment.publish

    def publish_and_wait(self: ActiveSegment, *arguments: Any) -> None:
        publish(self, *arguments)
        published.set()
        assert go_on.wait(60)

    monkeypatch.setattr(ActiveSegment, "publish", publish_and_wait)
    with ThreadPoolExecutor(3) as pool:
        appending = pool.submit(streams.append, "s", [b"1"])
        assert published.wait(60)
        seen = LogReader(streams.folder("s")).read(0).records
        committing = pool.submit(streams.commit, "s", "c", seen[-1].offset)
        reading = pool.submit(streams.read, "s", seen[-1].offset + 1)
        wait([committing, reading], 0.2)
        go_on.set()
        assert committing.result(60).offset == seen[-1].offset == 1
        assert reading.result(60).records == []
        appending.result(60)
    streams.close()


def test_a_read_of_a_removed_segment_does_not_affect_the_writer(tmp_path: Path) -> None:
    """The segment is trimmed after a read has chosen it and before the read opens it."""
    with Log(make(tmp_path / "log", 300)) as log:
        active, oldest = log.active, segment_files(log.folder)[0]
        assert oldest != segment_files(log.folder)[-1]
        oldest.unlink()
        with log.turn:
            group = log._write([log.request([b"written, not synced"])])
            with pytest.raises(CorruptRecord):
                log.segment_of(0)
            log.commit(group)
        assert log.active is active
        assert log.read(log.next_offset - 1).records[0].data == b"written, not synced"
    with Log(log.folder) as again:
        assert again.next_offset == log.next_offset


def test_a_commit_of_a_position_does_not_trust_the_cache(tmp_path: Path) -> None:
    """Inode, time and size of the file can be the same even though another process has replaced it twice."""
    folder = make(tmp_path / "log", 20)
    ours, theirs = (Consumers(folder, "s", files=DISK, clock=Clock()) for _ in range(2))
    ours.submit(CommitPosition(consumer="a", offset=1))
    known = dict(ours.all())
    theirs.submit(CommitPosition(consumer="b", offset=9))
    status = (folder / FILE).stat()
    ours._known, ours._stamp = known, (status.st_ino, status.st_mtime_ns, status.st_size)
    ours.submit(CommitPosition(consumer="a", offset=2))
    assert {name: each.offset for name, each in theirs.all().items()} == {"a": 2, "b": 9}
