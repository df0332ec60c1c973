"""The journal of a PostgreSQL store: a stream in the stream tables, filled from recorded events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import UnknownStream
from penstock.journal.drainer import NAME
from penstock.journal.postgres_outbox import JournalOutbox
from penstock.journal.reader import EARLIEST, Journal
from penstock.log.consumers import Kind, check_consumer_name
from penstock.log.model import MIB, Consumer, LogPage, SegmentInfo
from penstock.log.postgres import maintenance, reader
from penstock.log.postgres.database import Database, Lost
from penstock.log.postgres.offsets import OffsetMove, Positions
from penstock.log.retention import TrimRequest
from penstock.postgres.pipeline import texts
from penstock.postgres.schema import JOURNAL

if TYPE_CHECKING:
    import pyarrow as pa


class PostgresJournal(Journal):
    """Reads the journal in the stream tables."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._positions = Positions(database)

    @property
    def uid(self) -> str:
        rows = self._database.ask("stream.show", JOURNAL)
        return uid_of(self._database, rows[0]) if rows else ""

    @property
    def first_offset(self) -> int:
        rows = self._database.ask("stream.show", JOURNAL)
        return rows[0][4] if rows else 0

    def next_offset(self, name: str = NAME) -> int:
        rows = self._database.ask("stream.ends", texts([JOURNAL]))
        return rows[0][1] if rows else 0

    def listen(self, name: str, listener: Callable[[], None]) -> Callable[[], None]:
        self._database.listen()
        return self._database.listeners.add(JOURNAL, listener)

    def segments(self) -> list[SegmentInfo]:
        try:
            return maintenance.segments(self._database, JOURNAL)[0]
        except UnknownStream:
            return []

    def records(self, offset: int = EARLIEST, *, limit: int = 1_000, bytes_max: int = MIB) -> LogPage:
        try:
            return reader.read(self._database, JOURNAL, offset, limit, bytes_max)
        except UnknownStream:
            return LogPage([], max(offset, 0))

    def read_arrow(self, offset: int, end: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        from penstock.journal.arrow import SCHEMA, batches_of

        pieces = reader.pieces(self._database, JOURNAL, offset, end)
        yield from batches_of(pieces, SCHEMA.names if columns is None else columns)

    def consumers(self) -> list[Consumer]:
        try:
            return self._positions.all(JOURNAL)[0]
        except UnknownStream:
            return []

    def commit(self, consumer: str, offset: int, *, force: bool = False, kind: Kind = "consumer") -> Consumer:
        move = OffsetMove(stream=JOURNAL, consumer=check_consumer_name(consumer), offset=offset, force=force, kind=kind)
        (outcome,) = self._positions.apply([move])
        if isinstance(outcome, Exception):
            raise outcome
        committed: Consumer = outcome
        return committed

    def forget(self, consumer: str) -> None:
        self._positions.forget(JOURNAL, check_consumer_name(consumer))

    def close(self) -> None:
        """The database is its owner's to close."""


def uid_of(database: Database, shown: Sequence[Any]) -> str:
    """Return the journal's uid, which differs in a recreated database."""
    stream_id, _, _, created_ms, *_ = shown
    return f"{database.context.store_id:08x}{created_ms:012x}{stream_id:x}"


class PostgresDrain:
    """Moves recorded events into the journal like `Drain`; all servers take turns."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._outbox = JournalOutbox(database.context)
        self._turn = threading.Lock()

    # Each transaction records its events before it commits.
    must_catch_up = False

    @property
    def next_offset(self) -> int:
        return PostgresJournal(self._database).next_offset()

    def step(self) -> bool:
        """Move a batch; return True if there was one."""
        database = self._database
        try:
            word = database.word()
            with self._turn, database.wire() as wire:
                moved = self._outbox.step(wire, word)
        except Lost as error:
            # The batch is moved completely or not at all; the next step finds out.
            raise database.unreachable(error, maybe_done=True) from error
        if moved:
            if not word:
                database.notify_later()
            database.listeners.notify(JOURNAL)
        return moved > 0

    def drain(self) -> None:
        """Move everything recorded so far."""
        while self.step():
            pass

    def trim(self) -> None:
        """Apply retention, except for records that a known consumer still needs."""
        database = self._database
        try:
            consumers, options, now_ms = Positions(database).all(JOURNAL)
        except UnknownStream:
            return
        maintenance.Upkeep(database).trim(JOURNAL, consumers, options, now_ms, TrimRequest(), None)

    def close(self) -> None:
        """The database is its owner's to close."""
