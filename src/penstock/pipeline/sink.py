"""What Spark calls to write: tasks stage their rows, and the driver's commit sends them on (`staging`, `targets`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.pipeline.options import WriteOptions
from penstock.pipeline.rows import check_columns
from penstock.pipeline.staging import Batch, stage

Messages = list[WriterCommitMessage | None]


@dataclass
class Staged(WriterCommitMessage):
    file: str | None
    rows: int
    query: str | None


class _Writing:
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            what = "queue" if options.queue is not None else "stream"
            raise InvalidInput(f"a {what} is not overwritten", field="mode", hint='mode("append")')
        check_columns(schema.names, stream=options.stream is not None)
        self.options = options
        self.run = options.name or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        file, rows = stage(iterator, self.options)
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        return Staged(file, rows, query)


class Writer(_Writing, DataSourceArrowWriter):
    def commit(self, messages: Messages) -> None:
        batch = self._batch()
        batch.publish(*_staged(messages))
        self._forget_unnamed(batch)

    def abort(self, messages: Messages) -> None:
        batch = self._batch()
        self._forget_unnamed(batch)
        batch.discard(_staged(messages)[0])

    def _batch(self) -> Batch:
        return Batch(self.options, self.run)

    def _forget_unnamed(self, batch: Batch) -> None:
        """Nobody can ask for the same write again."""
        if self.options.name is None:
            batch.forget()


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    def commit(self, messages: Messages, batchId: int) -> None:
        self._batch(messages, batchId).publish(*_staged(messages))

    def abort(self, messages: Messages, batchId: int) -> None:
        self._batch(messages, batchId).discard(_staged(messages)[0])

    def _batch(self, messages: Messages, number: int) -> Batch:
        """Of the query that a checkpoint knows: batches of a new one have the same numbers, and other rows."""
        query = next((each.query for each in messages if isinstance(each, Staged) and each.query), None)
        return Batch(self.options, query or self.run, number)


def _staged(messages: Messages) -> tuple[list[str], int]:
    """The files there are, and how many rows they hold."""
    found = [each for each in messages if isinstance(each, Staged)]
    return [each.file for each in found if each.file is not None], sum(each.rows for each in found)
