"""The offsets of a streaming query belong to one log; another log of the same name is an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.core.model import system_clock
from penstock.errors import Conflict, InvalidInput
from penstock.log.interface import Streams
from penstock.log.postgres.streams import PostgresStreams
from penstock.log.streams import FileStreams
from penstock.pipeline.source.data_source import PenstockSource
from penstock.pipeline.source.limited_stream_reader import LimitedStreamReader as StreamReader
from penstock.pipeline.source.log_sources import location_of
from penstock.pipeline.source.options import read_options
from penstock.pipeline.source.stream_reader import Offset
from tests.integration.serving import running
from tests.spark.support import PostgresWork

pytestmark = pytest.mark.spark


class Place:
    """A stream of ten records, that can be removed and made again, with fewer or more."""

    def __init__(self, where: str, streams: Any) -> None:
        self.where = where
        self._streams = streams
        self._readers: list[StreamReader] = []
        self._time_ms = system_clock()
        self.make(10)

    def make(self, records: int) -> None:
        self._time_ms += 1
        with closing(self._open()) as streams:
            if records != 10:
                streams.drop("s")
            streams.create("s")
            if records:
                streams.append("s", [b"record"] * records)

    def _open(self) -> Streams:
        streams: Streams = self._streams(clock=lambda: self._time_ms)
        return streams

    def reader(self, **options: str) -> StreamReader:
        given = {"url": self.where, "stream": "s", **options}
        schema = PenstockSource(given).schema()
        self._readers.append(StreamReader(read_options(given), schema))
        return self._readers[-1]

    def close(self) -> None:
        for reader in self._readers:
            reader.stop()


@pytest.fixture(params=["folder", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        root = tmp_path / "penstock.db.streams"
        with closing(Place(str(tmp_path), lambda clock: FileStreams(root, clock=clock))) as place:
            yield place
    else:
        work = PostgresWork()
        with closing(Place(work.where, lambda clock: PostgresStreams(work.where, clock=clock))) as place:
            yield place
        work.close_all()


def read_up(reader: StreamReader, start: Offset) -> Offset:
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = [each.value for each in reader.partitions(start, end)]
    return end | {"read": sum(part.end - part.start for part in parts)}


def test_a_query_goes_on_in_the_stream_that_it_read(place: Place) -> None:
    reader = place.reader()
    first = read_up(reader, reader.initialOffset())
    assert (first["offset"], first["lost"], first["read"]) == (10, 0, 10)
    assert read_up(place.reader(), first)["read"] == 0


@pytest.mark.parametrize("records", [4, 25])
def test_a_stream_that_was_made_anew_is_refused_or_read_from_its_beginning(place: Place, records: int) -> None:
    checkpoint = place.reader().latestOffset(place.reader().initialOffset(), ReadAllAvailable())
    place.make(records)
    with pytest.raises(Conflict, match="was recreated or restored"):
        read_up(place.reader(), checkpoint)
    after = read_up(place.reader(failOnDataLoss="false"), checkpoint)
    assert (after["offset"], after["read"]) == (records, records)
    assert read_up(place.reader(), after)["read"] == 0


def test_a_batch_whose_stream_was_removed_before_it_was_read_is_refused_or_empty(place: Place) -> None:
    start = place.reader().initialOffset()
    end = place.reader().latestOffset(start, ReadAllAvailable())
    place.make(25)
    with pytest.raises(Conflict):
        place.reader().partitions(start, end)
    assert place.reader(failOnDataLoss="false").partitions(start, end) == []


def test_an_older_checkpoint_is_read_and_refused_only_beyond_the_end(place: Place) -> None:
    assert read_up(place.reader(), {"offset": 7, "lost": 1})["read"] == 3
    with pytest.raises(Conflict, match="offset 11"):
        read_up(place.reader(), {"offset": 11, "lost": 0})


def test_a_query_may_begin_at_an_offset_that_is_yet_to_come(place: Place) -> None:
    reader = place.reader(startingOffsets="12")
    assert read_up(reader, reader.initialOffset())["offset"] == 12


def test_a_query_is_not_told_where_to_end(place: Place) -> None:
    with pytest.raises(InvalidInput, match="not supported for streaming queries") as error:
        place.reader(endingOffsets="5")
    assert "availableNow" in (error.value.hint or "")


@pytest.mark.parametrize(("told", "first"), [("Latest", 10), ("EARLIEST", 0)])
def test_where_to_begin_may_be_spelled_like_kafkas(place: Place, told: str, first: int) -> None:
    assert place.reader(startingOffsets=told).initialOffset()["offset"] == first


def test_a_checkpoint_of_a_folder_is_one_of_the_server_on_it(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client() as client:
        assert client.post("/streams", {"name": "s"}).status == 201
        with (
            closing(location_of(str(tmp_path), "s").open()) as log,
            closing(location_of(f"http://127.0.0.1:{server.port}", "s").open()) as served,
        ):
            assert log.uid == served.uid
