"""Limits micro-batches and `trigger(availableNow=True)`, with the interfaces that PySpark has had since 4.2."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.pipeline.source.options import ReadOptions
from penstock.pipeline.source.stream_reader import LOST, OFFSET, UID, Offset, StreamReader


class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    limits_batches = True

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._until: int | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self.log.next_offset

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # type: ignore[override]
        end = self.log.next_offset if self._until is None else self._until
        uid = self.log.uid
        begin = start[OFFSET] if self.belongs_to_log(start, uid) else 0
        lost = self.options.lost(self.log, begin)
        first = begin + lost
        if isinstance(limit, ReadMaxRows):
            end = min(end, first + limit.max_rows)
        return {OFFSET: max(end, first), LOST: start[LOST] + lost, UID: uid}

    def reportLatestOffset(self) -> Offset:
        return {OFFSET: self.log.next_offset}
