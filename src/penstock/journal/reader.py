"""Reads the journal as pages of events or as Arrow. Any process may read at any time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.core.model import Clock, system_clock
from penstock.errors import OffsetBeyondEnd
from penstock.journal.drainer import NAME
from penstock.journal.events import Event, decode_events
from penstock.log.consumers import CommitPosition, Consumers, DeleteConsumer, Kind
from penstock.log.files import DISK, PRIVATE_FOLDER, make_folder
from penstock.log.manifest import STREAM
from penstock.log.model import MIB, Consumer, LogPage, LogRecord, SegmentInfo
from penstock.log.reader import LogReader

if TYPE_CHECKING:
    import pyarrow as pa

EARLIEST = -1


class JournalPage(msgspec.Struct):
    events: list[Event]
    next: int
    """Offset of the next page."""


def events_of(records: Iterable[LogRecord], queue: str | None, kinds: Sequence[str] | None) -> list[Event]:
    """Yield events, optionally only those of a queue and of some kinds."""
    return [
        event
        for record in records
        for event in decode_events(record.offset, record.time_ms, record.kind, record.data)
        if (queue is None or event.queue == queue) and (kinds is None or event.kind in kinds)
    ]


class Journal(ABC):
    """Reads a journal, in log files beside SQLite or in PostgreSQL tables. Thread-safe. One that does not exist yet is
    empty, not an error."""

    @property
    @abstractmethod
    def uid(self) -> str:
        """The same for as long as offsets mean the same events; empty before the first."""

    @property
    @abstractmethod
    def first_offset(self) -> int: ...

    @abstractmethod
    def next_offset(self, name: str = NAME) -> int: ...

    @abstractmethod
    def listen(self, name: str, listener: Callable[[], None]) -> Callable[[], None] | None:
        """Call `listener` after new events; return None if they have to be polled for."""

    @abstractmethod
    def segments(self) -> list[SegmentInfo]: ...

    def read(
        self,
        offset: int = EARLIEST,
        *,
        limit: int = 1_000,
        bytes_max: int = MIB,
        queue: str | None = None,
        kinds: Sequence[str] | None = None,
    ) -> JournalPage:
        """Read the events of up to `limit` records, each of which may cover many messages."""
        page = self.records(offset, limit=limit, bytes_max=bytes_max)
        return JournalPage(events_of(page.records, queue, kinds), page.next)

    @abstractmethod
    def records(self, offset: int = EARLIEST, *, limit: int = 1_000, bytes_max: int = MIB) -> LogPage:
        """Read undecoded records, for callers that need little of each."""

    @abstractmethod
    def read_arrow(self, offset: int, end: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]: ...

    @abstractmethod
    def consumers(self) -> list[Consumer]:
        """Return the consumers with positions and lag."""

    @abstractmethod
    def commit(self, consumer: str, offset: int, *, force: bool = False, kind: Kind = "consumer") -> Consumer: ...

    @abstractmethod
    def forget(self, consumer: str) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class JournalReader(Journal):
    """Reads a journal in a folder."""

    def __init__(self, folder: Path, *, clock: Clock = system_clock) -> None:
        self.folder = folder
        self._clock = clock
        self._log: LogReader | None = None
        self._consumers: Consumers | None = None

    def _open(self) -> LogReader | None:
        if self._log is None and (self.folder / STREAM).exists():
            self._log = LogReader(self.folder)
        return self._log

    @property
    def uid(self) -> str:
        log = self._open()
        return "" if log is None else f"{log.identity.uid:016x}"

    @property
    def first_offset(self) -> int:
        log = self._open()
        return 0 if log is None else log.first_offset

    def next_offset(self, name: str = NAME) -> int:
        log = self._open()
        return 0 if log is None else log.next_offset

    def listen(self, name: str, listener: Callable[[], None]) -> None:
        """Return None: another process may drain, so only polling works."""

    def segments(self) -> list[SegmentInfo]:
        log = self._open()
        return [] if log is None else log.segments()

    def records(self, offset: int = EARLIEST, *, limit: int = 1_000, bytes_max: int = MIB) -> LogPage:
        log = self._open()
        if log is None:
            return LogPage([], max(offset, 0))
        return log.read(log.first_offset if offset == EARLIEST else offset, limit, bytes_max)

    def read_arrow(self, offset: int, end: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        from penstock.journal.arrow import SCHEMA, batches

        log = self._open()
        if log is not None:
            yield from batches(log, offset, end, SCHEMA.names if columns is None else columns)

    def consumers(self) -> list[Consumer]:
        positions = self._positions()
        end, first = self.next_offset(), self.first_offset
        return [] if positions is None else [_with_lag(each, first, end) for each in positions.all().values()]

    def commit(self, consumer: str, offset: int, *, force: bool = False, kind: Kind = "consumer") -> Consumer:
        if offset >= (end := self.next_offset()):
            raise OffsetBeyondEnd(NAME, offset, end)
        positions = self._positions(make=True)
        assert positions is not None
        committed: Consumer = positions.submit(CommitPosition(consumer=consumer, offset=offset, force=force, kind=kind))
        return _with_lag(committed, self.first_offset, self.next_offset())

    def forget(self, consumer: str) -> None:
        positions = self._positions(make=True)
        assert positions is not None
        positions.submit(DeleteConsumer(consumer=consumer))

    def _positions(self, *, make: bool = False) -> Consumers | None:
        if self._consumers is None and (make or self.folder.is_dir()):
            make_folder(self.folder, PRIVATE_FOLDER)
            self._consumers = Consumers(self.folder, NAME, files=DISK, clock=self._clock)
        return self._consumers

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def _with_lag(consumer: Consumer, first: int, end: int) -> Consumer:
    after = first if consumer.offset is None else max(first, consumer.offset + 1)
    return msgspec.structs.replace(consumer, lag=max(0, end - after))
