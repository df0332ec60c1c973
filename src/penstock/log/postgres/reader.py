"""Reads streams as pages of records and as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.limits import check_range
from penstock.errors import CorruptRecord, OffsetBeyondEnd, OffsetTrimmed, UnknownStream
from penstock.log.interface import EARLIEST
from penstock.log.model import READ_BYTES_MAX, READ_RECORDS_MAX, LogPage, LogRecord
from penstock.log.postgres.database import Database
from penstock.log.postgres.rows import ROW_BYTES, Row
from penstock.log.reader import OFFSET_MAX
from penstock.log.record import LOST

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.log.arrow import Piece

ARROW_BYTES = 8 << 20
ARROW_ROWS = 4_096


class KeptChunks:
    """A snapshot of some rows of a stream and of its retained offsets."""

    def __init__(self, database: Database, name: str, offset: int, rows_max: int, bytes_max: int) -> None:
        found = database.ask("stream.read", name, offset, rows_max, bytes_max)
        if not found:
            raise UnknownStream(name)
        self.first, self.next = found[0][0], found[0][1]
        self.offset = self.first if offset == EARLIEST else offset
        if self.offset > self.next:
            raise OffsetBeyondEnd(name, offset, self.next)
        if self.offset < self.first:
            raise OffsetTrimmed(name, offset, self.first)
        self.rows = [Row(*row[2:]) for row in found if row[2] is not None]


def read(database: Database, name: str, offset: int, limit: int, bytes_max: int) -> LogPage:
    if offset != EARLIEST:
        check_range("offset", offset, 0, OFFSET_MAX)
    check_range("limit", limit, 1, READ_RECORDS_MAX)
    check_range("bytes_max", bytes_max, 1, READ_BYTES_MAX)
    # The first row may begin well before the offset.
    kept = KeptChunks(database, name, offset, limit, bytes_max + ROW_BYTES)
    records: list[LogRecord] = []
    at, lost, size = kept.offset, 0, 0
    try:
        for row in kept.rows:
            if row.first > at:
                raise CorruptRecord(name, at, row.where, None)
            for record, record_bytes in row.read(name, at):
                size += record_bytes
                if len(records) >= limit or (size > bytes_max and at > kept.offset):
                    return LogPage(records, at, lost)
                if record.kind == LOST:
                    lost += 1
                else:
                    records.append(record)
                at += 1
    except CorruptRecord:
        if at == kept.offset:
            raise
    return LogPage(records, at, lost)


def pieces(database: Database, name: str, offset: int, end: int | None) -> Iterator[Piece]:
    """Yield the verified records between two offsets, some MiB at a time."""
    last = end
    while True:
        # A row holds at least one record.
        rows_max = ARROW_ROWS if last is None else max(1, min(ARROW_ROWS, last - offset))
        kept = KeptChunks(database, name, offset, rows_max, ARROW_BYTES)
        offset = kept.offset
        last = kept.next if last is None else min(last, kept.next)
        rows = [row for row in kept.rows if row.first < last]
        if not rows or offset >= last:
            return
        for piece in _joined(name, rows, offset, last):
            offset = piece.first + len(piece)
            yield piece


def _joined(name: str, rows: Sequence[Row], offset: int, end: int) -> Iterator[Piece]:
    import numpy as np

    from penstock.log.arrow import Piece

    piece = Piece()
    piece.first = offset
    for at, row in zip([offset, *(row.last + 1 for row in rows)], rows, strict=False):
        bad = row.damaged()
        if row.first > at or bad:
            raise CorruptRecord(name, max(row.first + bad[0], offset) if bad else at, row.where, None)
    data = b"".join(row.data for row in rows)
    parts: list[Any] = [np.zeros(1, dtype=np.int64)]
    for row in rows:
        parts.append(np.frombuffer(row.ends, dtype="<u4").astype(np.int64) + parts[-1][-1])
    ends = np.concatenate(parts)
    first = rows[0].first
    piece.ends = ends[offset - first : end - first + 1]
    piece.view = memoryview(data)
    piece.bytes = np.frombuffer(data, dtype=np.uint8)
    yield piece


def read_arrow(
    database: Database, name: str, offset: int, end: int | None, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    from penstock.log.arrow import batches_of

    return batches_of(pieces(database, name, offset, end), columns)
