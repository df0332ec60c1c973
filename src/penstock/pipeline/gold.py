"""Events to totals by queue, by minute and by error. All of it adds up: rows of a batch join rows of the table."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.journal.events import Mark
from penstock.pipeline.silver import between_ms, has
from penstock.pipeline.tables import COUNTS, LATENCIES, QUEUE_ERRORS, QUEUE_MINUTES, QUEUES, SHARES, STATES

PATTERN_LETTERS_MAX = 200
EMPTY_SKETCH_BYTES = 8
FAILURES = ("nacked", "lapsed", "dead")
_LAPSED_ERROR = "the lease expired"


def minutes_of(events: DataFrame) -> DataFrame:
    """What these events add to each minute of each queue."""
    kind = F.col("kind")
    letter = has(Mark.DEAD_LETTER)
    waits = F.when((kind == "leased") & (F.col("attempts") == 1) & ~letter, between_ms("pushed_at", "leased_at"))
    serves = F.when(kind == "acked", between_ms("leased_at", "at"))
    totals = F.when(kind == "acked", between_ms("pushed_at", "at"))
    changes = _changes()
    return (
        events.where(kind != "worker")
        .withColumn("minute", F.date_trunc("minute", "at"))
        .groupBy("queue", "minute")
        .agg(
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
            *(F.count_if(kind == name).alias(name) for name in COUNTS),
            *(F.sum(changes[state]).cast("long").alias(f"{state}_change") for state in STATES),
            F.kll_sketch_agg_bigint(waits).alias("wait_sketch"),
            F.kll_sketch_agg_bigint(serves).alias("service_sketch"),
            F.kll_sketch_agg_bigint(totals).alias("total_sketch"),
        )
    )


def queues_with(kept: DataFrame, added: DataFrame) -> DataFrame:
    """Rows of `gold.queues` for the queues of `added`, which are minutes."""
    now = added.withColumns({f"{state}_now": F.col(f"{state}_change") for state in STATES})
    before = kept.join(F.broadcast(added.select("queue").distinct()), "queue", "left_semi")
    columns = ["queue", "first_at", "last_at", *COUNTS, *(f"{state}_now" for state in STATES)]
    return (
        now.select(columns)
        .unionByName(before.select(columns))
        .groupBy("queue")
        .agg(
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            *_sums(QUEUES.schema.names[3:]),
        )
        .select(*QUEUES.schema.names)
    )


def minutes_with(kept: DataFrame, added: DataFrame, queues: DataFrame) -> DataFrame:
    """Rows of `gold.queue_minutes` that change: minutes of `added`, and those after them, whose depth moves.

    What a queue held at the end of a minute is what it holds now less all that changed since.
    """
    since = added.groupBy("queue").agg(F.min("minute").alias("since"))
    later = kept.join(F.broadcast(since), "queue").where("minute >= since")
    columns = ["queue", "minute", *COUNTS, *(f"{state}_change" for state in STATES)]
    columns += [f"{latency}_sketch" for latency in LATENCIES]
    merged = (
        added.select(columns)
        .unionByName(later.select(columns))
        .groupBy("queue", "minute")
        .agg(
            *_sums(columns[2 : -len(LATENCIES)]),
            *(F.kll_merge_agg_bigint(f"{latency}_sketch").alias(f"{latency}_sketch") for latency in LATENCIES),
        )
    )
    after = Window.partitionBy("queue").orderBy(F.desc("minute")).rowsBetween(Window.unboundedPreceding, -1)
    ends = {
        f"{state}_end": F.col(f"{state}_now") - F.coalesce(F.sum(f"{state}_change").over(after), F.lit(0))
        for state in STATES
    }
    held = F.broadcast(queues.select("queue", *(f"{state}_now" for state in STATES)))
    return (
        merged.join(held, "queue")
        .withColumns(ends)
        .withColumns({"depth": F.col("waiting_end") + F.col("leased_end"), **_quantiles()})
        .select(*QUEUE_MINUTES.schema.names)
    )


def errors_of(events: DataFrame) -> DataFrame:
    """What these events add to the errors of each queue and hour."""
    kind = F.col("kind")
    texts = F.from_json("details", "struct<error: string, errors: array<struct<error: string>>>")
    failed = events.where(kind.isin(*FAILURES)).withColumn("told", texts)
    text = (
        F.when(kind == "nacked", F.col("told.error"))
        .when(kind == "lapsed", F.lit(_LAPSED_ERROR))
        .otherwise(F.element_at(F.col("told.errors.error"), -1))
    )
    pattern = pattern_of(F.coalesce(text, F.lit("")))
    return (
        failed.withColumns({"hour": F.date_trunc("hour", "at"), "text": F.coalesce(text, F.lit(""))})
        .withColumn("pattern", pattern)
        .withColumn("fingerprint", F.substring(F.sha2("pattern", 256), 1, 16))
        .groupBy("queue", "hour", "fingerprint", "pattern")
        .agg(
            F.min("text").alias("sample"),
            *(F.count_if(kind == name).alias(name) for name in FAILURES),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
        )
        .select(*QUEUE_ERRORS.schema.names)
    )


def errors_with(kept: DataFrame, added: DataFrame) -> DataFrame:
    keys = ["queue", "hour", "fingerprint", "pattern"]
    touched = kept.join(F.broadcast(added.select(*keys[:3])), keys[:3], "left_semi")
    return (
        added.unionByName(touched.select(*added.columns))
        .groupBy(*keys)
        .agg(
            F.min("sample").alias("sample"),
            *_sums(FAILURES),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
        )
        .select(*QUEUE_ERRORS.schema.names)
    )


def pattern_of(text: Column) -> Column:
    """The text with all that differs from case to case taken out: ids, numbers, addresses, quoted words."""
    line = F.trim(F.split(text, "\n", 2)[0])
    for what, instead in (
        (r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<id>"),
        (r"(?i)\b0x[0-9a-f]+\b", "<n>"),
        (r"'[^']*'", "<text>"),
        (r'"[^"]*"', "<text>"),
        (r"(?i)\b(?=[a-f]*[0-9])[0-9a-f]{8,}\b", "<id>"),
        (r"[0-9]+(?:\.[0-9]+)*", "<n>"),
        (r"\s+", " "),
    ):
        line = F.regexp_replace(line, what, instead)
    return F.substring(line, 1, PATTERN_LETTERS_MAX)


def _changes() -> dict[str, Column]:
    """By state, what an event adds to the number of messages in it."""
    kind, letter = F.col("kind"), has(Mark.DEAD_LETTER)
    leased, kept, gone = has(Mark.LEASED), has(Mark.KEPT), has(Mark.GONE)
    of_queue, removed = kind == "queue", kind == "removed"

    def held(state: str) -> Column:
        """It comes with them or goes with them; of other events of queues, and of older ones, there is no number."""
        number = F.get_json_object("details", f"$.{state}").cast("long")
        entered = F.get_json_object("details", "$.what") == "entered"
        return F.coalesce(F.when(entered, number).otherwise(-number), F.lit(0))

    return {
        "waiting": F.when(kind.isin("pushed", "nacked", "lapsed", "redriven"), 1)
        .when(kind.isin("dead", "expired"), -1)
        .when((kind == "leased") & ~letter, -1)
        .when((kind == "released") & ~letter, 1)
        .when(removed & ~leased & ~letter & ~kept, -1)
        .when(of_queue, held("waiting"))
        .otherwise(0),
        "leased": F.when(kind == "leased", 1)
        .when(kind.isin("acked", "nacked", "lapsed", "released"), -1)
        .when(removed & leased, -1)
        .when(of_queue, held("leased"))
        .otherwise(0),
        "dead": F.when((kind == "dead") & ~gone, 1)
        .when(kind == "redriven", -1)
        .when((kind == "leased") & letter, -1)
        .when((kind == "released") & letter, 1)
        .when(removed & ~leased & letter, -1)
        .when(of_queue, held("dead"))
        .otherwise(0),
    }


def _quantiles() -> dict[str, Column]:
    found = {}
    for latency in LATENCIES:
        sketch = F.col(f"{latency}_sketch")
        filled = F.length(sketch) > EMPTY_SKETCH_BYTES
        for name, share in SHARES.items():
            value = F.kll_sketch_get_quantile_bigint(sketch, F.lit(share))
            found[f"{latency}_{name}_ms"] = F.when(filled, value)
    return found


def _sums(names: Iterable[str]) -> list[Column]:
    return [F.sum(name).alias(name) for name in names]
