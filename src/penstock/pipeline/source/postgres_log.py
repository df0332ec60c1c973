"""Reads the journal or a stream directly from the tables of a PostgreSQL store, in every task.

Offsets are dense and in the order in which records became visible, so a late commit gets a later offset. A range of
offsets below the end therefore never changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import OffsetBeyondEnd, OffsetTrimmed, UnknownStream
from penstock.journal.arrow import batches_of as event_batches
from penstock.journal.postgres import uid_of
from penstock.log.arrow import batches_of as record_batches
from penstock.log.consumers import Kind, check_consumer_name
from penstock.log.model import SegmentInfo
from penstock.log.postgres import maintenance, reader
from penstock.log.postgres.database import Database
from penstock.log.postgres.offsets import OffsetMove, Positions
from penstock.pipeline.source.offset_ranges import OffsetRange
from penstock.postgres.connection import DatabaseTarget
from penstock.postgres.schema import JOURNAL

BUSY_MS = 30_000
LOOK_SECONDS = 0.1


class PostgresLog:
    def __init__(self, url: str, stream: str | None) -> None:
        self.name = "journal" if stream is None else stream
        self._stream = JOURNAL if stream is None else stream
        self._events = stream is None
        self._database = Database(
            DatabaseTarget(url), clock=None, relaxed=False, busy_ms=BUSY_MS, connections=1, listens=False
        )

    @property
    def uid(self) -> str:
        shown = self._show()
        return uid_of(self._database, shown) if self._events else str(shown[3])

    @property
    def first_offset(self) -> int:
        first: int = self._show()[4]
        return first

    @property
    def next_offset(self) -> int:
        end: int = self._show()[5]
        return end

    def _show(self) -> tuple[Any, ...]:
        rows = self._database.ask("stream.show", self._stream)
        if not rows:
            raise UnknownStream(self.name)
        return rows[0]

    def segments(self) -> list[SegmentInfo]:
        return maintenance.segments(self._database, self._stream)[0]

    def read(self, part: OffsetRange, columns: Sequence[str], *, skip_lost: bool = False) -> Iterator[pa.RecordBatch]:
        make = event_batches if self._events else record_batches
        start = part.start
        while start < part.end:
            try:
                for piece in reader.pieces(self._database, self._stream, start, part.end):
                    yield from make([piece], columns)
                    start = piece.first + len(piece)
                if start < part.end:
                    raise OffsetBeyondEnd(self.name, part.end, start)
            except OffsetTrimmed as error:
                if not skip_lost:
                    raise OffsetTrimmed(self.name, error.offset, error.first_offset) from None
                start = error.first_offset

    def report(self, consumer: str, offset: int, kind: Kind = "consumer") -> None:
        move = OffsetMove(
            stream=self._stream, consumer=check_consumer_name(consumer), offset=offset, force=True, kind=kind
        )
        (outcome,) = Positions(self._database).apply([move])
        if isinstance(outcome, Exception):
            raise outcome

    def wait(self, offset: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.next_offset <= offset and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        self._database.close()
