"""Removes what the lake holds of some messages, for example of one person.

Their rows stay, so that counts do and `verify` still finds every table equal to what its events add up to. Their texts
go: bodies, details (keys, headers, errors, workers), reasons and errors, and the samples and patterns of gold.errors.
Rows of typed models are removed, because they are nothing but the body. Bronze is last, so that after a crash the same
condition finds the same messages. Then every file that is not needed any more is deleted, with the older versions of
the tables and of their logs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, structs
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.errors import Conflict, InvalidInput
from penstock.journal.arrow import TIME
from penstock.pipeline.lake import gold
from penstock.pipeline.lake.data_files import NewFile
from penstock.pipeline.lake.files import write_batches
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.lake.purge import purge
from penstock.pipeline.lake.storage import delete_files, files_in
from penstock.pipeline.lake.tables import BRONZE, QUEUE_ERRORS, SILVER, Table
from penstock.pipeline.models.catalog import as_it_is, model_tables, removed_tables, tables_of_model
from penstock.pipeline.models.decode import BODIES
from penstock.pipeline.models.definitions import Definitions
from penstock.pipeline.retention import trimmed_before
from penstock.pipeline.sql import QUERY_FOLDERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
            ("model_rows", pa.int64()),
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
    model_rows: int
    """Rows of typed models and of their quarantine tables."""
    last_offset: int | None
    """Newest event of these messages: the journal has some of them if it begins before."""


class Forgetting:
    """The messages that a condition finds, and what the lake says of them."""

    def __init__(self, spark: SparkSession, lake: Lake, condition: str) -> None:
        self._spark, self._lake, self._condition = spark, lake, condition
        self._models = _typed_tables(lake)
        self._found = self._matching().persist()
        self._ids = self._held()
        self._errors = self._error_groups()

    def _matching(self) -> DataFrame:
        """Return the ids of messages of which any row meets the condition.

        Of a model, only columns that mean the same as in bronze count: retention may have dropped them there.
        """
        found, known = [], False
        tables = [(self._lake[table], table.schema.names) for table in (BRONZE, SILVER)]
        tables += [(table, [name for name in BODIES if name in table.table.schema.names]) for table in self._models]
        for table, columns in tables:
            rows = table.read(self._spark, columns)
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
        return reduce(DataFrame.union, found).distinct()

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
            model_rows=sum(self._count(table) for table in self._models) if len(self._ids) else 0,
            last_offset=last,
        )

    def _count(self, table: LakeTable) -> int:
        return sum(pc.sum(_mask(batch, self._ids)).as_py() or 0 for batch in table.batches_of(table.sizes(), ["id"]))

    def forget(self, by: str) -> Found:
        """Remove it all, record who asked, and delete the files that still have it."""
        found = self.found()
        self._record(by, found)
        self._recompute_errors()
        for table in self._models:
            self._rewrite(table, lambda batch: batch.filter(pc.invert(_mask(batch, self._ids))))
        for each in (SILVER, BRONZE):
            self._rewrite(self._lake[each], partial(_emptied, ids=self._ids, columns=FORGOTTEN[each.name]))
        for table in [*self._lake.tables(), *model_tables(self._lake), *removed_tables(self._lake)]:
            purge(table)
        # Queries that were killed leave what they had read.
        folder = self._lake.folder
        delete_files(folder, [name for name in files_in(folder) if name.startswith(QUERY_FOLDERS)])
        self._found.unpersist()
        return found

    def _rewrite(self, table: LakeTable, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        """Change the files with these messages in one commit: half a message might not be found again."""
        removed: list[str] = []
        added: list[NewFile] = []
        for path, size in table.sizes().items():
            file = {path: size}
            if any(pc.any(_mask(batch, self._ids)).as_py() for batch in table.batches_of(file, ["id"])):
                added += write_batches(map(change, table.batches_of(file)), table.folder, table.table)
                removed.append(path)
        table.replace_files(removed, added)

    def _quoting(self) -> Iterator[pa.Table]:
        """Yield queue and hour of the rows of gold.errors that may quote these messages."""
        table = self._lake[QUEUE_ERRORS]
        for path, size in table.sizes().items():
            rows = pa.Table.from_batches(table.batches_of({path: size}, _KEYS), _KEY_SCHEMA)
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
        for path, size in table.sizes().items():
            rows = pa.Table.from_batches(table.batches_of({path: size}), QUEUE_ERRORS.schema)
            kept = rows.join(again, ["queue", "hour"], join_type="left anti").select(QUEUE_ERRORS.schema.names)
            blanked = _blanked(kept, old, self._errors)
            if kept.num_rows < rows.num_rows or not blanked.equals(kept):
                removed.append(path)
                added.append(blanked)
        rows = pa.concat_tables([each.cast(QUEUE_ERRORS.schema) for each in added]).sort_by("hour")
        table.replace_files(removed, list(write_batches(rows.to_batches(), table.folder, QUEUE_ERRORS)))

    def _summed(self, hours: pa.Table) -> pa.Table:
        events = self._lake[BRONZE].read(self._spark, at=pc.min(hours["hour"]).as_py())
        marked = events.join(F.broadcast(self._found.withColumn("forgotten", F.lit(True))), "id", "left")
        without = marked.withColumn("details", F.when(F.col("forgotten").isNull(), F.col("details")))
        summed = gold.errors_of(without.where(F.col("at") >= F.lit(pc.min(hours["hour"]).as_py()))).toArrow()
        return summed.cast(QUEUE_ERRORS.schema).join(hours, ["queue", "hour"], join_type="left semi")

    def _record(self, by: str, found: Found) -> None:
        table = self._lake[REQUESTS]
        table.create()
        counted = {name: value for name, value in structs.asdict(found).items() if name in REQUESTS.schema.names}
        digest = hashlib.sha256(self._condition.encode()).hexdigest()
        row = {"at": datetime.now(UTC), "by": by, "condition_sha256": digest, **counted}
        batch = pa.RecordBatch.from_pylist([row], REQUESTS.schema)
        table.replace_files([], list(write_batches([batch], table.folder, REQUESTS)))


def _typed_tables(lake: Lake) -> list[LakeTable]:
    """Return the tables of typed models; raise if there are queries, of whose rows nobody knows the messages."""
    definitions = Definitions(lake).all().values()
    queries = [each.name for each in definitions if each.kind == "sql"]
    if queries:
        raise Conflict(
            f"the results of {len(queries)} SQL models, such as {queries[0]!r}, may contain these messages",
            hint="remove these models with `penstock pipeline model remove`, forget, and add them again with"
            " `penstock pipeline run --models`",
        )
    tables = [table for each in definitions for table in tables_of_model(lake, each) if table.exists()]
    return [as_it_is(table) for table in tables]


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
