"""Streams are created, shown, configured and dropped."""

from __future__ import annotations

import pytest

from penstock import InvalidName, StreamExists, StreamInUse, UnknownStream
from penstock.log.interface import Streams
from penstock.log.model import StreamOptions
from tests.conformance.log.conftest import SMALL, StreamsUnderTest, numbered


def test_a_new_stream_is_empty_and_starts_at_offset_0(streams: Streams) -> None:
    info = streams.show("s")
    assert (info.first, info.next, info.bytes, info.consumers) == (0, 0, 0, 0)
    assert streams.read("s").records == []


def test_creating_twice_with_the_same_options_changes_nothing(streams: Streams) -> None:
    streams.append("s", [b"kept"])
    assert streams.create("s", SMALL) is False
    assert streams.show("s").next == 1


def test_creating_with_other_options_is_refused_and_names_them(streams: Streams) -> None:
    with pytest.raises(StreamExists) as refused:
        streams.create("s", StreamOptions(segment_bytes=SMALL.segment_bytes, retention_ms=5))
    assert refused.value.differing == ["retention_ms"]


def test_changed_options_survive_reopening(shared: StreamsUnderTest, streams: Streams) -> None:
    changed = StreamOptions(segment_bytes=1 << 20, retention_bytes=1 << 22)
    assert streams.configure("s", changed).options == changed
    streams.close()
    assert shared.open().show("s").options == changed


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "a/../b", "x" * 256, "é"])
def test_a_bad_name_is_refused(streams: Streams, name: str) -> None:
    with pytest.raises(InvalidName):
        streams.create(name)


def test_long_names_are_accepted_and_do_not_collide(streams: Streams) -> None:
    names = ["a", "a/b/c", "b/b/c", "x" * 255, "/".join(["y" * 255] * 3)]
    for name in names:
        assert streams.create(name)
        streams.append(name, [name.encode()])
    for name in names:
        assert [record.data for record in streams.read(name).records] == [name.encode()]


def test_streams_are_listed_by_name_with_a_prefix_and_a_cursor(streams: Streams) -> None:
    for name in ("b1", "b2", "b3", "n/t/q"):
        streams.create(name)
    assert [info.name for info in streams.list_streams()] == ["b1", "b2", "b3", "n/t/q", "s"]
    assert [info.name for info in streams.list_streams(prefix="b", after="b1", limit=1)] == ["b2"]


def test_every_verb_fails_on_an_unknown_stream(streams: Streams) -> None:
    for verb in (
        lambda: streams.show("none"),
        lambda: streams.append("none", [b""]),
        lambda: streams.read("none"),
        lambda: streams.next("none", "c"),
        lambda: streams.commit("none", "c", 0),
        lambda: streams.consumers("none"),
        lambda: streams.trim("none"),
        lambda: streams.check("none"),
        lambda: streams.drop("none"),
    ):
        with pytest.raises(UnknownStream):
            verb()


def test_the_name_of_a_dropped_stream_can_be_reused(streams: Streams) -> None:
    streams.append("s", numbered(0, 5))
    streams.drop("s")
    with pytest.raises(UnknownStream):
        streams.read("s")
    assert streams.create("s", SMALL)
    assert streams.show("s").next == 0


def test_a_drop_is_seen_by_other_processes(shared: StreamsUnderTest, streams: Streams) -> None:
    other = shared.open()
    streams.append("s", [b"x"])
    assert other.next_offset("s") == 1
    streams.drop("s")
    with pytest.raises(UnknownStream):
        other.read("s")


def test_a_stream_with_consumers_is_dropped_only_with_force(streams: Streams) -> None:
    streams.create_consumer("s", "billing")
    with pytest.raises(StreamInUse) as refused:
        streams.drop("s")
    assert refused.value.consumers == ["billing"]
    streams.drop("s", force=True)


def test_everything_survives_reopening(shared: StreamsUnderTest, streams: Streams) -> None:
    streams.append("s", numbered(0, 100))
    streams.commit("s", "c", 41)
    streams.close()
    again = shared.open()
    assert [record.data for record in again.read("s").records] == numbered(0, 100)
    assert again.consumer("s", "c").offset == 41
