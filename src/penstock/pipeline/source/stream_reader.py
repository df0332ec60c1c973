"""Reads a log in micro-batches.

Offsets are `{"offset": n, "lost": k, "uid": u}`: everything before n of log u has been read, except k records that were
already trimmed. Any range can be read again exactly.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import Conflict, InvalidInput
from penstock.pipeline.source.log_sources import SourceLog
from penstock.pipeline.source.options import ReadOptions, Timestamp
from penstock.pipeline.source.range_reader import RangeReader

OFFSET, LOST, UID = "offset", "lost", "uid"
Offset = dict[str, Any]


class StreamReader(RangeReader, DataSourceStreamReader):
    """Streaming reads with PySpark 4.0 and 4.1, which ask for the end of the log without naming a start or a limit."""

    limits_batches = False

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.end != "latest":
            hint = "it is for batch reads; trigger(availableNow=True) stops at the end that it finds at its start"
            name = "endingTimestamp" if isinstance(options.end, Timestamp) else "endingOffsets"
            raise InvalidInput(f"{name} is not supported for streaming queries", field=name, hint=hint)
        if options.offsets_max is not None and not self.limits_batches:
            hint = "leave it out, or use Spark 4.2 or newer"
            raise InvalidInput(
                "this version of Spark cannot limit micro-batches", field="maxOffsetsPerTrigger", hint=hint
            )
        self._log: SourceLog | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None}

    @property
    def log(self) -> SourceLog:
        if self._log is None:
            self._log = self.options.open()
        return self._log

    def initialOffset(self) -> Offset:
        return {OFFSET: self.options.first(self.log), LOST: 0, UID: self.log.uid}

    def latestOffset(self) -> Offset:  # type: ignore[override]
        end = self.log.next_offset
        start = self.options.start
        return {OFFSET: max(end, start) if isinstance(start, int) else end, LOST: 0, UID: self.log.uid}

    def belongs_to_log(self, offset: Offset, uid: str) -> bool:
        """Return True if an offset belongs to this log, and not to an earlier one that was deleted or restored."""
        at, known = offset[OFFSET], offset.get(UID, uid)  # Older checkpoints have no uid.
        if known == uid and (at <= self.log.next_offset or at == self.options.start):
            return True
        text = f"{self.log.name!r} was recreated or restored since it was read up to offset {at}"
        if self.options.fail_on_data_loss:
            raise Conflict(
                text, hint="failOnDataLoss=false restarts at its beginning; records that were not read yet are lost"
            )
        logging.getLogger(__name__).warning("%s; reading restarts at its beginning", text)
        return False

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        uid = self.log.uid
        if not self.belongs_to_log(end, uid):
            return []
        return self.plan(self.log, start[OFFSET] if self.belongs_to_log(start, uid) else 0, end[OFFSET])

    def commit(self, end: Offset) -> None:
        """Report the position for monitoring; Spark's checkpoint, not this, decides where a query resumes."""
        if self.options.consumer is not None and end[OFFSET] > 0:
            self.log.report(self.options.consumer, end[OFFSET] - 1)

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
