"""Orders as typed rows, and totals per customer."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ORDER = "struct<id: bigint, customer: string, amount: double>"


@dp.table(comment="one row per order; added to as messages arrive")
def orders() -> DataFrame:
    spark = SparkSession.active()
    events = spark.readStream.format("penstock").load(spark.conf.get("spark.orders.data"))
    pushed = events.where("kind = 'pushed' AND queue = 'orders'")
    return pushed.select("offset", "number", F.from_json(F.col("body").cast("string"), ORDER).alias("order")).select(
        "offset", "number", "order.*"
    )


@dp.materialized_view(comment="totals per customer")
def customers() -> DataFrame:
    found = SparkSession.active().table("orders").where("customer IS NOT NULL")
    return found.groupBy("customer").agg(F.count("*").alias("orders"), F.sum("amount").alias("total"))
