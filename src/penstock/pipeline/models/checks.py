"""Checks the expectations of a model on its new rows, before they are committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from msgspec import Struct

from penstock.errors import Conflict
from penstock.pipeline.lake.data_files import NewFile
from penstock.pipeline.lake.lake import Lake, LakeTable
from penstock.pipeline.lake.storage import read_batches
from penstock.pipeline.models import results
from penstock.pipeline.models.expectations import Expectation, failing, reason_of
from penstock.pipeline.models.results import Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Rows(Struct, frozen=True):
    """The rows of a table as they will be after a commit."""

    table: LakeTable
    kept: Mapping[str, int]
    """Bytes of the files that stay."""
    added: Sequence[NewFile]
    """Files that are not committed yet."""
    rejected: Mapping[str, int] = {}
    """Rows that went to the quarantine table, by reason."""
    keys: Sequence[str] = ()
    """Columns by which added rows replace others."""

    @property
    def number(self) -> int:
        """Return how many rows are new, here or in the quarantine table."""
        return sum(self.rejected.values()) + sum(file.rows for file in self.added)

    def every(self) -> dict[str, int]:
        return dict(self.kept) | sizes_of(self.added)


def check(
    spark: SparkSession, lake: Lake, model: str, expectations: Sequence[Expectation], rows: Rows, app: str, end: int
) -> None:
    """Store the result of each expectation; raise if one with the action `stop` failed.

    Without new rows the last result stands, except for `fresh`.
    """
    wanted = expectations if rows.number else [each for each in expectations if each.check == "fresh"]
    found = []
    for each in wanted:
        newest = _newest(each, rows) if each.check == "fresh" else None
        found.append(Result(model, each.text, each.action, _failed(spark, each, rows, newest), end, newest))
    results.save(lake, found, f"{app}:{model}", end)
    stopped = [each for each in found if each.action == "stop" and not each.passed]
    if stopped:
        raise Conflict(
            f"model {model}: expectation {stopped[0].expectation} failed ({stopped[0].failed} rows); "
            "nothing was committed",
            hint="correct the model or its expectations with `penstock pipeline model`, and run again",
        )


def _failed(spark: SparkSession, each: Expectation, rows: Rows, newest: datetime | None) -> int:
    if each.check == "fresh":
        return 0 if results.is_fresh(each, newest) else 1
    if each.check == "unique":
        return _repeated(spark, each, rows)
    if each.action == "quarantine":
        return rows.rejected.get(reason_of(each), 0)
    failed = 0
    if rows.added:
        for batch in read_batches(rows.table.dataset_of(sizes_of(rows.added)), list(each.columns)):
            failed += pc.sum(failing(each, batch)).as_py() or 0
    return failed


def sizes_of(files: Sequence[NewFile]) -> dict[str, int]:
    return {file.path: file.bytes for file in files}


def rejected_by(table: LakeTable, files: Sequence[NewFile]) -> dict[str, int]:
    """Count the rows of a quarantine table's files by reason."""
    if not files:
        return {}
    counts: dict[str, int] = {}
    for batch in read_batches(table.dataset_of(sizes_of(files)), ["reason"]):
        for each in pc.value_counts(batch.column("reason")).to_pylist():
            counts[each["values"]] = counts.get(each["values"], 0) + each["counts"]
    return counts


def _repeated(spark: SparkSession, each: Expectation, rows: Rows) -> int:
    """Return the number of values that occur more than once in the whole table."""
    wanted = list(dict.fromkeys((*each.columns, *rows.keys)))
    kept, added = (rows.table.frame_of(spark, wanted, sizes) for sizes in (rows.kept, sizes_of(rows.added)))
    if rows.keys:
        kept = kept.join(added.select(*rows.keys), list(rows.keys), "left_anti")
    frame = kept.unionByName(added).dropna(subset=list(each.columns))
    return frame.groupBy(*each.columns).count().where("count > 1").count()


def _newest(each: Expectation, rows: Rows) -> datetime | None:
    newest: datetime | None = None
    files = rows.every()
    if files:
        for batch in read_batches(rows.table.dataset_of(files), list(each.columns)):
            found = pc.max(batch.column(0)).as_py()
            newest = found if newest is None or (found is not None and found > newest) else newest
    return newest
