"""The source, sink and pipeline work on a database and on a server as on a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException

from penstock.core.model import system_clock
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.run import CONSUMER, Pipeline
from penstock.pipeline.source.log_sources import ServerLocation
from penstock.store.factory import open_streams
from tests.conformance.support import MINUTE_MS, push_command
from tests.integration.serving import running
from tests.spark.support import OLD_SPARK, SMALL_BATCHES, PostgresWork, Work, check_lake, register

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def registered(spark: Any) -> None:
    register(spark)


@pytest.fixture
def database() -> Iterator[PostgresWork]:
    under_test = PostgresWork()
    yield under_test
    under_test.close_all()


def run(spark: Any, journal: Any, lake: Lake, **how: Any) -> list[Any]:
    with Pipeline(spark, journal, lake, **how) as pipeline:
        return list(pipeline.steps())


def offsets(spark: Any, where: str, folder: Path, **options: str) -> list[tuple[int, int]]:
    """All that a streaming query has written so far, one run more."""
    frame = spark.readStream.format("penstock").schema("offset bigint, number int").options(**options).load(where)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination()
    return sorted((row["offset"], row.number) for row in spark.read.parquet(str(folder / "out")).collect())


def test_a_databases_journal_is_read_as_a_batch_and_as_a_stream(
    spark: Any, database: PostgresWork, tmp_path: Path
) -> None:
    database.some(40)
    database.drained()
    rows = spark.read.format("penstock").option("minPartitions", 3).load(database.where).collect()
    found = sorted((row["offset"], row.number, row.kind, row.body and bytes(row.body)) for row in rows)
    assert found == [(event.offset, event.number, event.kind, event.body) for event in database.events()]
    offsets(spark, database.where, tmp_path, consumer="copy", **SMALL_BATCHES)
    database.some(20, seed=1)
    database.drained()
    read = offsets(spark, database.where, tmp_path, consumer="copy")
    assert read == [(event.offset, event.number) for event in database.events()]


def test_a_servers_journal_is_read_as_a_batch_and_as_a_stream(spark: Any, work: Work, tmp_path: Path) -> None:
    work.clock.set(system_clock())
    work.some(60)
    work.drained()
    with running(work.data, auth_token="secret") as server:
        url = f"http://127.0.0.1:{server.port}"
        reader = spark.read.format("penstock").options(token="secret", minPartitions="2")
        found = sorted((row["offset"], row.number, row.kind) for row in reader.load(url).collect())
        events = [(event.offset, event.number, event.kind) for event in work.events()]
        # The server tells of itself while it is read.
        assert found == events[: len(found)]
        assert len(found) > 60
        streamed = offsets(spark, url, tmp_path, token="secret")
        assert streamed[: len(found)] == [(offset, number) for offset, number, _ in found]
        with pytest.raises(PySparkException, match="rejected the token"):
            spark.read.format("penstock").load(url).collect()


def test_records_that_were_trimmed_are_an_error_that_names_them_or_are_counted(
    spark: Any, work: Work, tmp_path: Path
) -> None:
    work.push("a")
    work.push("b")
    work.forget_all_but_new()
    work.push("c")
    work.drained()
    reader = spark.read.format("penstock").option("startingOffsets", "0")
    with pytest.raises(PySparkException, match=r"(?s)offset 0 of stream 'journal'.*offsets 0 to 2 were trimmed"):
        reader.load(work.where).collect()
    assert [row["offset"] for row in reader.option("failOnDataLoss", "false").load(work.where).collect()] == [3]
    frame = spark.readStream.format("penstock").options(startingOffsets="0", failOnDataLoss="false").load(work.where)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.lastProgress is not None
    assert OLD_SPARK or '"lost":3' in query.lastProgress.sources[0].endOffset.replace(" ", "")


def test_the_lake_of_a_database_is_exact_though_transactions_commit_late(
    spark: Any, database: PostgresWork, lake: Lake, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    database.some(60)
    with psycopg.connect(str(database.path)) as late:
        # It happened some minutes before what is committed, and read, first.
        database.push_on(late, push_command("late", "mail"))
        database.clock.advance(7 * MINUTE_MS)
        database.some(60, seed=1, queues=("shop/orders/paid", "q"))
        run(spark, database.drained(), lake)
        late.commit()
    database.some(30, seed=2)
    run(spark, database.drained(), lake, step_bytes=10_000)
    check_lake(database, lake)


def test_a_lake_goes_on_from_a_server_where_it_stood_with_the_folder(spark: Any, work: Work, lake: Lake) -> None:
    work.clock.set(system_clock())
    work.some(60)
    run(spark, work.drained(), lake)
    with running(work.data, auth_token="secret") as server:
        end = sum(1 for _ in work.events())
        work.some(60, seed=1)
        work.drained()  # The server copies what was told.
        place = ServerLocation(f"http://127.0.0.1:{server.port}", token="secret")
        with closing(place.open()) as log, server.client() as client:
            while log.next_offset < work.journal_bounds()[1]:
                log.wait(log.next_offset, 1)
            assert run(spark, place, lake)
            [consumer] = client.get("/journal").json["consumers"]
            assert (consumer["consumer"], consumer["offset"]) == (CONSUMER, log.next_offset - 1)
    assert sum(1 for _ in work.events()) > end
    check_lake(work, lake)


def test_rows_become_records_once_even_if_written_twice(spark: Any, work: Work, tmp_path: Path) -> None:
    frame = spark.range(0, 2_500, 1, 1).selectExpr("concat('row ', id) AS data")
    for _ in range(2):
        frame.write.format("penstock").options(stream="rows", name="import").mode("append").save(work.where)
    with closing(open_streams(str(work.path))) as streams:
        records = [record for at in (0, 1_000, 2_000) for record in streams.read("rows", at).records]
    assert [record.data.decode() for record in records] == [f"row {number}" for number in range(2_500)]
    with pytest.raises(PySparkException, match=r"(?s)unknown column 'id'.*data: string or binary"):
        spark.range(1).write.format("penstock").option("stream", "rows").mode("append").save(work.where)


def test_a_streaming_query_copies_a_journal_into_a_stream_of_a_server_once(
    spark: Any, work: Work, tmp_path: Path
) -> None:
    work.clock.set(system_clock())
    with running(tmp_path / "other") as server, server.client() as client:
        url = f"http://127.0.0.1:{server.port}"
        for part in range(2):
            work.push(f"a{part}", f"b{part}", queue="from")
            work.drained()
            events = spark.readStream.format("penstock").load(work.where).where("kind = 'pushed'")
            writer = events.selectExpr("body AS data").writeStream.format("penstock")
            writer = writer.options(stream="copy", staging=str(tmp_path / "s"), checkpointLocation=str(tmp_path / "c"))
            writer.trigger(availableNow=True).start(url).awaitTermination()
        records = client.get("/streams/copy/records").json["records"]
    assert sorted(record["data"] for record in records) == sorted(["YTA=", "YjA=", "YTE=", "YjE="])
