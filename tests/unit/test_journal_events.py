"""Encoded events decode to the same values, one by one and in bulk."""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Damaged
from penstock.journal.arrow import SCHEMA, events_table
from penstock.journal.events import (
    SHARED_BYTES_MAX,
    Event,
    EventFlag,
    Kind,
    Row,
    columns_of,
    decode_events,
    encode_detail,
    encode_events,
)
from penstock.journal.recorder import Recorder
from penstock.log.record import HEADER_BYTES

NOW = 1_700_000_000_000
times = st.integers(0, NOW * 2)
names = st.sampled_from([b"emails", b"shop/orders/paid", b"x" * 255])


rows = st.tuples(
    st.integers(1, 1 << 43),
    st.integers(1, NOW * 2),
    times,
    times,
    times,
    st.integers(0, 1000),
    st.integers(-(2**31) + 1, 2**31 - 1),
    st.integers(0, 2),
)


@st.composite
def event_batches(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 5))

    def parts(values: st.SearchStrategy[bytes]) -> list[bytes] | None:
        return draw(st.none() | st.lists(values, min_size=count, max_size=count))

    first = draw(rows)
    alike = [(first[0] + number, *first[1:]) for number in range(count)]
    kind = draw(st.sampled_from(list(Kind)))
    details = st.sampled_from([b"", encode_detail(key="k", headers={"a": "b"}), encode_detail(error="ünlucky")])
    return {
        "kind": kind,
        "now": draw(times),
        "queue_id": draw(st.integers(1, 262_143)),
        "name": draw(names),
        "store_id": draw(st.integers(0, (1 << 30) - 1)),
        "rows": draw(st.just(alike) | st.lists(rows, min_size=count, max_size=count, unique_by=lambda row: row[0])),
        "marks": draw(st.integers(0, 7)),
        "details": parts(details),
        "bodies": parts(st.binary(max_size=20)) if kind is Kind.PUSHED else None,
    }


def read(offset: int, record: bytes) -> list[Event]:
    length, checksum, at, kind, _, _, _ = struct.unpack_from("<IIqBBHI", record)
    assert len(record) == HEADER_BYTES + length
    assert checksum == crc32(record[8:], length)
    return list(decode_events(offset, at, kind, record[HEADER_BYTES:]))


def encoded(kind: int, now: int, queue_id: int, name: bytes, store_id: int, rows: list[Row], **more: Any) -> bytes:
    return encode_events(kind, now, queue_id, name, store_id, len(rows), columns_of(rows), **more)


@given(event_batches())
def test_encoding_and_decoding_are_inverse(batch: dict[str, Any]) -> None:
    record = encoded(**batch)
    assert len(record) % 8 == 0
    for number, (event, row) in enumerate(zip(read(7, record), batch["rows"], strict=True)):
        at = {Kind.PUSHED: row[1], Kind.LEASED: row[3]}.get(batch["kind"], batch["now"])
        assert (event.offset, event.number, event.at) == (7, number, at)
        assert (event.kind, event.queue) == (batch["kind"].name.lower(), batch["name"].decode())
        times_told = (event.pushed_at, event.first_leased_at, event.leased_at, event.until)
        assert (event.id, *(time or 0 for time in times_told), event.attempts, event.priority) == row[:7]
        assert event.body == (None if batch["bodies"] is None else batch["bodies"][number])
        assert encode_detail(**event.details) == (b"" if batch["details"] is None else batch["details"][number])


@settings(max_examples=200, deadline=None)
@given(st.lists(event_batches(), min_size=1, max_size=6))
def test_bulk_and_single_decoding_agree(batches: list[dict[str, Any]]) -> None:
    records = [encoded(**each) for each in batches]
    ends = [sum(map(len, records[: n + 1])) for n in range(len(records))]
    table = events_table(b"".join(records), ends, 100)
    assert table.schema == SCHEMA
    events = [event for n, record in enumerate(records) for event in read(100 + n, record)]
    for row, event in zip(table.to_pylist(), events, strict=True):
        for field in ("offset", "number", "kind", "queue", "queue_id", "id", "uuid", "attempts", "priority", "body"):
            assert row[field] == getattr(event, field), field
        for field in ("at", "pushed_at", "first_leased_at", "leased_at", "until"):
            expected = getattr(event, field)
            assert (row[field] and round(row[field].timestamp() * 1000)) == (expected or None), field
        assert (row["details"] or "") == (encode_detail(**event.details).decode() if event.details else "")
        assert row["content"] == event.content


def row(message_id: int, *, leased_at: int = 0) -> Row:
    return (message_id, NOW, leased_at, leased_at, NOW, 1, 0, 0)


