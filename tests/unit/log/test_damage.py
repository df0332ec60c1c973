"""Damage on disk is found, located and never served, and a repair keeps every intact record in place."""

from __future__ import annotations

import asyncio
import random
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from penstock import CorruptRecord
from penstock.errors import Damaged
from penstock.log.check import check, repair
from penstock.log.check_report import DamageKind
from penstock.log.model import SEGMENT_BYTES_MIN, StreamOptions
from penstock.log.reader import LogReader
from penstock.log.segment import INDEX, SUMS
from penstock.log.segment_header import HEAD_BYTES
from penstock.log.streams import FileStreams
from penstock.log.writer import Log
from penstock.server.stream_service import StreamService
from tests.unit.log.support import (
    assert_true,
    flip,
    index_of,
    log_of,
    make,
    payload,
    read_all,
    segment_files,
)

COUNT = 500


@pytest.fixture(scope="module")
def intact_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sound") / "log", COUNT)


@pytest.fixture
def folder(intact_log: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact_log, tmp_path / "log"))


def troubles(folder: Path) -> list[DamageKind]:
    return [finding.trouble for finding in check(folder, "s").findings]


def test_an_intact_log_has_no_findings(folder: Path) -> None:
    report = check(folder, "s")
    assert (report.findings, report.records, report.first, report.next) == ([], COUNT, 0, COUNT)
    assert report.segments == 3


def test_a_flipped_bit_in_a_record_is_located_and_never_served(folder: Path) -> None:
    flip(log_of(folder, 0), 8 * 5_000)
    with LogReader(folder) as log:
        served, damaged = read_all(log)
    (offset,) = damaged
    assert_true(served)
    assert len(served) == COUNT - 1
    (finding,) = check(folder, "s").findings
    assert (finding.trouble, finding.first, finding.segment) == (DamageKind.CORRUPT, offset, log_of(folder, 0).name)
    assert finding.position is not None
    assert finding.position <= 5_000 < finding.position + 500


def test_a_page_ends_before_a_damaged_record(folder: Path) -> None:
    flip(log_of(folder, 0), 8 * 5_000)
    with LogReader(folder) as log:
        page = log.read(0, 200)
        with pytest.raises(CorruptRecord) as raised:
            log.read(page.next)
        assert [record.offset for record in page.records] == list(range(page.next))
        assert (raised.value.offset, raised.value.stream) == (page.next, "s")
        assert log.read(page.next + 1).records[0].data == payload(page.next + 1)


@pytest.mark.parametrize("part", range(10))
def test_no_single_flipped_bit_serves_a_wrong_byte(intact_log: Path, tmp_path: Path, part: int) -> None:
    chance = random.Random(part)
    paths = [path.name for path in sorted(intact_log.iterdir()) if path.suffix in (".log", INDEX, SUMS)] + ["manifest"]
    sizes = [(intact_log / name).stat().st_size for name in paths]
    for number in range(100):
        folder = Path(shutil.copytree(intact_log, tmp_path / f"log{number}"))
        (name,) = chance.choices(paths, sizes)
        bit = chance.randrange(8 * (intact_log / name).stat().st_size)
        flip(folder / name, bit)
        with Log(folder) as log:
            served, damaged = read_all(log)
            assert_true(served)
            assert log.next_offset == COUNT
            assert len(served) + len(damaged) == COUNT
            assert len(damaged) == (name.endswith(".log") and bit >= 8 * HEAD_BYTES), f"{name}: {damaged}"
            assert log.append([payload(COUNT)]).first == COUNT
        shutil.rmtree(folder)


def test_a_flipped_bit_makes_arrow_reads_fail_too(folder: Path) -> None:
    from penstock.log.arrow import batches

    flip(log_of(folder, 0), 8 * 5_000)
    with LogReader(folder) as log:
        _, (offset,) = read_all(log)
        with pytest.raises(CorruptRecord) as raised:
            list(batches(log, 0))
        assert raised.value.offset == offset
        assert sum(batch.num_rows for batch in batches(log, offset + 1)) == COUNT - offset - 1


