"""Removes what the lake holds of some messages, for example of one person.

Their rows stay, so that counts do and `verify` still finds every table equal to what its events add up to. Their texts
go: bodies, details (keys, headers, errors, workers), reasons and errors, and the samples and patterns of gold.errors.
Bronze is last, so that after a crash the same condition finds the same messages. Then every file that is not needed any
more is deleted, with the older versions of the tables and of their logs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, structs
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from penstock.errors import InvalidInput
from penstock.journal.arrow import TIME
from penstock.pipeline.lake import gold
from penstock.pipeline.lake.compaction import rows_of
from penstock.pipeline.lake.files import write_batches
from penstock.pipeline.lake.lake import Lake, LakeTable, NewFile
from penstock.pipeline.lake.retention import trimmed_before
from penstock.pipeline.lake.tables import BRONZE, QUEUE_ERRORS, SILVER, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Ids of messages that the driver holds at a time.
MESSAGES_MAX = 1_000_000
_KEYS = ("queue", "hour", "fingerprint")
_KEY_SCHEMA = pa.schema([QUEUE_ERRORS.schema.field(name) for name in _KEYS])
FORGOTTEN = {BRONZE.name: ("details", "body"), SILVER.name: ("reason", "errors")}

REQUESTS = Table(
    "audit.forget_requests",
    pa.schema(
        [
            ("at", TIME),
            ("by", pa.string()),
            ("condition_sha256", pa.string()),  # the condition itself may name the person
            ("messages", pa.int64()),
            ("bronze_rows", pa.int64()),
            ("silver_rows", pa.int64()),
            ("error_rows", pa.int64()),
        ]
    ),
    ("at",),
    ("at",),
    "one row per `penstock pipeline forget`",
)


class Found(Struct, frozen=True, kw_only=True):
    """What a condition finds."""

    messages: int
    bronze_rows: int
    silver_rows: int
    error_rows: int
    """Rows of gold.errors whose samples may quote these messages."""
    last_offset: int | None
    """Newest event of these messages: the journal has some of them if it begins before."""


class Forgetting:
    """The messages that a condition finds, and what the lake says of them."""

    def __init__(self, spark: SparkSession, lake: Lake, condition: str) -> None:
        self._spark, self._lake, self._condition = spark, lake, condition
        self._found = self._matching().persist()
        self._ids = self._held()
        self._errors = self._error_groups()

    def _matching(self) -> DataFrame:
        """Return the ids of messages of which any row of bronze, or of silver, meets the condition."""
        found, known = [], False
        for table in (BRONZE, SILVER):
            rows = self._lake[table].read(self._spark)
            try:
                found.append(rows.where(F.expr(self._condition)).where("id IS NOT NULL").select("id"))
                known = True
            except AnalysisException as error:
                # Silver lacks some columns of bronze, and the other way round.
                if "UNRESOLVED_COLUMN" not in str(error):
                    raise
        if not known:
            raise InvalidInput(
                "the condition names a column that neither bronze.events nor silver.messages has",
                field="where",
                hint="see their columns with `penstock pipeline sql 'DESCRIBE bronze.events'`",
            )
        return found[0].union(found[-1]).distinct()

    def _held(self) -> pa.Array:
        ids = self._found.limit(MESSAGES_MAX + 1).toArrow()["id"].combine_chunks()
        if len(ids) > MESSAGES_MAX:
            raise InvalidInput(
                f"the condition finds more than {MESSAGES_MAX} messages",
                field="where",
                hint="forget them in parts, for example by day",
            )
        return ids.cast(pa.int64())

    def _rows(self, table: Table) -> DataFrame:
        """Return the rows of these messages."""
        return self._lake[table].read(self._spark).join(F.broadcast(self._found), "id", "left_semi")

    def _error_groups(self) -> pa.Table:
        """Return queue and fingerprint of the errors of these messages."""
        if not len(self._ids):
            return pa.table({"queue": pa.array([], pa.string()), "fingerprint": pa.array([], pa.string())})
        texts = self._rows(SILVER).select("queue", F.explode("errors.error").alias("text"))
        prints = texts.select("queue", gold.fingerprint_of(gold.pattern_of(F.col("text"))).alias("fingerprint"))
        events = gold.errors_of(self._rows(BRONZE)).select("queue", "fingerprint")
        return prints.union(events).distinct().toArrow()

    def found(self) -> Found:
        counts = {table.name: self._rows(table).count() if len(self._ids) else 0 for table in (BRONZE, SILVER)}
        last = self._rows(BRONZE).agg(F.max("offset")).collect()[0][0] if len(self._ids) else None
        return Found(
            messages=len(self._ids),
            bronze_rows=counts[BRONZE.name],
            silver_rows=counts[SILVER.name],
            error_rows=sum(rows.num_rows for rows in self._quoting()),
            last_offset=last,
        )

    def forget(self, by: str) -> Found:
        """Remove it all, record who asked, and delete the files that still have it."""
        found = self.found()
        self._record(by, found)
        self._recompute_errors()
        for table in (SILVER, BRONZE):
            self._empty(self._lake[table])
        for each in self._lake.tables():
            each.purge()
        self._found.unpersist()
        return found

    def _empty(self, table: LakeTable) -> None:
        """Empty the columns in one commit: half a message might not be found again."""
        columns = FORGOTTEN[table.table.name]
        removed: list[str] = []
        added: list[NewFile] = []
        for path in table.entries()["path"].to_pylist():
            if any(pc.any(_mask(batch, self._ids)).as_py() for batch in rows_of(table, [path], ["id"])):
                emptied = (_emptied(batch, self._ids, columns) for batch in rows_of(table, [path]))
                added += write_batches(emptied, table.folder, table.table)
                removed.append(path)
        table.replace(removed, added)

    def _quoting(self) -> Iterator[pa.Table]:
        """Yield queue and hour of the rows of gold.errors that may quote these messages."""
        table = self._lake[QUEUE_ERRORS]
        for path in table.entries()["path"].to_pylist():
            rows = pa.Table.from_batches(rows_of(table, [path], _KEYS), _KEY_SCHEMA)
            yield rows.join(self._errors, ["queue", "fingerprint"], join_type="left semi").select(["queue", "hour"])

    def _recompute_errors(self) -> None:
        """Sum the failures again, of the hours and queues concerned, without these messages' texts.

        Of hours that bronze no longer has, rows keep their counts and lose their texts.
        """
        table = self._lake[QUEUE_ERRORS]
        since = trimmed_before(self._lake[BRONZE]) or datetime.fromtimestamp(0, UTC)
        quoting = list(self._quoting())
        if not any(rows.num_rows for rows in quoting):
            return
        hours = pa.concat_tables(quoting).group_by(["queue", "hour"]).aggregate([])
        whole = pc.greater_equal(hours["hour"], pa.scalar(since, TIME))
        again, old = hours.filter(whole), hours.filter(pc.invert(whole))
        added = [self._summed(again)] if again.num_rows else []
        removed = []
        for path in table.entries()["path"].to_pylist():
            rows = pa.Table.from_batches(rows_of(table, [path]), QUEUE_ERRORS.schema)
            kept = rows.join(again, ["queue", "hour"], join_type="left anti").select(QUEUE_ERRORS.schema.names)
            blanked = _blanked(kept, old, self._errors)
            if kept.num_rows < rows.num_rows or not blanked.equals(kept):
                removed.append(path)
                added.append(blanked)
        rows = pa.concat_tables([each.cast(QUEUE_ERRORS.schema) for each in added]).sort_by("hour")
        table.replace(removed, list(write_batches(rows.to_batches(), table.folder, QUEUE_ERRORS)))

    def _summed(self, hours: pa.Table) -> pa.Table:
        events = self._lake[BRONZE].read(self._spark, at=pc.min(hours["hour"]).as_py())
        marked = events.join(F.broadcast(self._found.withColumn("forgotten", F.lit(True))), "id", "left")
        without = marked.withColumn("details", F.when(F.col("forgotten").isNull(), F.col("details")))
        summed = gold.errors_of(without.where(F.col("at") >= F.lit(pc.min(hours["hour"]).as_py()))).toArrow()
        return summed.cast(QUEUE_ERRORS.schema).join(hours, ["queue", "hour"], join_type="left semi")

    def _record(self, by: str, found: Found) -> None:
        table = LakeTable(self._lake.folder.joinpath(*REQUESTS.name.split(".")), REQUESTS)
        table.create()
        counted = {name: value for name, value in structs.asdict(found).items() if name in REQUESTS.schema.names}
        digest = hashlib.sha256(self._condition.encode()).hexdigest()
        row = {"at": datetime.now(UTC), "by": by, "condition_sha256": digest, **counted}
        batch = pa.RecordBatch.from_pylist([row], REQUESTS.schema)
        table.replace([], list(write_batches([batch], table.folder, REQUESTS)))


def _mask(batch: pa.RecordBatch, ids: pa.Array) -> pa.Array:
    return pc.fill_null(pc.is_in(batch["id"], ids), False)


def _emptied(batch: pa.RecordBatch, ids: pa.Array, columns: Sequence[str]) -> pa.RecordBatch:
    wanted = _mask(batch, ids)
    for name in columns:
        place, field = batch.schema.get_field_index(name), batch.schema.field(name)
        values = pc.if_else(wanted, pa.nulls(batch.num_rows, field.type), batch[name])
        batch = batch.set_column(place, field, values)
    return batch


def _blanked(rows: pa.Table, hours: pa.Table, errors: pa.Table) -> pa.Table:
    """Return the rows without the texts of these errors in these hours."""
    if not hours.num_rows:
        return rows
    place = rows.append_column("place", pa.array(range(rows.num_rows), pa.int64()))
    quoting = place.join(errors, ["queue", "fingerprint"], join_type="left semi")
    quoting = quoting.join(hours, ["queue", "hour"], join_type="left semi")
    wanted = pc.is_in(place["place"], quoting["place"])
    for name in ("pattern", "sample"):
        values = pc.if_else(wanted, pa.scalar("", pa.string()), rows[name])
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), values)
    return rows
