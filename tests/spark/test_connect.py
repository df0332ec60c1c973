"""Spark Connect: a client without Java reads and writes like any other session."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command_line import clean_environment
from tests.spark.support import Work

pytestmark = pytest.mark.spark

CLIENT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession

where, url, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
spark = SparkSession.builder.remote(url).getOrCreate()
events = spark.read.format("penstock").load(where)
told = {"batch": events.where("kind = 'pushed'").count()}

query = spark.readStream.format("penstock").schema("offset bigint, kind string, body binary").load(where)
letters = query.where("kind = 'pushed'").selectExpr("body AS payload", "'text' AS content")
writer = letters.writeStream.format("penstock").option("queue", "again")
writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
writer.trigger(availableNow=True).start(where).awaitTermination()

rows = events.where("kind = 'pushed' AND queue = 'mail'").selectExpr("body AS payload", "'text' AS content")
for _ in range(2):
    rows.write.format("penstock").option("queue", "once").option("name", "one").mode("append").save(where)
try:
    spark.read.format("penstock").option("startingOffset", "1").load(where).count()
except Exception as error:
    told["error"] = str(error)
print(json.dumps(told))
"""


@pytest.fixture
def connect_url(spark: Any) -> Iterator[str]:
    """The suite's session, served to others at a free port."""
    context, jvm = spark.sparkContext._jsc.sc(), spark._jvm
    context.conf().set("spark.connect.grpc.binding.port", "0")
    service = getattr(getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    service.start(context)
    yield f"sc://127.0.0.1:{service.localPort()}"
    service.stop(jvm.scala.Option.empty(), jvm.scala.Option.empty())


def test_a_client_of_spark_connect_reads_streams_and_writes(connect_url: str, work: Work, tmp_path: Path) -> None:
    work.make("mail")
    work.push("ada", "bob", queue="mail")
    work.drained()
    ran = subprocess.run(
        [sys.executable, "-c", CLIENT, work.where, connect_url, str(tmp_path)],
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = json.loads(ran.stdout)
    assert told["batch"] == 2
    assert "startingOffsets" in told["error"]
    for queue in ("again", "once"):
        assert [message.payload for message in work.lease(queue, 10)] == [b"ada", b"bob"]