def test_repair_replaces_an_unrecoverable_record_with_a_marker(folder: Path) -> None:
    from penstock.log.arrow import batches

    flip(log_of(folder, 0), 8 * 5_000)
    with LogReader(folder) as log:
        _, (lost,) = read_all(log)
        report = repair(folder, "s")
        assert [(finding.trouble, finding.first, finding.repaired) for finding in report.findings] == [
            (DamageKind.CORRUPT, lost, True)
        ]
        assert report.ok
        for each in (log, LogReader(folder)):
            served, damaged = read_all(each)
            assert_true(served)
            assert (len(served), damaged) == (COUNT - 1, [])
            page = each.read(lost, 1)
            assert (page.records, page.next, page.lost) == ([], lost + 1, 1)
            assert sum(batch.num_rows for batch in batches(each, 0)) == COUNT - 1
    assert troubles(folder) == [DamageKind.GIVEN_UP]
    assert list(folder.glob("*.bad")), "the damaged bytes are kept in a file"


@pytest.mark.parametrize("field", [0, 4, 8, 16, 17, 20, 23])
@pytest.mark.parametrize("which", ["with its index", "without an index"])
def test_a_damaged_header_costs_only_its_record(folder: Path, field: int, which: str) -> None:
    with LogReader(folder) as log:
        place = log.segment_of(100).ends(100, 101)[0]
    flip(log_of(folder, 0), 8 * (place + field) + 1)
    if which == "without an index":
        index_of(folder, 0).unlink()
    with LogReader(folder) as log:
        served, damaged = read_all(log)
        assert_true(served)
        assert (len(served), damaged) == (COUNT - 1, [100])
    assert repair(folder, "s").ok
    with LogReader(folder) as log:
        served, damaged = read_all(log)
        assert_true(served)
        assert (len(served), damaged) == (COUNT - 1, [])


