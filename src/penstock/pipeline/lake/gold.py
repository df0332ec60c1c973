"""Aggregates events by queue, minute and error. All aggregates are additive, so a batch merges into the table."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.journal.events import EventFlag
from penstock.pipeline.lake.tables import COUNTS, LATENCIES, QUEUE_ERRORS, QUEUE_MINUTES, QUEUES, SHARES, STATES

PATTERN_LETTERS_MAX = 200
EMPTY_SKETCH_BYTES = 8
FAILURES = ("nacked", "lapsed", "dead")
_EXPIRED_ERROR = "the lease expired"


def _has(marks: int) -> str:
    """Return the SQL condition that an event has one of these flags."""
    return f"(marks & {int(marks)} <> 0)"


# SQL text, because parsing it is one JVM call, while building a tree of columns takes hundreds in every step.
# Messages that a queue has when it enters or leaves the journal; other and older queue events have no counts.
_HELD = "if(get_json_object(details, '$.what') = 'entered', 1, -1) * bigint(get_json_object(details, '$.{}'))"
# Change of the number of messages in each state by an event.
_CHANGES = {
    "waiting": f"""CASE WHEN kind IN ('pushed', 'nacked', 'lapsed', 'redriven') THEN 1
        WHEN kind IN ('dead', 'expired') THEN -1
        WHEN kind = 'leased' AND NOT {_has(EventFlag.DEAD_LETTER)} THEN -1
        WHEN kind = 'released' AND NOT {_has(EventFlag.DEAD_LETTER)} THEN 1
        WHEN kind = 'removed' AND NOT {_has(EventFlag.LEASED | EventFlag.DEAD_LETTER | EventFlag.KEPT)} THEN -1
        WHEN kind = 'queue' THEN coalesce({_HELD.format("waiting")}, 0) ELSE 0 END""",
    "leased": f"""CASE WHEN kind = 'leased' THEN 1
        WHEN kind IN ('acked', 'nacked', 'lapsed', 'released') THEN -1
        WHEN kind = 'removed' AND {_has(EventFlag.LEASED)} THEN -1
        WHEN kind = 'queue' THEN coalesce({_HELD.format("leased")}, 0) ELSE 0 END""",
    "dead": f"""CASE WHEN kind = 'dead' AND NOT {_has(EventFlag.GONE)} THEN 1
        WHEN kind = 'redriven' THEN -1
        WHEN kind = 'leased' AND {_has(EventFlag.DEAD_LETTER)} THEN -1
        WHEN kind = 'released' AND {_has(EventFlag.DEAD_LETTER)} THEN 1
        WHEN kind = 'removed' AND {_has(EventFlag.DEAD_LETTER)} AND NOT {_has(EventFlag.LEASED)} THEN -1
        WHEN kind = 'queue' THEN coalesce({_HELD.format("dead")}, 0) ELSE 0 END""",
}
_MS = {
    "wait": f"""CASE WHEN kind = 'leased' AND attempts = 1 AND NOT {_has(EventFlag.DEAD_LETTER)}
        THEN unix_millis(leased_at) - unix_millis(pushed_at) END""",
    "service": "CASE WHEN kind = 'acked' THEN unix_millis(at) - unix_millis(leased_at) END",
    "total": "CASE WHEN kind = 'acked' THEN unix_millis(at) - unix_millis(pushed_at) END",
}
QUANTILES = {
    f"{latency}_{name}_ms": f"""CASE WHEN length({latency}_sketch) > {EMPTY_SKETCH_BYTES}
        THEN kll_sketch_get_quantile_bigint({latency}_sketch, double({share})) END"""
    for latency in LATENCIES
    for name, share in SHARES.items()
}


def minutes_of(events: DataFrame) -> DataFrame:
    """Aggregate events by queue and minute."""
    return (
        events.where("kind <> 'worker'")
        .groupBy("queue", F.expr("date_trunc('minute', at) AS minute"))
        .agg(
            F.expr("min(at) AS first_at"),
            F.expr("max(at) AS last_at"),
            *(F.expr(f"count_if(kind = '{name}') AS {name}") for name in COUNTS),
            *(F.expr(f"CAST(sum({_CHANGES[state]}) AS bigint) AS {state}_change") for state in STATES),
            *(F.expr(f"kll_sketch_agg_bigint({_MS[latency]}) AS {latency}_sketch") for latency in LATENCIES),
        )
    )


def totals_of(minutes: DataFrame) -> DataFrame:
    """Sum the counts of each queue over all its minutes."""
    return minutes.groupBy("queue").agg(*_sums(COUNTS))


def queues_with(kept: DataFrame, added: DataFrame) -> DataFrame:
    """Return the updated rows of `gold.queues` for the queues in the minutes `added`."""
    before = kept.join(F.broadcast(added.select("queue").distinct()), "queue", "left_semi")
    columns = ["queue", "first_at", "last_at", *COUNTS]
    now = added.selectExpr(columns + [f"{state}_change AS {state}_now" for state in STATES])
    return (
        now.union(before.selectExpr(QUEUES.schema.names))
        .groupBy("queue")
        .agg(
            F.expr("min(first_at) AS first_at"),
            F.expr("max(last_at) AS last_at"),
            *_sums(QUEUES.schema.names[3:]),
        )
    )


def minutes_with(kept: DataFrame, added: DataFrame, queues: DataFrame) -> DataFrame:
    """Return the changed rows of `gold.queue_minutes`: the minutes of `added`, and later ones, whose depth changes.

    The depth at the end of a minute is the current depth minus all changes since.
    """
    since = added.groupBy("queue").agg(F.expr("min(minute) AS since"))
    later = kept.join(F.broadcast(since), "queue").where("minute >= since")
    sums = [*COUNTS, *(f"{state}_change" for state in STATES)]
    sketches = [f"{latency}_sketch" for latency in LATENCIES]
    columns = ["queue", "minute", *sums, *sketches]
    merged = (
        added.selectExpr(columns)
        .union(later.selectExpr(columns))
        .groupBy("queue", "minute")
        .agg(*_sums(sums), *(F.expr(f"kll_merge_agg_bigint({name}) AS {name}") for name in sketches))
    )
    held = F.broadcast(queues.selectExpr(["queue", *(f"{state}_now" for state in STATES)]))
    after = "OVER (PARTITION BY queue ORDER BY minute DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    ends = [f"{state}_now - coalesce(sum({state}_change) {after}, 0) AS {state}_end" for state in STATES]
    with_ends = merged.join(held, "queue").selectExpr([*columns, *ends])
    found = QUANTILES | {"depth": "waiting_end + leased_end"}
    return with_ends.selectExpr([f"{found.get(name, name)} AS {name}" for name in QUEUE_MINUTES.schema.names])


def minutes_untouched(kept: DataFrame, added: DataFrame) -> DataFrame:
    """Return the rows that `minutes_with` does not replace."""
    since = added.groupBy("queue").agg(F.expr("min(minute) AS since"))
    rest = kept.join(F.broadcast(since), "queue", "left").where("since IS NULL OR minute < since")
    return rest.select(*QUEUE_MINUTES.schema.names)


def errors_of(events: DataFrame) -> DataFrame:
    """Aggregate failures by queue, hour and error."""
    kind = F.col("kind")
    texts = F.from_json("details", "struct<error: string, errors: array<struct<error: string>>>")
    failed = events.where(kind.isin(*FAILURES)).withColumn("parsed", texts)
    text = (
        F.when(kind == "nacked", F.col("parsed.error"))
        .when(kind == "lapsed", F.lit(_EXPIRED_ERROR))
        .otherwise(F.element_at(F.col("parsed.errors.error"), -1))
    )
    pattern = pattern_of(F.coalesce(text, F.lit("")))
    return (
        failed.withColumns({"hour": F.date_trunc("hour", "at"), "text": F.coalesce(text, F.lit(""))})
        .withColumn("pattern", pattern)
        .withColumn("fingerprint", fingerprint_of(F.col("pattern")))
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
    """Return the text with variable parts replaced: ids, numbers, addresses, quoted words."""
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


def fingerprint_of(pattern: Column) -> Column:
    return F.substring(F.sha2(pattern, 256), 1, 16)


def _sums(names: Iterable[str]) -> list[Column]:
    return [F.expr(f"sum({name}) AS {name}") for name in names]
