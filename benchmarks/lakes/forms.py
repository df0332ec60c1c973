"""Variants of the Spark source for comparison: without Arrow, and with free reading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock.journal.drainer import journal_folder
from penstock.journal.reader import JournalReader
from penstock.pipeline.source.log_sources import FolderLocation
from penstock.pipeline.source.offset_ranges import OffsetRange, parts_of

from .journal import BATCH

READY_MADE_ROWS = 32_768
PAGE_RECORDS = 1_000


class FormReader(DataSourceReader):
    def __init__(self, path: str, columns: list[str]) -> None:
        self._folder, self._columns = journal_folder(Path(path) / "penstock.db"), columns
        self._place = FolderLocation(str(self._folder))

    def partitions(self) -> list[InputPartition]:
        with closing(self._place.open()) as log:
            return [InputPartition(part) for part in parts_of(log.segments(), 0, log.next_offset, 2)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self.rows(partition.value)

    def rows(self, part: OffsetRange) -> Iterator[Any]:
        raise NotImplementedError


class OneByOne(FormReader):
    """Decodes each event separately, like any reader of the journal without Arrow."""

    def rows(self, part: OffsetRange) -> Iterator[tuple[Any, ...]]:
        with closing(JournalReader(self._folder)) as journal:
            offset = part.start
            while offset < part.end:
                page = journal.read(offset, limit=min(PAGE_RECORDS, part.end - offset))
                for event in page.events:
                    yield tuple(_value(getattr(event, name), name) for name in self._columns)
                offset = page.next


def _value(value: Any, name: str) -> Any:
    return datetime.fromtimestamp(value / 1000, UTC) if name == "at" else value


class ColumnsAsTuples(FormReader):
    """Decodes to Arrow like the real source, but passes single rows to Spark."""

    def rows(self, part: OffsetRange) -> Iterator[tuple[Any, ...]]:
        with closing(self._place.open()) as log:
            for batch in log.read(part, self._columns):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class ReadyMade(FormReader):
    """Returns the first batch repeatedly without reading or decoding, so that only Spark's own cost remains."""

    def rows(self, part: OffsetRange) -> Iterator[pa.RecordBatch]:
        with closing(self._place.open()) as log:
            first = pa.Table.from_batches([next(iter(log.read(part, self._columns)))])
        events = (part.end - part.start) * BATCH
        times = -(-READY_MADE_ROWS // first.num_rows)
        (batch,) = pa.concat_tables([first] * times).combine_chunks().slice(0, READY_MADE_ROWS).to_batches()
        for done in range(0, events, READY_MADE_ROWS):
            yield batch.slice(0, events - done)


def form(name_: str, reader: type[FormReader]) -> type[DataSource]:
    class Form(DataSource):
        @classmethod
        def name(cls) -> str:
            return name_

        def reader(self, schema: Any) -> DataSourceReader:
            return reader(self.options["path"], schema.names)

    return Form


ONE_BY_ONE, TUPLES, READY_MADE = "one_by_one", "tuples", "ready_made"
FORMS = [form(ONE_BY_ONE, OneByOne), form(TUPLES, ColumnsAsTuples), form(READY_MADE, ReadyMade)]
