"""Runs every stream test against every implementation in STREAMS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.log.interface import Streams
from penstock.log.model import StreamOptions
from penstock.log.postgres.streams import PostgresStreams
from penstock.log.streams import FileStreams
from tests.conformance.support import Clock
from tests.postgres import cluster, drop_schema, new_schema

Open = Callable[[Path, Clock], Streams]
STREAMS: dict[str, Open] = {
    "files": lambda folder, clock: FileStreams(folder / "streams", clock=clock),
    "postgres": lambda folder, clock: PostgresStreams(cluster().url, schema=_schema_of(folder), clock=clock),
}
SMALL = StreamOptions(segment_bytes=64 << 10)
# Four of these fill a segment of SMALL.
BIG_RECORD = b"x" * 16_000


def _schema_of(folder: Path) -> str:
    """Create a schema for one test."""
    note = folder / "schema"
    if not note.exists():
        note.write_text(new_schema())
    return note.read_text()


class StreamsUnderTest:
    """Opens the same streams any number of times, as separate processes would."""

    def __init__(self, opener: Open, folder: Path) -> None:
        self._opener = opener
        self._folder = folder
        self._opened: list[Streams] = []
        self.clock = Clock()

    def open(self) -> Streams:
        self._opened.append(self._opener(self._folder, self.clock))
        return self._opened[-1]

    def close_all(self) -> None:
        for streams in self._opened:
            streams.close()
        if (self._folder / "schema").exists():
            drop_schema(_schema_of(self._folder))


@pytest.fixture(params=list(STREAMS))
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamsUnderTest]:
    under_test = StreamsUnderTest(STREAMS[request.param], tmp_path)
    yield under_test
    under_test.close_all()


@pytest.fixture
def streams(shared: StreamsUnderTest) -> Streams:
    opened = shared.open()
    opened.create("s", SMALL)
    return opened


@pytest.fixture
def clock(shared: StreamsUnderTest) -> Clock:
    return shared.clock


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]
