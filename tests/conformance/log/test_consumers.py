"""Consumers have durable positions that move back only with force, and a lag."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import (
    BatchTooLarge,
    InvalidInput,
    InvalidName,
    OffsetBeyondEnd,
    OffsetTrimmed,
    PositionMovesBack,
    UnknownConsumer,
)
from penstock.core.model import DAY_MS
from penstock.log.interface import Streams
from penstock.log.model import CONSUMERS_MAX
from tests.conformance.log.conftest import BIG_RECORD, StreamsUnderTest, numbered
from tests.conformance.support import Clock


def test_a_new_consumer_starts_at_the_first_retained_record(streams: Streams) -> None:
    for _ in range(12):
        streams.append("s", [BIG_RECORD])
    first = streams.trim("s", before=8, force=True).first
    assert streams.next("s", "new").records[0].offset == first > 0
    assert streams.consumer("s", "new").offset is None


def test_next_returns_the_records_after_the_position(streams: Streams) -> None:
    streams.append("s", numbered(0, 10))
    streams.commit("s", "c", 6)
    assert [record.offset for record in streams.next("s", "c").records] == [7, 8, 9]
    assert [record.offset for record in streams.next("s", "c").records] == [7, 8, 9]
    streams.commit("s", "c", 9)
    assert streams.next("s", "c").records == []


def test_a_position_moves_back_only_with_force(streams: Streams) -> None:
    streams.append("s", numbered(0, 10))
    streams.commit("s", "c", 6)
    with pytest.raises(PositionMovesBack) as refused:
        streams.commit("s", "c", 5)
    assert refused.value.committed == 6
    assert streams.commit("s", "c", 6).offset == 6
    assert streams.commit("s", "c", 2, force=True).offset == 2
    assert streams.commit("s", "c", -1, force=True).offset is None
    assert streams.next("s", "c").records[0].offset == 0


@pytest.mark.parametrize("offset", [10, 11, 2**40])
def test_an_offset_beyond_the_end_cannot_be_committed(streams: Streams, offset: int) -> None:
    streams.append("s", numbered(0, 10))
    with pytest.raises(OffsetBeyondEnd):
        streams.commit("s", "c", offset)
    with pytest.raises(InvalidInput):
        streams.commit("s", "c", -2)


def test_lag_is_the_number_of_retained_records_after_the_position(streams: Streams) -> None:
    streams.append("s", numbered(0, 10))
    assert streams.create_consumer("s", "c").lag == 10
    assert streams.commit("s", "c", 6).lag == 3
    streams.append("s", numbered(10, 5))
    assert [(each.name, each.lag) for each in streams.consumers("s")] == [("c", 8)]


def test_consumers_have_independent_positions(streams: Streams) -> None:
    streams.append("s", numbered(0, 4))
    streams.commit("s", "one", 3)
    assert len(streams.next("s", "two").records) == 4
    assert streams.next("s", "one").records == []


def test_a_consumer_without_a_name_gets_a_unique_one(streams: Streams) -> None:
    names = {streams.create_consumer("s").name for _ in range(20)}
    assert len(names) == 20
    assert names == {each.name for each in streams.consumers("s")}


def test_creating_a_consumer_twice_keeps_its_position(streams: Streams) -> None:
    streams.append("s", numbered(0, 4))
    streams.commit("s", "c", 2)
    assert streams.create_consumer("s", "c").offset == 2


def test_a_forgotten_consumer_starts_over(streams: Streams) -> None:
    streams.append("s", numbered(0, 4))
    streams.commit("s", "c", 2)
    streams.forget("s", "c")
    with pytest.raises(UnknownConsumer):
        streams.consumer("s", "c")
    with pytest.raises(UnknownConsumer):
        streams.forget("s", "c")
    assert streams.next("s", "c").records[0].offset == 0


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 256, "é"])
def test_a_bad_name_is_refused(streams: Streams, name: str) -> None:
    for verb in (
        lambda: streams.next("s", name),
        lambda: streams.commit("s", name, -1),
        lambda: streams.create_consumer("s", name),
    ):
        with pytest.raises(InvalidName):
            verb()


def test_a_name_generated_by_spark_is_accepted(streams: Streams) -> None:
    assert streams.commit("s", "spark:orders", -1, kind="pipeline").kind == "pipeline"


def test_concurrent_commits_of_many_threads_are_all_kept(shared: StreamsUnderTest, streams: Streams) -> None:
    streams.append("s", numbered(0, 40))

    def work(number: int) -> None:
        for offset in range(0, 40, 4):
            streams.commit("s", f"c{number:02}", min(39, offset + number % 4))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    streams.close()
    assert [each.offset for each in shared.open().consumers("s")] == [36 + number % 4 for number in range(16)]


def test_two_processes_do_not_overwrite_each_others_commits(shared: StreamsUnderTest, streams: Streams) -> None:
    other = shared.open()
    streams.append("s", numbered(0, 20))
    for offset in range(20):
        streams.commit("s", "one", offset)
        other.commit("s", "two", offset)
        assert other.consumer("s", "one").offset == streams.consumer("s", "two").offset == offset
    with pytest.raises(PositionMovesBack):
        other.commit("s", "one", 3)


def test_a_consumer_whose_records_were_trimmed_gets_an_error(streams: Streams) -> None:
    for _ in range(12):
        streams.append("s", [BIG_RECORD])
    streams.commit("s", "slow", 1)
    first = streams.trim("s", before=12, force=True).first
    with pytest.raises(OffsetTrimmed) as raised:
        streams.next("s", "slow")
    assert raised.value.first_offset == first
    streams.commit("s", "slow", first - 1)
    assert streams.next("s", "slow").records[0].offset == first


def test_an_inactive_consumer_is_expired_until_it_returns(streams: Streams, clock: Clock) -> None:
    streams.append("s", numbered(0, 3))
    streams.create_consumer("s", "c")
    clock.now += 7 * DAY_MS + 1
    assert streams.consumer("s", "c").expired
    streams.next("s", "c")
    assert not streams.consumer("s", "c").expired


def test_the_number_of_consumers_of_a_stream_is_limited(streams: Streams) -> None:
    streams.append("s", [b"x"])
    with ThreadPoolExecutor(64) as pool:
        list(pool.map(lambda number: streams.create_consumer("s", f"c{number}"), range(CONSUMERS_MAX)))
    with pytest.raises(BatchTooLarge):
        streams.create_consumer("s", "one-more")


@pytest.mark.parametrize("name", [".", ".."])
def test_a_consumer_name_cannot_be_a_relative_path(streams: Streams, name: str) -> None:
    """HTTP clients and proxies normalise paths, so requests for such a name would never arrive."""
    for attempt in (
        lambda: streams.create_consumer("s", name),
        lambda: streams.commit("s", name, -1),
        lambda: streams.next("s", name),
    ):
        with pytest.raises(InvalidName):
            attempt()
    with pytest.raises(UnknownConsumer):
        streams.forget("s", name)  # Version 0.1.0 accepted such names, so it must stay possible to remove one.
    assert streams.consumers("s") == []
