"""Spark's writers: tasks stage their rows, and the driver's commit sends them (`staging`, `targets`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.pipeline.sink.rows import check_columns
from penstock.pipeline.sink.staging import Batch, Staged, stage
from penstock.pipeline.source.options import WriteOptions

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:
    # PySpark 4.0 passes Arrow to any writer of this class, also in a streaming query.
    class DataSourceStreamArrowWriter(DataSourceArrowWriter, DataSourceStreamWriter):  # type: ignore[misc,no-redef]
        pass


Messages = list[WriterCommitMessage | None]


@dataclass(frozen=True)
class Task(WriterCommitMessage):
    """Result of one task."""

    partition: int
    staged: Staged
    query: str | None


class _WriterBase:
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            what = "queue" if options.queue is not None else "stream"
            raise InvalidInput(f"a {what} cannot be overwritten", field="mode", hint='use mode("append")')
        check_columns(schema.names, stream=options.stream is not None)
        self.options = options
        self.run = options.name or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Task:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        return Task(context.partitionId(), stage(iterator, self.options), query)


class SinkWriter(_WriterBase, DataSourceArrowWriter):
    def commit(self, messages: Messages) -> None:
        batch = self._batch()
        batch.publish(_staged(messages), checked=True)
        self._forget_unnamed(batch)

    def abort(self, messages: Messages) -> None:
        batch = self._batch()
        self._forget_unnamed(batch)
        batch.discard(_staged(messages))

    def _batch(self) -> Batch:
        return Batch(self.options, self.run)

    def _forget_unnamed(self, batch: Batch) -> None:
        """Delete the state of a write without a name, which cannot be repeated."""
        if self.options.name is None:
            batch.forget()


class StreamWriter(_WriterBase, DataSourceStreamArrowWriter):
    def commit(self, messages: Messages, batchId: int) -> None:
        self._batch(messages, batchId).publish(_staged(messages))

    def abort(self, messages: Messages, batchId: int) -> None:
        self._batch(messages, batchId).discard(_staged(messages))

    def _batch(self, messages: Messages, number: int) -> Batch:
        """Return the batch under the query's id: a new query reuses batch numbers for other rows."""
        query = next((each.query for each in messages if isinstance(each, Task) and each.query), None)
        return Batch(self.options, query or self.run, number)


def _staged(messages: Messages) -> list[Staged]:
    """Return what successful tasks have staged, in partition order."""
    tasks = [each for each in messages if isinstance(each, Task)]
    return [each.staged for each in sorted(tasks, key=lambda task: task.partition)]
