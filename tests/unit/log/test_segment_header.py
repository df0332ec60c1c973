"""A segment header names its stream and offset. Segments of 0.1.0, which have no header, are still read."""

from __future__ import annotations

import shutil
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest

from penstock import CannotOpen
from penstock.errors import LogFailed, PenstockError
from penstock.log.arrow import batches
from penstock.log.check import check, repair
from penstock.log.check_report import DamageKind
from penstock.log.consumers import CommitPosition, Consumers
from penstock.log.files import DISK
from penstock.log.manifest import load_identity, save
from penstock.log.model import StreamOptions
from penstock.log.reader import LogReader
from penstock.log.record import encode, encode_event
from penstock.log.segment import INDEX, LOG, SUMS, file_name, firsts_in
from penstock.log.streams import FileStreams
from penstock.log.writer import Log
from tests.conformance.support import START_MS, Clock
from tests.unit.log.support import SMALL, flip, segment_files, write_as_0_1_0

COUNT = 200
ALL = (LOG, INDEX, SUMS)


def payload(offset: int) -> bytes:
    """Return a payload of fixed size, so that the records of one segment fit the index of another."""
    return b"%05d" % offset + bytes(995)


@pytest.fixture(scope="module")
def intact_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "log"
    with Log.create(folder, "s", SMALL, clock=Clock()) as log:
        log.append([payload(offset) for offset in range(COUNT)][:64])
        for first in range(64, COUNT, 8):
            log.append([payload(offset) for offset in range(first, first + 8)])
    return folder


@pytest.fixture
def folder(intact_log: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact_log, tmp_path / "log"))


def served(log: LogReader) -> dict[int, bytes]:
    found = {}
    for offset in range(log.first_offset, log.next_offset):
        try:
            found |= {record.offset: record.data for record in log.read(offset, 1).records}
        except PenstockError:
            continue
    return found


def columns(log: LogReader) -> dict[int, bytes]:
    found = {}
    for offset in range(log.first_offset, log.next_offset):
        with suppress(PenstockError):
            for batch in batches(log, offset, offset + 1):
                found |= dict(zip(batch["offset"].to_pylist(), batch["data"].to_pylist(), strict=True))
    return found


def assert_true(found: dict[int, bytes]) -> None:
    assert [offset for offset, data in found.items() if data != payload(offset)] == []


def swap(folder: Path, suffixes: tuple[str, ...], one: int = 0, two: int = 1) -> None:
    firsts = firsts_in(folder)
    for suffix in suffixes:
        low, high = (folder / file_name(firsts[place], suffix) for place in (one, two))
        low.rename(folder / "between")
        high.rename(low)
        (folder / "between").rename(high)


@pytest.mark.parametrize("suffixes", [(LOG,), ALL], ids=["segments only", "with indexes and sums"])
@pytest.mark.parametrize("two", [1, -1], ids=["closed", "active"])
def test_swapped_segments_serve_nothing_wrong_and_are_put_back(
    folder: Path, suffixes: tuple[str, ...], two: int
) -> None:
    swap(folder, suffixes, 0, two)
    troubles = [finding.trouble for finding in check(folder, "s").findings]
    with LogReader(folder) as log:
        assert_true(served(log))
    assert troubles.count(DamageKind.MISPLACED) == 2
    with Log(folder) as log:
        found = served(log)
        assert_true(found)
        assert len(found) == COUNT
        assert log.append([payload(COUNT)]).first == COUNT
    assert repair(folder, "s").ok
    assert check(folder, "s").findings == []