def test_a_lost_sector_is_confined_to_its_records(folder: Path) -> None:
    path = log_of(folder, 0)
    data = bytearray(path.read_bytes())
    data[8192:12288] = bytes(4096)
    path.write_bytes(data)
    for lose_index in (False, True):
        if lose_index:
            index_of(folder, 0).unlink()
        with LogReader(folder) as log:
            served, damaged = read_all(log)
            assert_true(served)
            assert damaged == list(range(damaged[0], damaged[-1] + 1))
            assert len(served) + len(damaged) == COUNT


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("what", ["missing", "empty", "short", "foreign", "swapped", "zeroed", "long"])
def test_a_wrong_index_is_rebuilt(folder: Path, tmp_path: Path, what: str, first: int) -> None:
    paths = segment_files(folder, INDEX)
    path = paths[first]
    data = path.read_bytes()
    match what:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "short":
            path.write_bytes(data[: len(data) // 2 + 1])
        case "foreign":
            other = make(tmp_path / "other", COUNT)
            path.write_bytes(segment_files(other, INDEX)[first].read_bytes())
        case "swapped":
            path.write_bytes(paths[(first + 1) % 3].read_bytes())
        case "zeroed":
            path.write_bytes(data[:64] + bytes(len(data) - 64))
        case "long":
            path.write_bytes(data + bytes(40))
    for kind in (LogReader, Log, LogReader):
        with kind(folder) as log:
            served, damaged = read_all(log)
            assert_true(served)
            assert (len(served), damaged) == (COUNT, [])
    assert repair(folder, "s").ok
    assert troubles(folder) == []


def test_missing_sums_only_make_bulk_reads_slower(folder: Path) -> None:
    from penstock.log.arrow import batches

    for path in segment_files(folder, SUMS):
        path.unlink()
    with LogReader(folder) as log:
        assert sum(batch.num_rows for batch in batches(log, 0)) == COUNT


def test_a_missing_segment_is_named_and_the_others_are_served(folder: Path) -> None:
    middle = segment_files(folder)[1]
    first, last = int(middle.stem), int(segment_files(folder)[2].stem) - 1
    for suffix in (".log", INDEX, SUMS):
        middle.with_suffix(suffix).unlink()
    with Log(folder) as log:
        assert [(each.trouble, each.first, each.last) for each in log.findings] == [(DamageKind.LOST, first, last)]
        served, damaged = read_all(log)
        assert_true(served)
        assert damaged == list(range(first, last + 1))
        assert log.next_offset == COUNT
    assert repair(folder, "s").ok
    with LogReader(folder) as log:
        served, damaged = read_all(log)
        assert_true(served)
        assert (len(served), damaged) == (COUNT - (last - first + 1), [])


def test_a_missing_first_segment_is_named(folder: Path) -> None:
    gone, kept = segment_files(folder)[:2]
    for suffix in (".log", INDEX, SUMS):
        gone.with_suffix(suffix).unlink()
    with Log(folder) as log:
        assert [(each.trouble, each.first, each.last) for each in log.findings] == [
            (DamageKind.LOST, 0, int(kept.stem) - 1)
        ]
    assert repair(folder, "s").ok
    with LogReader(folder) as log:
        assert log.first_offset == int(kept.stem)
        assert troubles(folder) == []


@pytest.mark.parametrize("with_index", [True, False])
def test_a_missing_last_segment_is_named_and_its_offsets_are_not_reused(folder: Path, with_index: bool) -> None:
    last = segment_files(folder)[-1]
    for suffix in [".log", SUMS] + [INDEX] * with_index:
        last.with_suffix(suffix).unlink()
    with Log(folder) as log:
        assert [(each.trouble, each.first, each.last) for each in log.findings if each.loses_records] == [
            (DamageKind.LOST, int(last.stem), COUNT - 1)
        ]
        assert log.append([payload(COUNT)]).first == COUNT
        served, damaged = read_all(log)
        assert_true(served)
        assert damaged == list(range(int(last.stem), COUNT))
    assert repair(folder, "s").ok


def test_the_loss_of_every_segment_is_named(folder: Path) -> None:
    for suffix in (".log", INDEX, SUMS):
        for path in segment_files(folder, suffix):
            path.unlink()
    with Log(folder) as log:
        assert [(each.trouble, each.first, each.last) for each in log.findings] == [(DamageKind.LOST, 0, COUNT - 1)]
        assert log.append([payload(COUNT)]).first == COUNT


def test_a_damaged_manifest_costs_no_record(folder: Path) -> None:
    (folder / "manifest").write_bytes(b"{}")
    assert troubles(folder) == [DamageKind.MANIFEST]
    with Log(folder) as log:
        served, damaged = read_all(log)
        assert (len(served), damaged) == (COUNT, [])
    assert troubles(folder) == []


def test_a_damaged_identity_can_be_repaired(folder: Path) -> None:
    (folder / "stream").write_bytes(b"nonsense\n")
    assert troubles(folder) == [DamageKind.IDENTITY]
    assert repair(folder, "s").ok
    with Log(folder) as log:
        served, damaged = read_all(log)
        assert_true(served)
        assert (len(served), damaged) == (COUNT, [])


def test_a_damaged_stream_does_not_affect_listing_or_trimming_others(tmp_path: Path) -> None:
    def trim(streams: FileStreams) -> None:
        desk = StreamService(streams)

        async def main() -> None:
            await desk.trim_all()
            await desk.close()

        asyncio.run(main())

    options = StreamOptions(segment_bytes=SEGMENT_BYTES_MIN, retention_bytes=1)
    with closing(FileStreams(tmp_path)) as streams:
        for name in ("a", "b", "c"):
            streams.create(name, options)
            for _ in range(20):
                streams.append(name, [b"x" * 100_000])
    (streams.folder("a") / "stream").write_bytes(b"damaged")
    with closing(FileStreams(tmp_path)) as streams:
        assert [info.name for info in streams.list_streams()] == ["b", "c"]
        assert [info.name for info in streams.list_streams(limit=1)] == ["b"]
        with pytest.raises(Damaged):
            streams.show("a")
        trim(streams)
    with closing(FileStreams(tmp_path)) as streams:
        assert all(streams.show(name).first > 0 for name in ("b", "c"))
