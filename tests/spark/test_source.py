"""`format("penstock")`: Spark reads what was recorded, and its writes are pushed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from penstock import connect
from penstock.log.streams import FileStreams
from penstock.pipeline.replay import stage_frame
from penstock.pipeline.sink.staging import Batch
from penstock.pipeline.source.options import write_options
from tests.integration.serving import running
from tests.spark.support import OLD_SPARK, SMALL_BATCHES, Work, events_in, register

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def registered(spark: Any) -> None:
    register(spark)


def test_a_batch_reads_the_journal_as_it_was_written(spark: Any, work: Work) -> None:
    work.some(200)
    work.drained()
    rows = spark.read.format("penstock").option("minPartitions", 3).load(str(work.data)).collect()
    found = sorted((row["offset"], row.number, row.kind, row.id, row.body) for row in rows)
    expected = [(event.offset, event.number, event.kind, event.id, event.body) for event in events_in(work.journal)]
    assert [(*row[:4], row[4] and bytes(row[4])) for row in found] == expected


def test_only_the_columns_and_offsets_asked_for_are_read(spark: Any, work: Work) -> None:
    work.push("a", "b")
    work.push("c")
    work.drained()
    reader = spark.read.format("penstock").schema("id bigint, offset bigint")
    rows = reader.options(startingOffsets="2", endingOffsets="3").load(str(work.data)).collect()
    assert [tuple(row) for row in rows] == [(3, 2)]


@pytest.mark.parametrize("start", ["latest", "3", "99"])
def test_a_range_with_nothing_in_it_has_no_rows(spark: Any, work: Work, start: str) -> None:
    work.push("a")
    work.drained()
    reader = spark.read.format("penstock").options(startingOffsets=start, endingOffsets="3")
    assert reader.load(str(work.data)).collect() == []


def test_a_column_of_another_type_is_refused_before_anything_is_read(spark: Any, work: Work) -> None:
    work.push("a")
    work.drained()
    for mode in (spark.read, spark.readStream):
        frame = mode.format("penstock").schema("offset bigint, body string").load(str(work.data))
        with pytest.raises(PySparkException, match=r"(?s)column 'body' is binary, not string.*cast the column"):
            frame.writeStream.format("noop").start().awaitTermination() if frame.isStreaming else frame.collect()


def test_a_bad_option_is_refused_with_the_good_ones(spark: Any, work: Work) -> None:
    with pytest.raises(PySparkException, match=r"(?is)unknown option 'startoffset'.*startingOffsets"):
        spark.read.format("penstock").option("startOffset", "1").load(str(work.data)).collect()


def test_a_stream_of_records_is_read_like_the_journal(spark: Any, work: Work) -> None:
    streams = FileStreams(Path(f"{work.path}.streams"))
    streams.create("clicks")
    streams.append("clicks", [b"one", b"two", b"three"])
    streams.close()
    frame = spark.read.format("penstock").option("stream", "clicks").load(str(work.data))
    assert [(row["offset"], bytes(row.data)) for row in frame.collect()] == [(0, b"one"), (1, b"two"), (2, b"three")]


def test_a_stream_of_a_server_is_read_in_pages(spark: Any, tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client() as client:
        assert client.post("/streams", {"name": "a/b/c"}).status == 201
        sent = [f"record {number}" for number in range(25)]
        assert client.post("/streams/a%2Fb%2Fc/records", {"records": sent}).status == 201
        reader = spark.read.format("penstock").options(stream="a/b/c", startingOffsets="5", minPartitions="3")
        frame = reader.load(f"http://127.0.0.1:{server.port}")
        found = sorted((row["offset"], bytes(row.data).decode()) for row in frame.collect())
    assert found == list(enumerate(sent))[5:]


def test_a_query_that_is_stopped_and_started_again_reads_every_event_once(
    spark: Any, work: Work, tmp_path: Path
) -> None:
    target, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    for part in range(2):
        work.some(60, seed=part)
        work.drained()
        source = spark.readStream.format("penstock").schema("offset bigint, number int")
        frame = source.options(consumer="copy", **SMALL_BATCHES).load(str(work.data))
        writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start(target).awaitTermination()
    found = sorted((row["offset"], row.number) for row in spark.read.parquet(target).collect())
    assert found == [(event.offset, event.number) for event in events_in(work.journal)]


@pytest.mark.skipif(not OLD_SPARK, reason="newer releases of Spark limit micro-batches")
def test_a_limit_that_an_old_spark_cannot_keep_is_refused(spark: Any, work: Work) -> None:
    work.push("a")
    work.drained()
    frame = spark.readStream.format("penstock").option("maxOffsetsPerTrigger", "1").load(work.where)
    with pytest.raises(PySparkException, match=r"(?s)cannot limit micro-batches.*Spark 4\.2"):
        frame.writeStream.format("noop").start().awaitTermination()


def test_rows_become_messages_once_even_if_written_twice(spark: Any, work: Work) -> None:
    work.make("mail")
    frame = spark.range(2500).selectExpr("concat('to ', id) AS payload", "cast(id % 3 AS int) AS priority")
    for _ in range(2):
        frame.write.format("penstock").options(queue="mail", name="import").mode("append").save(str(work.data))
    leased = work.lease("mail", 10_000)
    assert sorted(message.payload.decode() for message in leased) == sorted(f"to {number}" for number in range(2500))
    assert [message.priority for message in leased] == sorted((n % 3 for n in range(2500)), reverse=True)


def test_a_write_that_could_not_be_pushed_is_finished_by_the_same_write(spark: Any, tmp_path: Path) -> None:
    broken, staging = tmp_path / "penstock.db", tmp_path / "staging"
    broken.write_bytes(b"not a database" * 1000)
    frame = spark.range(50).selectExpr("concat('to ', id) AS payload")
    writer = frame.write.format("penstock").mode("append").options(queue="mail", name="a/b", staging=str(staging))
    with pytest.raises(PySparkException, match="NotADatabase"):
        writer.save(str(broken))
    broken.unlink()
    writer.save(str(tmp_path))
    with connect(f"sqlite:///{broken}") as client:
        found = [message.payload for message in client.queue("mail").peek(limit=100)]
    assert sorted(found) == sorted(f"to {number}" for number in range(50))
    assert not list(staging.glob("*.arrow"))


def test_a_name_that_another_queues_write_had_is_refused(spark: Any, work: Work) -> None:
    frame = spark.range(3).selectExpr("cast(id AS string) AS payload")
    frame.write.format("penstock").options(queue="one", name="import").mode("append").save(str(work.data))
    with pytest.raises(PySparkException, match="went into the queue 'one'"):
        frame.write.format("penstock").options(queue="two", name="import").mode("append").save(str(work.data))


def test_a_name_that_other_rows_had_is_refused(spark: Any, work: Work) -> None:
    writer = spark.range(5).selectExpr("cast(id AS string) AS payload").write.format("penstock")
    writer.options(queue="mail", name="daily").mode("append").save(str(work.data))
    writer = spark.range(10).selectExpr("cast(id AS string) AS payload").write.format("penstock")
    with pytest.raises(PySparkException, match="an earlier write of this name added 5 other rows"):
        writer.options(queue="mail", name="daily").mode("append").save(str(work.data))
    assert [message.payload for message in work.lease("mail", 100)] == [b"%d" % number for number in range(5)]


def test_rows_arrive_in_the_order_of_partitions_and_rows(spark: Any, work: Work) -> None:
    expected = [str(number).encode() for number in range(40)]
    rows = spark.range(0, 40, 1, 8).selectExpr("cast(id AS string) AS payload")
    rows.write.format("penstock").options(queue="mail").mode("append").save(str(work.data))
    assert [message.payload for message in work.lease("mail", 100)] == expected
    records = rows.selectExpr("cast(payload AS binary) AS data")
    records.write.format("penstock").options(stream="s").mode("append").save(str(work.data))
    found = spark.read.format("penstock").option("stream", "s").load(str(work.data)).orderBy("offset").collect()
    assert [bytes(row.data) for row in found] == expected
    options = write_options({"url": str(work.data), "queue": "replayed"})
    Batch(options, "run").publish(stage_frame(rows, options))
    assert [message.payload for message in work.lease("replayed", 100)] == expected


def test_a_streaming_sink_pushes_each_row_once(spark: Any, work: Work, tmp_path: Path) -> None:
    work.push("a", "b", "c", queue="from")
    work.drained()
    events = spark.readStream.format("penstock").load(str(work.data)).where("kind = 'pushed' AND queue = 'from'")
    rows = events.selectExpr("body AS payload", "content")
    for _ in range(2):
        writer = rows.writeStream.format("penstock").options(queue="into", checkpointLocation=str(tmp_path / "c"))
        writer.trigger(availableNow=True).start(str(work.data)).awaitTermination()
    assert sorted(message.payload for message in work.lease("into", 100)) == [b"a", b"b", b"c"]


def test_a_query_with_a_new_checkpoint_is_another_though_it_has_the_name(
    spark: Any, work: Work, tmp_path: Path
) -> None:
    for text in ("a", "b"):
        work.push(text, queue="from")
        work.drained()
        events = spark.readStream.format("penstock").load(work.where).where("kind = 'pushed' AND queue = 'from'")
        writer = events.selectExpr("body AS payload").writeStream.format("penstock")
        writer = writer.options(queue="into", name="copy", checkpointLocation=str(tmp_path / f"before {text}"))
        writer.trigger(availableNow=True).start(work.where).awaitTermination()
    assert sorted(message.payload for message in work.lease("into", 100)) == [b"a", b"a", b"b"]