@pytest.mark.parametrize("suffixes", [(LOG,), ALL], ids=["segment only", "with index and sums"])
@pytest.mark.parametrize("place", ["of another", "between two", "after the last"])
def test_a_copy_of_a_segment_under_another_offset_is_set_aside(
    folder: Path, suffixes: tuple[str, ...], place: str
) -> None:
    firsts = firsts_in(folder)
    target = {"of another": firsts[1], "between two": firsts[1] + 7, "after the last": COUNT + 100}[place]
    for suffix in suffixes:
        shutil.copy(folder / file_name(0, suffix), folder / file_name(target, suffix))
    troubles = [finding.trouble for finding in check(folder, "s").findings]
    with Log(folder) as log:
        found = served(log)
        assert_true(found)
        assert DamageKind.MISPLACED in troubles
        overwritten = set(range(firsts[1], firsts[2])) if place == "of another" else set()
        assert set(found) == set(range(COUNT)) - overwritten
        assert log.next_offset == COUNT
    assert list(folder.glob("*.aside"))
    assert repair(folder, "s").ok


@pytest.mark.parametrize("kind", [Log, LogReader], ids=["writer", "reader"])
@pytest.mark.parametrize("place", [1, -1], ids=["closed", "active"])
def test_a_segment_overwritten_while_it_is_open_is_not_served(folder: Path, kind: type[LogReader], place: int) -> None:
    first = firsts_in(folder)[place]
    with kind(folder) as log:
        assert len(served(log)) == COUNT
        own = {suffix: (folder / file_name(first, suffix)).read_bytes() for suffix in ALL}
        count = log.segment_of(first).count
        for suffix in ALL:
            shutil.copy(folder / file_name(0, suffix), folder / file_name(first, suffix))
        found = served(log)
        assert_true(found)
        assert sorted(found) == sorted(set(range(COUNT)) - set(range(first, first + count)))
        assert_true(columns(log))
        if kind is Log:
            for suffix, data in own.items():
                (folder / file_name(first, suffix)).write_bytes(data)
            assert len(served(log)) == len(columns(log)) == COUNT


def test_a_segment_of_another_stream_is_not_served(folder: Path, tmp_path: Path) -> None:
    with Log.create(tmp_path / "other", "s", SMALL, clock=Clock()) as log:
        log.append([b"other" + bytes(995)] * 64)
    for suffix in ALL:
        shutil.copy(tmp_path / "other" / file_name(0, suffix), folder / file_name(0, suffix))
    with LogReader(folder) as reader:
        found = served(reader)
    assert_true(found)
    assert sorted(found) == list(range(64, COUNT))


@pytest.mark.parametrize("copy", [0, 1])
def test_a_flipped_bit_in_a_header_costs_nothing_and_is_repaired(folder: Path, copy: int) -> None:
    for path in segment_files(folder):
        flip(path, 8 * (32 * copy + 12))
    with LogReader(folder) as log:
        assert len(served(log)) == COUNT
    assert {finding.trouble for finding in check(folder, "s").findings} == {DamageKind.HEAD}
    assert repair(folder, "s").ok
    assert check(folder, "s").findings == []


def test_an_unreadable_header_costs_no_record(folder: Path) -> None:
    from penstock.log.segment_header import HEAD_BYTES, head_of

    for path in segment_files(folder):
        path.write_bytes(bytes(HEAD_BYTES) + path.read_bytes()[HEAD_BYTES:])
    with LogReader(folder) as log:
        found = served(log)
    assert_true(found)
    assert len(found) == COUNT
    assert repair(folder, "s").ok
    assert segment_files(folder)[0].read_bytes()[:HEAD_BYTES] == head_of(load_identity(folder).uid, 0)


@pytest.mark.parametrize("name", ["manifest", "stream"])
def test_the_manifest_or_identity_of_another_stream_costs_no_record(folder: Path, tmp_path: Path, name: str) -> None:
    with Log.create(tmp_path / "other", "s", SMALL, first=COUNT - 5, clock=Clock()) as log:
        log.append([b"other"])
    shutil.copy(tmp_path / "other" / name, folder / name)
    assert not check(folder, "s").ok
    assert repair(folder, "s").ok
    with Log(folder) as log:
        found = served(log)
        assert_true(found)
        assert len(found) == COUNT


