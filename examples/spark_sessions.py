"""A streaming job that groups orders into sessions per customer, and pushes an alert for each large session of a
customer on a trial plan.

    python examples/spark_sessions.py ./penstock-data customers.csv

`customers.csv` has the columns customer and plan. Messages of the queue `orders` are JSON with a `customer` and an
`amount`. When restarted, the job resumes where it stopped, and sends no alert twice.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from penstock.pipeline.runtime.session import open_session

COLUMNS = "queue string, kind string, at timestamp, body binary"
ORDER = "struct<customer: string, amount: double>"
# A session ends after this long without an order.
GAP = "30 minutes"
# Events that arrive later than this after newer ones are ignored.
LATE = "5 minutes"
LARGE = 1_000.0


def orders(spark: SparkSession, data: str) -> DataFrame:
    """Return the messages pushed to the queue, as a stream."""
    events = spark.readStream.format("penstock").schema(COLUMNS).option("consumer", "sessions").load(data)
    pushed = events.where("kind = 'pushed' AND queue = 'orders'")
    return pushed.select("at", F.from_json(F.col("body").cast("string"), ORDER).alias("order")).select("at", "order.*")


def sessions(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """Return one row per customer and session, once the session has ended."""
    known = orders.withWatermark("at", LATE).join(F.broadcast(customers), "customer")
    span = F.session_window("at", GAP)
    totals = known.groupBy("customer", "plan", span).agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
    return totals.select("customer", "plan", "orders", "amount", F.col("session_window.start").alias("start"))


def alerts(sessions: DataFrame) -> DataFrame:
    """Return rows for the sink. The key lets the queue recognize a session that was already reported."""
    large = sessions.where((F.col("plan") == "trial") & (F.col("amount") >= LARGE))
    text = F.to_json(F.struct("customer", "orders", "amount", "start"))
    return large.select(
        text.alias("payload"),
        F.lit("json").alias("content"),
        F.concat_ws("@", "customer", F.col("start").cast("string")).alias("key"),
    )


def start(
    spark: SparkSession, data: str, customers: DataFrame, checkpoint: str, *, once: bool = False
) -> StreamingQuery:
    found = alerts(sessions(orders(spark, data), customers))
    writer = found.writeStream.format("penstock").outputMode("append").option("queue", "alerts")
    writer = writer.option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="5 seconds")).start(data)


if __name__ == "__main__":
    data, customers = sys.argv[1:]
    session = open_session(Path(data) / "sessions" / "spark.log")
    table = session.read.option("header", "true").csv(customers)
    start(session, data, table, str(Path(data) / "sessions" / "checkpoint")).awaitTermination()
