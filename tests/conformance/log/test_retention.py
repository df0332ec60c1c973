"""Retention removes whole segments, oldest first, and waits for the consumers that need them."""

from __future__ import annotations

import pytest

from penstock import OffsetTrimmed
from penstock.core.model import DAY_MS
from penstock.log.interface import Streams
from penstock.log.model import SegmentInfo, StreamOptions
from tests.conformance.log.conftest import BIG_RECORD, StreamsUnderTest
from tests.conformance.support import Clock

SEGMENT = 64 << 10


def fill(streams: Streams, name: str, options: StreamOptions, records: int = 20) -> None:
    streams.create(name, options)
    for _ in range(records):
        streams.append(name, [BIG_RECORD])


def test_without_limits_everything_is_kept(streams: Streams) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT))
    assert streams.trim("k").removed_segments == 0
    assert streams.show("k").first == 0


def test_the_oldest_segments_are_removed_when_the_stream_is_too_large(streams: Streams) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT, retention_bytes=2 * SEGMENT))
    trimmed = streams.trim("k")
    info = streams.show("k")
    assert trimmed.first == info.first > 0
    assert 2 * SEGMENT <= info.bytes <= 3 * SEGMENT
    assert streams.read("k").records[0].offset == info.first


def test_the_oldest_segments_are_removed_when_they_are_too_old(streams: Streams, clock: Clock) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT, retention_ms=DAY_MS), 8)
    clock.now += DAY_MS // 2
    streams.append("k", [BIG_RECORD] * 4)
    clock.now += DAY_MS // 2 + 1
    assert streams.trim("k").first == 8
    clock.now += DAY_MS
    assert streams.trim("k").first == 12, "including the active segment"
    assert streams.append("k", [b"next"]).first == 12


def test_reading_a_trimmed_offset_names_the_first_retained_one(streams: Streams) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT))
    first = streams.trim("k", before=9).first
    assert 0 < first <= 9
    with pytest.raises(OffsetTrimmed) as raised:
        streams.read("k", first - 1)
    assert (raised.value.offset, raised.value.first_offset) == (first - 1, first)


def test_other_processes_see_a_trim(shared: StreamsUnderTest, streams: Streams) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT))
    other = shared.open()
    assert other.read("k", 19).records
    first = streams.trim("k", before=9).first
    with pytest.raises(OffsetTrimmed):
        other.read("k", 0)
    assert other.read("k").records[0].offset == first


def test_retention_keeps_records_that_a_consumer_still_needs(streams: Streams) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT, retention_bytes=1))
    streams.commit("k", "slow", 8)
    trimmed = streams.trim("k")
    assert trimmed.held_by == "slow"
    assert trimmed.first <= 9
    assert streams.next("k", "slow").records[0].offset == 9


def test_a_consumer_that_has_read_nothing_keeps_everything(streams: Streams) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT, retention_bytes=1))
    streams.create_consumer("k", "new")
    assert streams.trim("k").removed_segments == 0


def test_a_forced_trim_ignores_consumers(streams: Streams) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT, retention_bytes=1))
    streams.create_consumer("k", "new")
    assert streams.trim("k", force=True).removed_segments > 0


def test_retention_does_not_wait_for_an_expired_consumer(streams: Streams, clock: Clock) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT, retention_bytes=1, consumer_expire_ms=DAY_MS))
    streams.create_consumer("k", "gone")
    assert streams.trim("k").held_by == "gone"
    clock.now += DAY_MS + 1
    assert streams.trim("k").removed_segments > 0


def test_a_pipeline_never_expires(streams: Streams, clock: Clock) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT, retention_bytes=1, consumer_expire_ms=DAY_MS))
    streams.create_consumer("k", "spark:lake", kind="pipeline")
    clock.now += 100 * DAY_MS
    assert streams.trim("k").held_by == "spark:lake"
    streams.forget("k", "spark:lake")
    assert streams.trim("k").removed_segments > 0


def test_the_hard_limit_applies_despite_consumers(streams: Streams) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT, retention_bytes=1, hold_bytes=3 * SEGMENT))
    streams.create_consumer("k", "slow")
    trimmed = streams.trim("k")
    assert trimmed.removed_segments > 0
    assert trimmed.held_by == "slow"
    assert streams.show("k").bytes <= 3 * SEGMENT


def test_the_archive_hook_sees_each_segment_first_and_can_keep_it(streams: Streams) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT, retention_bytes=1))
    seen: list[SegmentInfo] = []

    def archive(segment: SegmentInfo) -> bool:
        assert streams.read("k", segment.first, limit=1).records[0].offset == segment.first
        seen.append(segment)
        return len(seen) < 3

    trimmed = streams.trim("k", archive=archive)
    assert (trimmed.removed_segments, trimmed.held_by) == (2, "archive")
    assert trimmed.first == seen[2].first
    assert all(segment.sealed for segment in seen)


def test_the_first_retained_offset_survives_reopening(shared: StreamsUnderTest, streams: Streams) -> None:
    fill(streams, "k", StreamOptions(segment_bytes=SEGMENT))
    first = streams.trim("k", before=9).first
    streams.close()
    again = shared.open()
    assert again.show("k").first == first
    assert again.append("k", [b"x"]).first == 20
