"""A streaming job that joins dead letters with the owner of each queue and pushes alerts to another queue.

    python examples/spark_alerts.py ./penstock-data owners.csv

`owners.csv` has the columns queue and owner. When restarted, the job resumes where it stopped, and sends no alert
twice.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from penstock.pipeline.runtime.session import open_session

COLUMNS = "queue string, id bigint, kind string, at timestamp, details string"


def dead_letters(spark: SparkSession, data: str) -> DataFrame:
    events = spark.readStream.format("penstock").schema(COLUMNS).option("consumer", "alerts").load(data)
    return events.where("kind = 'dead'")


def alerts(letters: DataFrame, owners: DataFrame) -> DataFrame:
    text = F.to_json(
        F.struct("owner", "queue", "id", F.get_json_object("details", "$.errors[0].error").alias("first_error"))
    )
    return letters.join(owners, "queue").select(text.alias("payload"), F.lit("json").alias("content"))


def start(spark: SparkSession, data: str, owners: DataFrame, checkpoint: str, *, once: bool = False) -> StreamingQuery:
    writer = alerts(dead_letters(spark, data), owners).writeStream.format("penstock")
    writer = writer.option("queue", "alerts").option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")).start(data)


if __name__ == "__main__":
    data, owners = sys.argv[1:]
    session = open_session(Path(data) / "alerts" / "spark.log")
    table = session.read.option("header", "true").csv(owners)
    start(session, data, table, str(Path(data) / "alerts" / "checkpoint")).awaitTermination()
