"""The record format is fixed, because other programs read and write it too."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import InvalidInput
from penstock.core.model import Content
from penstock.log import record
from penstock.log.model import NewRecord


def test_the_bytes_of_a_record_are_fixed() -> None:
    data, sizes = record.encode([b"abc"], 1_700_000_000_000)
    rest = (1_700_000_000_000).to_bytes(8, "little") + b"\0\0\0\0\0\0\0\0" + b"abc"
    assert data == b"\3\0\0\0" + zlib.crc32(rest, 3).to_bytes(4, "little") + rest
    assert sizes == [27]


def test_the_bytes_of_an_event_are_fixed() -> None:
    data = record.encode_event(7, 5, b"fields", b"body", flags=2)
    rest = b"\5\0\0\0\0\0\0\0" + b"\7" + b"\2" + b"\6\0" + b"\0\0\0\0" + b"fieldsbody"
    assert data == b"\x0a\0\0\0" + zlib.crc32(rest, 10).to_bytes(4, "little") + rest


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=20), st.integers(0, 2**62))
def test_encoding_and_decoding_are_inverse(payloads: list[bytes], time_ms: int) -> None:
    data, sizes = record.encode(payloads, time_ms)
    mixed, mixed_sizes = record.encode([NewRecord(payload) for payload in payloads], time_ms)
    assert (mixed, mixed_sizes) == (data, sizes)
    assert record.sizes_of(data) == sizes
    at = 0
    for offset, (payload, end) in enumerate(zip(payloads, record.walk(memoryview(data), 0), strict=True)):
        found = record.decode(data, at, end, offset)
        assert (found.offset, found.data, found.time_ms, found.kind) == (offset, payload, time_ms, 0)
        at = end


@given(st.binary(max_size=40), st.data())
def test_no_flipped_bit_goes_unnoticed(payload: bytes, data: st.DataObject) -> None:
    encoded = bytearray(record.encode([NewRecord(payload, Content.TEXT)], 123)[0])
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    assert not record.intact(memoryview(encoded), 0, len(encoded))


def test_zeros_are_not_a_record() -> None:
    assert list(record.walk(memoryview(bytes(4096)), 0)) == []
    assert record.find(memoryview(bytes(4096)), 0) is None


def test_partial_records_are_refused() -> None:
    data = record.encode([b"one", b"two"], 1)[0]
    with pytest.raises(InvalidInput):
        record.sizes_of(data[:-1])


@pytest.mark.parametrize(("count", "size"), [(1, 24), (1, 1000), (5, 120), (5, 777)])
def test_markers_fill_exactly_the_space_of_lost_records(count: int, size: int) -> None:
    data, ends = record.tombstones(count, size)
    assert len(data) == size
    assert list(record.walk(memoryview(data), 0)) == ends
    assert len(ends) == count
