"""Converts events to finished message lives. The final event carries the life; only removed queues need a join."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.journal.events import EventFlag
from penstock.pipeline.lake.tables import SILVER

ENDS = ("acked", "dead", "expired", "removed")
STARTS = ("pushed", "redriven")
# Push time of the oldest message that a queue removal ended. Older releases did not record it.
_SINCE = "bigint(get_json_object(details, '$.since'))"
_DETAILS = "struct<reason: string, errors: array<struct<attempt: int, at: bigint, error: string>>>"


def finished_lives(events: DataFrame) -> DataFrame:
    """Return a row for each life that ended with one of these events.

    A dead letter's life ended when it died, an archived message's when it was acked: later events end no life.
    """
    ended = events.where(F.col("kind").isin(*ENDS) & ~_has(EventFlag.DEAD_LETTER))
    ended = ended.where((F.col("kind") != "removed") | ~_has(EventFlag.KEPT))
    outcome = F.when((F.col("kind") == "dead") & _has(EventFlag.GONE), "failed").otherwise(F.col("kind"))
    known = F.col("kind") != "removed"
    details = F.from_json("details", _DETAILS)
    return _shaped(
        ended.withColumns(
            {
                "outcome": outcome,
                "finished_at": F.col("at"),
                "attempts": F.when(known, F.col("attempts")),
                "parsed": details,
            }
        ).withColumns({"reason": F.col("parsed.reason"), "errors": _with_times(F.col("parsed.errors"))})
    )


def lives_of_removed_queues(history: DataFrame, removals: DataFrame) -> DataFrame:
    """Return a row for each life that ended because its queue was removed.

    `history` has all events up to these removals, at least from `oldest_ms` on; a message's last start or end decides.
    """
    wanted = history.join(F.broadcast(removals.select("queue").distinct()), "queue", "left_semi")
    newest = Window.partitionBy("id").orderBy(F.desc("offset"), F.desc("number"))
    ends_or_begins = wanted.where(F.col("kind").isin(*STARTS, *ENDS))
    last = ends_or_begins.withColumn("rank", F.row_number().over(newest)).where("rank = 1").drop("rank")
    alive = last.where(F.col("kind").isin(*STARTS))
    every = removal_events(wanted).select(
        "queue",
        F.col("offset").alias("gone"),
        F.col("number").alias("gone_number"),
        F.col("at").alias("gone_at"),
        F.expr(f"timestamp_millis({_SINCE})").alias("since"),
    )
    first_after = Window.partitionBy("id").orderBy("gone")
    ended = (
        alive.join(every, "queue")
        .where("gone > offset")
        .withColumn("rank", F.row_number().over(first_after))
        .where("rank = 1 AND (since IS NULL OR pushed_at >= since)")
        .join(F.broadcast(removals.select(F.col("offset").alias("gone"))), "gone", "left_semi")
    )
    nothing = F.lit(None)
    return _shaped(
        ended.withColumns(
            {
                "offset": F.col("gone"),
                "number": F.col("gone_number"),
                "outcome": F.lit("removed"),
                "finished_at": F.col("gone_at"),
                "first_leased_at": nothing.cast("timestamp"),
                "leased_at": nothing.cast("timestamp"),
                "attempts": nothing.cast("int"),
                "reason": F.lit("queue removed"),
                "errors": _with_times(F.from_json(nothing.cast("string"), _DETAILS)["errors"]),
            }
        )
    )


def removal_events(events: DataFrame) -> DataFrame:
    """Return the events that removed whole queues."""
    return events.where((F.col("kind") == "queue") & (F.get_json_object("details", "$.what") == "removed"))


def removed_queues(removals: DataFrame) -> tuple[list[str], int]:
    """Return the queues that were removed, and the earliest start of a life that these removals ended."""
    [found] = removals.selectExpr("collect_set(queue) AS queues", f"min(coalesce({_SINCE}, 0)) AS ms").collect()
    return found.queues, found.ms


def _has(mark: EventFlag) -> Column:
    return F.expr(f"marks & {int(mark)} != 0")


def _with_times(errors: Column) -> Column:
    return F.transform(
        errors,
        lambda each: F.struct(
            each["attempt"].alias("attempt"),
            F.timestamp_millis(each["at"]).alias("at"),
            each["error"].alias("error"),
        ),
    )


def _shaped(lives: DataFrame) -> DataFrame:
    served = F.col("outcome").isin("acked", "dead", "failed")
    return lives.withColumns(
        {
            "wait_ms": _between_ms("pushed_at", "first_leased_at"),
            "service_ms": F.when(served, _between_ms("leased_at", "finished_at")),
            "total_ms": _between_ms("pushed_at", "finished_at"),
        }
    ).select(*SILVER.schema.names)


def _between_ms(start: str, end: str) -> Column:
    return F.expr(f"unix_millis({end}) - unix_millis({start})")
