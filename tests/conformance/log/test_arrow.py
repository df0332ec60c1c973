"""Reading streams as Arrow columns returns the same records, all verified."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock import InvalidInput, OffsetBeyondEnd, OffsetTrimmed
from penstock.log.interface import Streams
from tests.conformance.log.conftest import BIG_RECORD, StreamsUnderTest
from tests.conformance.support import Clock

chance = random.Random(4)


def fill(streams: Streams, clock: Clock, records: int) -> None:
    while records:
        clock.now += 7
        count = min(records, chance.randint(1, 700))
        streams.append("s", [chance.randbytes(chance.randint(0, 90)) for _ in range(count)])
        records -= count


def table(streams: Streams, *args: int, **options: list[str]) -> pa.Table:
    batches = list(streams.read_arrow("s", *args, **options))  # type: ignore[arg-type]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches)


def test_columns_hold_the_same_data_as_records(streams: Streams, clock: Clock) -> None:
    fill(streams, clock, 5_000)
    found = table(streams)
    records = [record for at in range(0, 5_000, 500) for record in streams.read("s", at, limit=500).records]
    assert found["offset"].to_pylist() == list(range(5_000))
    assert found["data"].to_pylist() == [record.data for record in records]
    assert found["timestamp"].cast("int64").to_pylist() == [record.time_ms * 1000 for record in records]


@pytest.mark.parametrize(
    ("first", "end"), [(0, 1), (1023, 1025), (1024, 2048), (1500, 1500), (1, 4_999), (3_333, 3_334)]
)
def test_any_range_can_be_read(streams: Streams, clock: Clock, first: int, end: int) -> None:
    fill(streams, clock, 5_000)
    batches = list(streams.read_arrow("s", first, end))
    assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == list(range(first, end))


def test_column_types_are_supported_by_spark(streams: Streams) -> None:
    streams.append("s", [b"x"])
    expected = [("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC")), ("data", pa.binary())]
    assert [(field.name, field.type) for field in table(streams).schema] == expected


def test_only_requested_columns_are_returned(streams: Streams) -> None:
    streams.append("s", [b"x"])
    assert table(streams, columns=["timestamp", "offset"]).schema.names == ["timestamp", "offset"]
    with pytest.raises(InvalidInput):
        table(streams, columns=["payload"])


def test_another_process_reads_columns_during_appends(shared: StreamsUnderTest, streams: Streams, clock: Clock) -> None:
    other = shared.open()
    for _ in range(10):
        fill(streams, clock, 600)
        assert sum(batch.num_rows for batch in other.read_arrow("s")) == streams.next_offset("s")


def test_columns_have_the_same_bounds_as_records(streams: Streams) -> None:
    for _ in range(12):
        streams.append("s", [BIG_RECORD])
    assert list(streams.read_arrow("s", 12)) == []
    with pytest.raises(OffsetBeyondEnd):
        list(streams.read_arrow("s", 13))
    streams.trim("s", before=8)
    with pytest.raises(OffsetTrimmed):
        list(streams.read_arrow("s", 0))
