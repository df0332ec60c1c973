"""Moves recorded events from the spool to the journal, in one order and exactly once.

A scan sees only committed events. What an event depends on was committed before it and has a lower number, so appending
the events of a scan by number keeps causes before effects. Events of open transactions follow with a later scan.
"""

from __future__ import annotations

from penstock.errors import StoreError
from penstock.journal.events import number
from penstock.log.postgres.rows import cut
from penstock.log.record import sizes_of
from penstock.postgres.context import STREAM_LOCK, DatabaseContext
from penstock.postgres.pipeline import PipelinedConnection, Rows, Statement, blobs, ints

ROWS = 2_000
BYTES = 4 << 20


class JournalOutbox:
    """Moves events; not thread-safe. Several servers take turns, because each holds the stream's lock throughout."""

    def __init__(self, context: DatabaseContext) -> None:
        self._context = context
        self._stream_id: int | None = None
        # All numbers up to this one are visible or will never appear.
        self._floor = 0
        # A number, and a transaction id above those of all transactions that took numbers up to it.
        self._given = (0, 0)

    def step(self, connection: PipelinedConnection, notify: list[Statement]) -> int:
        """Move a batch, and notify, in one transaction; return its size. After an error, the caller rolls back."""
        sql, clock = self._context.sql, self._context.clock
        if self._stream_id is None:
            (found,) = connection.run([Statement(sql["journal.find"])])
            if not found:
                return 0
            self._stream_id = found[0][0]
            assert self._stream_id is not None
        key = self._context.lock_key(STREAM_LOCK, self._stream_id)
        start = [Statement(sql["begin.begin"])]
        if clock is not None:
            start.append(Statement(sql["begin.move_clock"], (clock(),)))
        answers = connection.run(
            [
                *start,
                Statement(sql["stream.lock"], (key,)),
                Statement(sql["journal.find"]),
                Statement(sql["journal.given"]),
                Statement(sql["journal.oldest"]),
                Statement(sql["journal.take"], (self._floor, ROWS, BYTES)),
                Statement(sql["journal.own"]),
            ]
        )
        ((_, time_ms, now),), ((given,),), ((oldest,),), rows, ((own,),) = answers[len(start) + 1 :]
        records = self._append(connection, key, max(time_ms, now), rows) if rows else 0
        connection.run([*(notify if rows else ()), Statement(sql["begin.commit"])])
        if len(rows) < ROWS and sum(len(data) for _, _, data in rows) < BYTES:
            self._raise_floor(given, oldest, own)
        return records

    def _append(self, connection: PipelinedConnection, key: int, time_ms: int, rows: Rows) -> int:
        sql = self._context.sql
        parts: list[bytes] = []
        sizes: list[int] = []
        for _, base, data in sorted(rows):
            row_sizes = sizes_of(data)
            sizes += row_sizes
            parts.append(data if base is None else _numbered(data, row_sizes, base))
        batches = cut(b"".join(parts), sizes)
        append = Statement(
            sql["stream.append"],
            (
                key,
                self._stream_id,
                time_ms,
                0,
                0,
                ints(batch.records for batch in batches),
                ints(batch.sum for batch in batches),
                blobs([batch.ends for batch in batches]),
                blobs([batch.data for batch in batches]),
            ),
        )
        # Delete only after the append has succeeded, so that nothing is lost.
        (((refused, *_),),) = connection.run([append])
        if refused:
            raise StoreError(f"the journal rejected an append: {refused}")
        return len(sizes)

    def _raise_floor(self, given: int, oldest: int, own: int | None) -> None:
        """Skip numbers that can no longer appear, after a scan that moved all rows it saw.

        A long-running snapshot keeps the moved rows as dead tuples, which every scan would read again. The snapshot's
        own upper bound is not enough: transactions after it may have begun and taken numbers.
        """
        known, later = self._given
        if oldest >= later:
            self._floor = known
            if own is not None:
                # A transaction takes a number only after a change, so those up to `given` have lower ids than `own`.
                self._given = (given, own)


def _numbered(data: bytes, sizes: list[int], first_id: int) -> bytes:
    parts, at = [], 0
    for size in sizes:
        parts.append(number(data[at : at + size], first_id))
        at += size
    return b"".join(parts)
