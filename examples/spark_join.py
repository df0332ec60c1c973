"""A streaming job that joins two queues: each order with its payment. Paid orders are added to a Parquet dataset; a
reminder is pushed to a queue for each order without a payment within an hour.

    python examples/spark_join.py ./penstock-data

Messages of the queues `orders` and `payments` are JSON with an `order`. When restarted, the job resumes where it
stopped; each order is written once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from penstock.pipeline.runtime.session import open_session

COLUMNS = "queue string, kind string, at timestamp, body binary"
ORDER = "order string, amount double"
WINDOW = "INTERVAL 1 HOUR"
"""A payment belongs to an order if it follows within this time."""
LATE = "5 minutes"
"""Events that arrive later than this after newer ones are ignored. Spark keeps orders in memory for WINDOW and LATE."""
LIMITS = {"maxOffsetsPerTrigger": 50_000, "minPartitions": 8}
"""A backlog is read in batches of at most so many records, by at least so many tasks."""


def pushed(spark: SparkSession, data: str, queue: str, schema: str = ORDER) -> DataFrame:
    """Return the messages pushed to a queue, as a stream with a watermark."""
    events = spark.readStream.format("penstock").schema(COLUMNS).options(**LIMITS).load(data)
    found = events.where((F.col("kind") == "pushed") & (F.col("queue") == queue))
    message = F.from_json(F.col("body").cast("string"), schema).alias("message")
    return found.select("at", message).select("at", "message.*").withWatermark("at", LATE)


def with_payments(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Join each order with its payment; `paid_at` is null if there is none in time."""
    order, payment = orders.alias("order"), payments.alias("payment")
    same = F.col("order.order") == F.col("payment.order")
    in_time = F.expr(f"payment.at BETWEEN order.at AND order.at + {WINDOW}")
    paid_at: Column = F.col("payment.at").alias("paid_at")
    return order.join(payment, same & in_time, "leftOuter").select("order.order", "order.amount", "order.at", paid_at)


def write(frame: DataFrame, number: int, data: str, target: str) -> None:
    """Write a batch to two places. Spark may repeat the last batch, so both writes replace or recognize it."""
    frame.persist()
    paid = frame.where("paid_at IS NOT NULL")
    paid.write.mode("overwrite").parquet(f"{target}/batch={number}")
    query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    reminders = frame.where("paid_at IS NULL").select(F.to_json(F.struct("order", "amount")).alias("payload"))
    reminders = reminders.withColumn("content", F.lit("json")).coalesce(1).sortWithinPartitions("payload")
    writer = reminders.write.format("penstock").option("queue", "reminders").option("name", f"{query}-{number}")
    writer.mode("append").save(data)
    frame.unpersist()


def start(spark: SparkSession, data: str, folder: str, *, once: bool = False) -> StreamingQuery:
    joined = with_payments(pushed(spark, data, "orders"), pushed(spark, data, "payments", "order string"))
    writer = joined.writeStream.foreachBatch(lambda frame, number: write(frame, number, data, f"{folder}/paid"))
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="5 seconds")).start()


if __name__ == "__main__":
    [data] = sys.argv[1:]
    session = open_session(Path(data) / "join" / "spark.log")
    start(session, data, str(Path(data) / "join")).awaitTermination()
