"""Fills a typed model's two tables from bronze: the rows that fit its schema, and the rejected ones.

Each table has its own position, so that a run that was killed between the two commits is completed by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.lake.data_files import NewFile
from penstock.pipeline.lake.files import write_split
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.storage import read_table
from penstock.pipeline.lake.tables import BRONZE
from penstock.pipeline.models.catalog import ModelTable, tables_of_model
from penstock.pipeline.models.checks import Rows, check, rejected_by
from penstock.pipeline.models.decode import BODIES, BodyDecoder, Split
from penstock.pipeline.models.definitions import Definition, Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Events = Callable[[int, int], "DataFrame"]
"""Reads the columns PUSHED of the events between two offsets."""
PUSHED = (*BODIES, "kind", "queue")


class TypedModel:
    def __init__(self, spark: SparkSession, lake: Lake, definition: Definition, app: str) -> None:
        self.definition = definition
        self.table, self.rejects = tables_of_model(lake, definition)
        self._spark = spark
        self._lake = lake
        self._app = app

    def create(self) -> None:
        for table in (self.table, self.rejects):
            table.create()

    def is_behind(self, position: int) -> bool:
        return any(table.position(self._app) != position for table in (self.table, self.rejects))

    def fill(self, events: Events, end: int, small: bool) -> None:
        """Bring both tables up to an offset. A `small` step is done by the driver alone."""
        behind = [table for table in (self.rejects, self.table) if table.position(self._app) != end]
        starts = {self._start(table) for table in behind}
        if len(starts) == 1:
            # Except after a crash, both tables are at the same position and share one pass.
            start = starts.pop()
            written = self._write(events, start, end, small)
            self._commit(behind, written, end)
        else:
            for table in behind:
                start = self._start(table)
                self._commit([table], self._write(events, start, end, small), end)

    def _start(self, table: ModelTable) -> int:
        return table.position(self._app) or 0

    def _commit(self, behind: Sequence[ModelTable], written: dict[str, list[NewFile]], end: int) -> None:
        if self.table in behind:
            self._check(written, end)
        for table in behind:
            table.commit(written[table.table.name], self._app, end)

    def _check(self, written: dict[str, list[NewFile]], end: int) -> None:
        added, rejected = (written[table.table.name] for table in (self.table, self.rejects))
        kept = {} if self.table.position(self._app) is None else self.table.sizes()
        rows = Rows(self.table, kept, added, rejected_by(self.rejects, rejected))
        expectations = self.definition.newest.expectations
        check(self._spark, self._lake, self.definition.name, expectations, rows, self._app, end)

    def _write(self, events: Events, start: int, end: int, small: bool) -> dict[str, list[NewFile]]:
        outputs = [(table.folder, table.table) for table in (self.table, self.rejects)]
        written: dict[str, list[NewFile]] = {table.name: [] for _, table in outputs}
        for version, low, high in ranges(self.definition.versions, start, end):
            rows = self._few(low, high) if small else pushed(events(low, high), self.definition.queue)
            files = write_split(rows, splitter(version, self.table.table.schema), outputs)
            for (_, table), found in zip(outputs, files, strict=True):
                written[table.name] += found
        return written

    def _few(self, start: int, end: int) -> pa.Table:
        """Read the messages of a small step without Spark."""
        offset = pc.field("offset")
        wanted = (offset >= start) & (offset < end) & (pc.field("kind") == "pushed")
        wanted &= (pc.field("queue") == self.definition.queue) & pc.field("body").is_valid()
        return read_table(self._lake[BRONZE].dataset(offset=start), list(BODIES), wanted)


def pushed(events: DataFrame, queue: str) -> DataFrame:
    """Return the pushed messages of a queue whose bodies are in the journal."""
    wanted = (events["kind"] == "pushed") & (events["queue"] == queue) & events["body"].isNotNull()
    return events.where(wanted).select(*BODIES)


def ranges(versions: Sequence[Version], start: int, end: int) -> Iterator[tuple[Version, int, int]]:
    """Divide a range of offsets by the versions of the schema that apply."""
    ends = [*(each.since for each in versions[1:]), end]
    for version, until in zip(versions, ends, strict=True):
        low, high = max(start, version.since), min(until, end)
        if low < high:
            yield version, low, high


def splitter(version: Version, schema: pa.Schema) -> Callable[[pa.RecordBatch], Split]:
    """Return a function that decodes with a version of the schema, with the columns of the newest one."""
    root, expectations = version.root, version.expectations
    decoders: list[BodyDecoder] = []

    def split(batch: pa.RecordBatch) -> Split:
        if not decoders:  # Created in the task, because a decoder cannot be pickled.
            decoders.append(BodyDecoder(root, expectations))
        kept, rejected = decoders[0].split(batch)
        return with_columns(kept, schema), rejected

    return split


def with_columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Add the columns that a schema has since got, as nulls."""
    columns = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