def test_only_requested_columns_are_decoded() -> None:
    record = encoded(Kind.PUSHED, NOW, 1, b"q", 5, [row(1), row(2)], bodies=[b"a", b"bc"])
    table = events_table(record, [len(record)], 0, ["id", "body"])
    assert table.to_pylist() == [{"id": 1, "body": b"a"}, {"id": 2, "body": b"bc"}]


def test_many_messages_with_equal_events_share_a_small_record() -> None:
    one = encoded(Kind.LEASED, NOW, 1, b"q", 5, [row(1)])
    many = encoded(Kind.LEASED, NOW, 1, b"q", 5, [row(number) for number in range(1, 101)])
    assert len(many) == len(one)


class Queue:
    def __init__(self, queue_id: int) -> None:
        self.id = queue_id
        self.name_bytes = b"q%d" % queue_id


def gathered(recorder: Recorder) -> list[list[int | None]]:
    return [[event.id for event in read(0, record)] for record in recorder.take()]


def test_equal_events_share_one_record() -> None:
    recorder, queue, other = Recorder(5), Queue(1), Queue(2)
    recorder.note(Kind.LEASED, queue, [row(1)])
    recorder.note(Kind.LEASED, other, [row(4)])
    recorder.note(Kind.PUSHED, queue, [row(5)])
    recorder.note(Kind.LEASED, queue, [row(2), row(3)])
    recorder.note(Kind.ACKED, queue, [row(1)])
    recorder.note(Kind.ACKED, queue, [row(2)], EventFlag.KEPT)
    recorder.note(Kind.LEASED, queue, [row(5)])
    assert gathered(recorder) == [[5], [1, 2, 3, 5], [4], [1], [2]]
    assert gathered(recorder) == []


def test_columns_decode_to_the_same_rows() -> None:
    recorder, queue = Recorder(5), Queue(1)
    rows = [(4, NOW, 0, 0, NOW, 1, 0, 0), (5, NOW, 0, 0, NOW, 1, 0, 0), (9, NOW - 1, 0, 0, NOW, 2, 0, 0)]
    recorder.note(Kind.LEASED, queue, rows)
    expected = recorder.take()
    ids = [4, 5]
    recorder.note_columns(Kind.LEASED, queue, 2, (ids, NOW, 0, 0, NOW, 1, 0, 0))
    recorder.note_columns(Kind.LEASED, queue, 1, ([9], NOW - 1, 0, 0, [NOW], 2, 0, 0))
    assert recorder.take() == expected
    assert ids == [4, 5], "the recorder must not change the caller's list"


def test_two_equal_events_of_one_message_are_both_recorded() -> None:
    row = (7, NOW, 0, 0, NOW + 10, 0, 0, 0)
    record = encoded(Kind.EXTENDED, NOW, 1, b"emails", 5, [row, row])
    assert [event.id for event in read(0, record)] == [7, 7]


def test_the_events_of_a_message_stay_in_order() -> None:
    recorder, queue = Recorder(5), Queue(1)
    happened = [Kind.PUSHED, Kind.LEASED, Kind.NACKED, Kind.LEASED, Kind.EXTENDED, Kind.LAPSED, Kind.LEASED, Kind.ACKED]
    for kind in happened:
        recorder.note(kind, queue, [row(1)])
        if kind in (Kind.NACKED, Kind.LAPSED):
            recorder.note(kind, queue, [row(2)])
    events = [event.kind for record in recorder.take() for event in read(0, record) if event.id == 1]
    assert events == [kind.name.lower() for kind in happened]


def test_rolled_back_events_are_not_recorded() -> None:
    recorder, queue = Recorder(5), Queue(1)
    recorder.note(Kind.LEASED, queue, [row(1)])
    mark = recorder.mark()
    recorder.note(Kind.LEASED, queue, [row(2)])
    recorder.note(Kind.ACKED, queue, [row(2)])
    recorder.roll_back_to(mark)
    recorder.note(Kind.LEASED, queue, [row(3)])
    assert gathered(recorder) == [[1], [3]]


def test_a_record_covers_a_bounded_number_of_messages() -> None:
    recorder, queue = Recorder(5), Queue(1)
    recorder.note(Kind.LEASED, queue, [row(number) for number in range(1, 2502)])
    assert [len(ids) for ids in gathered(recorder)] == [625, 625, 625, 626]
    recorder.note(Kind.PUSHED, queue, [row(1), row(2), row(3)], bodies=[bytes(SHARED_BYTES_MAX - 1)] * 3)
    recorder.note(Kind.PUSHED, queue, [row(4)], bodies=[b"x"])
    assert gathered(recorder) == [[1], [2], [3, 4]]


def test_an_event_of_a_newer_release_is_reported_not_guessed() -> None:
    record = bytearray(encoded(Kind.PUSHED, NOW, 1, b"q", 5, [row(1)]))
    with pytest.raises(Damaged, match="offset 3"):
        list(decode_events(3, NOW, 200, bytes(record[HEADER_BYTES:])))
