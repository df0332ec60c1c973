"""Appended records are read back intact and in order, from any retained offset."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import BatchTooLarge, InvalidInput, OffsetBeyondEnd, PayloadTooLarge, WrongType
from penstock.core.model import Content
from penstock.log.interface import Streams
from penstock.log.model import BATCH_RECORDS_MAX, AppendOutcome, NewRecord, StreamOptions
from tests.conformance.log.conftest import BIG_RECORD, StreamsUnderTest, numbered
from tests.conformance.support import Clock


def test_offsets_are_dense_and_in_append_order(streams: Streams) -> None:
    assert (streams.append("s", numbered(0, 3)).first, streams.append("s", numbered(3, 2)).last) == (0, 4)
    records = streams.read("s").records
    assert [(record.offset, record.data) for record in records] == list(enumerate(numbered(0, 5)))


@pytest.mark.parametrize("data", [b"", b"\x00" * 50, bytes(range(256)), "käse".encode(), b"x" * (512 << 10)])
def test_bytes_are_returned_unchanged(streams: Streams, data: bytes) -> None:
    streams.append("s", [data, data])
    assert [record.data for record in streams.read("s", bytes_max=2 << 20).records] == [data, data]


def test_a_record_keeps_its_content_type(streams: Streams) -> None:
    streams.append("s", [NewRecord(b"text", Content.TEXT), NewRecord(b"[1]", Content.JSON), b"\xff"])
    assert [record.content for record in streams.read("s").records] == [Content.TEXT, Content.JSON, Content.BYTES]


def test_append_times_never_go_back(streams: Streams, clock: Clock) -> None:
    first = streams.append("s", [b"a"]).time_ms
    clock.now -= 60_000
    streams.append("s", [b"b"])
    clock.now += 120_000
    streams.append("s", [b"c"])
    assert [record.time_ms - first for record in streams.read("s").records] == [0, 0, 60_000]


def test_the_next_page_starts_where_the_last_one_ended(streams: Streams) -> None:
    streams.append("s", numbered(0, 25))
    at, seen = 0, []
    while (page := streams.read("s", at, limit=10)).records:
        seen += [record.data for record in page.records]
        at = page.next
    assert seen == numbered(0, 25)
    assert at == 25


def test_a_page_is_limited_by_bytes_but_never_empty(streams: Streams) -> None:
    streams.append("s", [BIG_RECORD] * 3)
    assert len(streams.read("s", bytes_max=1).records) == 1
    assert len(streams.read("s", bytes_max=40_000).records) == 2


def test_reading_crosses_segments(streams: Streams) -> None:
    for number in range(20):
        streams.append("s", [b"%d " % number + BIG_RECORD])
    assert streams.show("s").segments > 3
    numbers = [int(record.data.split()[0]) for record in streams.read("s", 3, bytes_max=1 << 20).records]
    assert numbers == list(range(3, 20))


def test_every_record_can_be_read_by_its_offset(streams: Streams) -> None:
    for number in range(0, 300, 10):
        streams.append("s", [b"%d " % each + b"x" * 1000 for each in range(number, number + 10)])
    for offset in range(300):
        assert int(streams.read("s", offset, limit=1).records[0].data.split()[0]) == offset


def test_reading_at_the_end_is_empty_and_beyond_it_fails(streams: Streams) -> None:
    streams.append("s", numbered(0, 3))
    assert streams.read("s", 3).records == []
    with pytest.raises(OffsetBeyondEnd) as refused:
        streams.read("s", 4)
    assert refused.value.next_offset == 3


def test_another_process_reads_acknowledged_records(shared: StreamsUnderTest, streams: Streams) -> None:
    other = shared.open()
    for number in range(30):
        streams.append("s", [b"%d " % number + BIG_RECORD[:5_000]])
        assert other.next_offset("s") == number + 1
        assert int(other.read("s", number).records[0].data.split()[0]) == number


def test_an_invalid_record_is_refused_and_nothing_is_appended(streams: Streams) -> None:
    for bad, error in (
        ([], InvalidInput),
        (b"abc", WrongType),
        (["text"], WrongType),
        ([b"fine", None], WrongType),
        ([NewRecord("text")], WrongType),  # type: ignore[arg-type]
        ([bytearray(b"x")], WrongType),
        ([b"x" * ((512 << 10) + 1)], PayloadTooLarge),
        ([b""] * (BATCH_RECORDS_MAX + 1), BatchTooLarge),
        ([b"x" * (512 << 10)] * 65, BatchTooLarge),
    ):
        with pytest.raises(error):
            streams.append("s", bad)  # type: ignore[arg-type]
    assert streams.show("s").next == 0


@pytest.mark.parametrize("arguments", [{"offset": -2}, {"limit": 0}, {"limit": 10**9}, {"bytes_max": 0}])
def test_a_read_outside_the_limits_is_refused(streams: Streams, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        streams.read("s", **arguments)


def test_the_maximum_record_size_is_an_option(streams: Streams) -> None:
    streams.create("large", StreamOptions(record_bytes=2 << 20))
    streams.append("large", [b"x" * (2 << 20)])
    assert len(streams.read("large").records[0].data) == 2 << 20


def test_a_batch_larger_than_a_segment_is_not_split(streams: Streams) -> None:
    streams.append("s", [b"before"])
    assert streams.append("s", [BIG_RECORD] * 10) == AppendOutcome(1, 10, streams.read("s", 1).records[0].time_ms)
    streams.append("s", [b"after"])
    assert [len(record.data) for record in streams.read("s").records] == [6] + [16_000] * 10 + [5]


def test_appends_that_share_a_commit_get_separate_results(streams: Streams) -> None:
    outcomes = streams.append_many("s", [numbered(0, 2), [BIG_RECORD] * 6, numbered(8, 1)])
    assert [(each.first, each.last) for each in outcomes if isinstance(each, AppendOutcome)] == [(0, 1), (2, 7), (8, 8)]


def test_concurrent_appends_get_distinct_offsets(streams: Streams) -> None:
    def append(number: int) -> list[tuple[int, bytes]]:
        data = [b"%d-%d" % (number, each) for each in range(3)]
        appended = streams.append("s", data)
        return list(zip(range(appended.first, appended.last + 1), data, strict=True))

    with ThreadPoolExecutor(16) as pool:
        expected = sorted(pair for pairs in pool.map(append, range(100)) for pair in pairs)
    assert [(record.offset, record.data) for record in streams.read("s").records] == expected