@pytest.mark.parametrize("gone", [("manifest",), ("manifest", "manifest.copy")], ids=["one copy", "both copies"])
def test_no_offset_is_reused_after_the_last_segment_and_the_manifest_are_lost(
    folder: Path, gone: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    Consumers(folder, "s", files=DISK, clock=Clock()).submit(CommitPosition(consumer="c", offset=COUNT - 1))
    last = firsts_in(folder)[-1]
    for name in (*(file_name(last, suffix) for suffix in ALL), *gone):
        (folder / name).unlink()
    with Log(folder) as log:
        assert log.append([payload(COUNT)]).first == COUNT
        assert [(each.first, each.last) for each in log.findings if each.trouble is DamageKind.LOST] == [
            (last, COUNT - 1)
        ]
    assert f"records {last} to {COUNT - 1} are gone" in caplog.text


def test_an_append_to_a_removed_segment_is_not_acknowledged(folder: Path) -> None:
    with Log(folder) as log:
        segment_files(folder)[-1].unlink()
        with pytest.raises(LogFailed, match="was removed"):
            log.append([b"lost"])


def write_old_stream(folder: Path) -> None:
    write_as_0_1_0(folder, [encode([payload(each) for each in part], START_MS) for part in (range(60), range(60, 80))])


@pytest.mark.parametrize("missing_part", ["nothing", "index", "manifest"])
def test_a_stream_of_0_1_0_is_read_and_continued_with_headers(tmp_path: Path, missing_part: str) -> None:
    from penstock.log.segment_header import HEAD_BYTES

    write_old_stream(tmp_path / "log")
    if missing_part == "index":
        for path in segment_files(tmp_path / "log", INDEX):
            path.unlink()
    elif missing_part == "manifest":
        (tmp_path / "log" / "manifest").unlink()
    with LogReader(tmp_path / "log") as reader:
        assert len(served(reader)) == 80
        with Log(tmp_path / "log", clock=Clock()) as log:
            assert load_identity(log.folder).version == 1, "0.1.0 can read it until the first segment with a header"
            for first in range(80, COUNT, 10):
                log.append([payload(offset) for offset in range(first, first + 10)])
            identity = load_identity(log.folder)
            assert (identity.version, identity.headed_from) == (2, firsts_in(log.folder)[2])
            assert [identity.start_of(first) for first in firsts_in(log.folder)][:3] == [0, 0, HEAD_BYTES]
        found = served(reader)
        assert_true(found)
        assert len(found) == COUNT
    assert check(tmp_path / "log", "s").findings == []


def test_a_segment_with_a_header_in_place_of_one_without_is_misplaced(tmp_path: Path) -> None:
    write_old_stream(tmp_path / "log")
    with Log(tmp_path / "log", clock=Clock()) as log:
        for first in range(80, COUNT, 10):
            log.append([payload(offset) for offset in range(first, first + 10)])
    swap(tmp_path / "log", ALL, 0, 2)
    with LogReader(tmp_path / "log") as reader:
        found = served(reader)
        assert_true(found)
        assert len(found) == COUNT


def test_a_newer_format_is_refused(folder: Path) -> None:
    save(DISK, folder / "stream", msgspec.structs.replace(load_identity(folder), version=3))
    with pytest.raises(CannotOpen, match="newer version"):
        Log(folder)


def test_configuring_a_stream_keeps_its_identity(tmp_path: Path) -> None:
    with closing(FileStreams(tmp_path)) as streams:
        streams.create("s", SMALL)
        streams.configure("s", StreamOptions(retention_ms=1_000))
        identity = load_identity(streams.folder("s"))
    assert (identity.version, identity.headed_from) == (2, 0)


def test_a_header_inside_the_first_record_of_an_old_segment_is_payload() -> None:
    from penstock.log.segment_header import head_of, is_misplaced

    record = encode_event(0, 1_700_000_000_000, b"", b"x" * 8 + head_of(1, 2)[:32])
    view = memoryview(record + encode_event(0, 1_700_000_000_001, b"", b"good"))
    assert not is_misplaced(view, (77, 0), 0)
    assert is_misplaced(memoryview(head_of(1, 2) + record), (77, 0), 0)
