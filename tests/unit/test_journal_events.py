"""Events: what is written is what is read, one by one and all at once."""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Damaged
from penstock.journal.arrow import SCHEMA, events_table
from penstock.journal.events import HEADER_BYTES, Event, Kind, decode_events, encode_detail, encode_events

NOW = 1_700_000_000_000
times = st.integers(0, NOW * 2)
names = st.sampled_from([b"emails", b"shop/orders/paid", b"x" * 255])


@st.composite
def happenings(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 5))

    def column(values: st.SearchStrategy[int]) -> Any:
        return draw(values | st.lists(values, min_size=count, max_size=count))

    def parts(values: st.SearchStrategy[bytes]) -> list[bytes]:
        return draw(st.lists(values, min_size=count, max_size=count))

    details = st.sampled_from([b"", encode_detail(key="k", headers={"a": "b"}), encode_detail(error="ünlucky")])
    first = draw(st.integers(1, 1 << 43))
    ids = draw(
        st.just(list(range(first, first + count)))
        | st.lists(st.integers(1, 1 << 43), min_size=count, max_size=count, unique=True)
    )
    kind = draw(st.sampled_from(list(Kind)))
    return {
        "kind": kind,
        "now": draw(times),
        "queue_id": draw(st.integers(1, 262_143)),
        "name": draw(names),
        "salt": draw(st.integers(0, (1 << 30) - 1)),
        "ids": ids,
        "pushed_at": column(st.integers(1, NOW * 2)),
        "first_leased_at": column(times),
        "leased_at": column(times),
        "until": column(times),
        "attempts": column(st.integers(0, 1000)),
        "priority": column(st.integers(-(2**31) + 1, 2**31 - 1)),
        "content": column(st.integers(0, 2)) if kind is Kind.PUSHED else 0,
        "marks": draw(st.integers(0, 7)),
        "details": draw(details) if draw(st.booleans()) else parts(details),
        "bodies": parts(st.binary(max_size=20)) if kind is Kind.PUSHED and draw(st.booleans()) else None,
    }


def read(offset: int, record: bytes) -> list[Event]:
    length, checksum, at, kind, _, _, _ = struct.unpack_from("<IIqBBHI", record)
    assert len(record) == HEADER_BYTES + length
    assert checksum == crc32(record[8:], length)
    return list(decode_events(offset, at, kind, record[HEADER_BYTES:]))


def value(told: Any, number: int) -> Any:
    return told if isinstance(told, int | bytes) else told[number]


@given(happenings())
def test_what_is_encoded_is_decoded(told: dict[str, Any]) -> None:
    record = encode_events(**told)
    assert len(record) % 8 == 0
    events = read(7, record)
    assert [event.id for event in events] == told["ids"]
    for number, event in enumerate(events):
        assert (event.offset, event.number, event.at) == (7, number, told["now"])
        assert (event.kind, event.queue) == (told["kind"].name.lower(), told["name"].decode())
        for field in ("pushed_at", "first_leased_at", "leased_at", "until"):
            assert getattr(event, field) == (value(told[field], number) or None)
        assert (event.attempts, event.priority) == (value(told["attempts"], number), value(told["priority"], number))
        assert event.body == (None if told["bodies"] is None else told["bodies"][number])
        detail = value(told["details"], number)
        assert (encode_detail(**event.details) if event.details else b"") == detail


@settings(max_examples=200)
@given(st.lists(happenings(), min_size=1, max_size=6))
def test_all_at_once_reads_the_same_as_one_by_one(told: list[dict[str, Any]]) -> None:
    records = [encode_events(**each) for each in told]
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


def test_only_the_columns_asked_for_are_gathered() -> None:
    record = encode_events(Kind.PUSHED, NOW, 1, b"q", 5, [1, 2], NOW, bodies=[b"a", b"bc"])
    table = events_table(record, [len(record)], 0, ["id", "body"])
    assert table.to_pylist() == [{"id": 1, "body": b"a"}, {"id": 2, "body": b"bc"}]


def test_many_messages_that_fared_alike_are_told_of_in_few_bytes() -> None:
    one = encode_events(Kind.LEASED, NOW, 1, b"q", 5, [1], NOW, NOW, NOW, NOW + 30_000, 1)
    many = encode_events(Kind.LEASED, NOW, 1, b"q", 5, range(1, 101), [NOW] * 100, NOW, NOW, NOW + 30_000, [1] * 100)
    assert len(many) == len(one)


def test_an_event_of_a_newer_release_is_named_not_guessed() -> None:
    record = bytearray(encode_events(Kind.PUSHED, NOW, 1, b"q", 5, [1]))
    with pytest.raises(Damaged, match="offset 3"):
        list(decode_events(3, NOW, 200, bytes(record[HEADER_BYTES:])))
