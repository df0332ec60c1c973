"""`startingTimestamp` and `endingTimestamp` choose records by their times, by reading few of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from penstock.errors import InvalidInput
from penstock.log.model import SEGMENT_BYTES_MIN, StreamOptions
from penstock.log.postgres.streams import PostgresStreams
from penstock.log.streams import FileStreams
from penstock.pipeline.source.log_sources import location_of
from penstock.pipeline.source.options import read_options
from penstock.pipeline.source.timestamps import offset_at
from tests.integration.serving import running
from tests.spark.support import PostgresWork, Work, register

pytestmark = pytest.mark.spark

NOW = 1_700_000_000_000
STEP_MS = 10


@contextmanager
def stream_at(kind: str, folder: Path) -> Iterator[str]:
    """A stream of 100 appends of three records each, ten milliseconds apart; where it is."""
    now = NOW
    database = PostgresWork() if kind == "database" else None
    streams: Any = (
        FileStreams(folder / "penstock.db.streams", clock=lambda: now)
        if database is None
        else PostgresStreams(database.where, clock=lambda: now)
    )
    with closing(streams):
        streams.create("s", StreamOptions(segment_bytes=SEGMENT_BYTES_MIN))
        for _ in range(100):
            streams.append("s", [bytes(500)] * 3)
            now += STEP_MS
    if database is not None:
        yield database.where
        database.close_all()
    elif kind == "server":
        with running(folder) as server:
            yield f"http://127.0.0.1:{server.port}"
    else:
        yield str(folder)


@pytest.mark.parametrize("kind", ["folder", "server", "database"])
def test_a_streams_times_are_found_exactly(kind: str, tmp_path: Path) -> None:
    with stream_at(kind, tmp_path) as where:
        expected = {0: 0, NOW: 0, NOW + 1: 3, NOW + 500: 150, NOW + 509: 153, NOW + 990: 297, NOW + 991: 300}
        for time_ms, offset in expected.items():
            options = read_options({"url": where, "stream": "s", "startingTimestamp": str(time_ms)})
            with closing(options.open()) as log:
                assert options.first(log) == offset, time_ms


@pytest.mark.parametrize("kind", ["folder", "server", "database"])
def test_a_time_is_found_by_reading_few_records(kind: str, tmp_path: Path) -> None:
    with stream_at(kind, tmp_path) as where, closing(location_of(where, "s").open()) as log:
        read, parts = log.read, []
        log.read = lambda part, columns: parts.append(part) or read(part, columns)  # type: ignore[method-assign,func-returns-value,assignment,misc]
        assert offset_at(log, (NOW + 500) * 1_000, "timestamp") == 150
        assert len(parts) <= 10
        assert all(part.end - part.start == 1 for part in parts)


def test_a_journal_is_read_from_one_time_to_another(spark: Any, work: Work) -> None:
    register(spark)
    for number in range(20):
        work.push(str(number))
        work.clock.advance(60_000)
    work.drained()
    first = min(event.at for event in work.events() if event.kind == "pushed")
    reader = spark.read.format("penstock").schema("kind string, body binary, at timestamp")
    reader = reader.options(startingTimestamp=str(first + 5 * 60_000), endingTimestamp=str(first + 8 * 60_000))
    rows = reader.load(work.where).where("kind = 'pushed'").orderBy("at").collect()
    assert [bytes(row.body) for row in rows] == [b"5", b"6", b"7"]


def test_a_streaming_query_starts_at_a_time_and_keeps_its_place(spark: Any, tmp_path: Path) -> None:
    register(spark)
    with stream_at("folder", tmp_path) as where:
        for run in range(2):
            frame = spark.readStream.format("penstock").options(stream="s", startingTimestamp="2023-11-14T22:13:20.9Z")
            writer = frame.load(where).select("offset").writeStream.format("parquet")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            writer.start(str(tmp_path / "out")).awaitTermination()
            found = sorted(row["offset"] for row in spark.read.parquet(str(tmp_path / "out")).collect())
            assert found == list(range(270, 300)), run


def test_an_ending_time_is_for_batches(spark: Any, tmp_path: Path) -> None:
    register(spark)
    with stream_at("folder", tmp_path) as where:
        frame = spark.readStream.format("penstock").options(stream="s", endingTimestamp=str(NOW)).load(where)
        with pytest.raises(PySparkException, match="endingTimestamp is not supported for streaming queries"):
            frame.writeStream.format("noop").start().awaitTermination()


@pytest.mark.parametrize("given", ["yesterday", "2026-01-31", "2026-01-31T09:00:00", "-5", "9" * 30, ""])
def test_what_is_no_time_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match=r"startingTimestamp must be milliseconds since 1970 or a time such as"):
        read_options({"url": "/data", "startingTimestamp": given})
