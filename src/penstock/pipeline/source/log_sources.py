"""Logs as the Spark source reads them: ranges of offsets, in a folder, in a database or behind a server.

A `LogLocation` travels to Spark's tasks, each of which opens the log for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from msgspec import Struct

from penstock.core.model import system_clock
from penstock.core.redact import without_password
from penstock.errors import CannotOpen, InvalidInput
from penstock.journal.arrow import SCHEMA as EVENTS
from penstock.journal.arrow import batches as event_batches
from penstock.journal.drainer import journal_folder
from penstock.log.arrow import SCHEMA as RECORDS
from penstock.log.arrow import batches as record_batches
from penstock.log.consumers import CommitPosition, Consumers, Kind
from penstock.log.files import DISK
from penstock.log.model import SegmentInfo
from penstock.log.reader import LogReader
from penstock.log.streams import FLAT, TREE, check_stream_name, streams_beside
from penstock.pipeline.source.offset_ranges import OffsetRange
from penstock.store.factory import POSTGRES

if TYPE_CHECKING:
    from penstock.pipeline.source.postgres_log import PostgresLog
    from penstock.pipeline.source.server_log import ServerLog

SERVERS = ("http://", "https://")
DB_NAME = "penstock.db"


class SourceLog(Protocol):
    name: str

    @property
    def uid(self) -> str:
        """Stable while offsets mean the same records; for a stream its creation time, which every source knows."""

    @property
    def first_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    def segments(self) -> Sequence[SegmentInfo]:
        """Return the retained segments with their sizes, oldest first."""

    def read(self, part: OffsetRange, columns: Sequence[str], *, skip_lost: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield records in order. Trimmed offsets raise, or are skipped with `skip_lost`."""

    def report(self, consumer: str, offset: int, kind: Kind = "consumer") -> None:
        """Commit the last record that a consumer has processed."""

    def wait(self, offset: int, seconds: float) -> None:
        """Wait until there may be a record at this offset, or the time is up."""

    def close(self) -> None: ...


class LogLocation(Protocol):
    """The location of a log."""

    def open(self) -> SourceLog: ...


class FolderLocation(Struct, frozen=True):
    folder: str
    events: bool = True

    def open(self) -> FolderLog:
        return FolderLog(Path(self.folder), events=self.events)


class PostgresLocation(Struct, frozen=True):
    url: str
    stream: str | None = None
    """Stream name; None for the journal."""

    def open(self) -> PostgresLog:
        try:
            from penstock.pipeline.source.postgres_log import PostgresLog
        except ImportError as error:
            raise CannotOpen("psycopg is not installed", hint="pip install 'penstock-mq[postgres]'") from error
        return PostgresLog(self.url, self.stream)


class ServerLocation(Struct, frozen=True):
    url: str
    stream: str | None = None
    token: str | None = None

    def open(self) -> ServerLog:
        from penstock.pipeline.source.server_log import ServerLog

        return ServerLog(self.url, self.stream, self.token)


def location_of(where: str, stream: str | None = None, token: str | None = None) -> LogLocation:
    """Return the location of the journal or a stream of a database, a server, a data folder or a SQLite file."""
    name = None if stream is None else check_stream_name(stream)
    if where.startswith(POSTGRES):
        return PostgresLocation(where, name)
    if where.startswith(SERVERS):
        return ServerLocation(where, name, token)
    database = database_of(where)
    if name is None:
        return FolderLocation(str(journal_folder(database)))
    folder = Path(streams_beside(database), TREE if "/" in name else FLAT, *name.split("/"))
    return FolderLocation(str(folder), events=False)


def database_of(where: str) -> Path:
    """Return the SQLite file: the path itself, or the one in a data folder."""
    if re.match(r"[A-Za-z][\w+.-]+:/", where):
        raise InvalidInput(
            f"unsupported URL {without_password(where)!r}",
            field="url",
            hint="use postgresql://…, http(s)://… or a local folder",
        )
    path = Path(where)
    return path if path.is_file() else path / DB_NAME


def schema_of(stream: str | None) -> pa.Schema:
    return EVENTS if stream is None else RECORDS


def time_column(stream: str | None) -> str:
    return "at" if stream is None else "timestamp"


class FolderLog:
    """A journal or stream in a local folder, read with mmap."""

    def __init__(self, folder: Path, *, events: bool) -> None:
        self._log = LogReader(folder)
        self._events = events
        self._batches = event_batches if events else record_batches
        self.name = self._log.name

    @property
    def uid(self) -> str:
        identity = self._log.identity
        return f"{identity.uid:016x}" if self._events else str(identity.created_ms)

    def descriptor(self) -> tuple[str, str, bool]:
        """Return what the JVM reader needs to open the log."""
        return str(self._log.folder), str(self._log.identity.uid), self._events

    @property
    def first_offset(self) -> int:
        return self._log.first_offset

    @property
    def next_offset(self) -> int:
        return self._log.next_offset

    def segments(self) -> list[SegmentInfo]:
        return self._log.segments()

    def read(self, part: OffsetRange, columns: Sequence[str], *, skip_lost: bool = False) -> Iterator[pa.RecordBatch]:
        for start, end in self._unbroken(part) if skip_lost else [(part.start, part.end)]:
            yield from self._batches(self._log, start, end, columns)

    def _unbroken(self, part: OffsetRange) -> Iterator[tuple[int, int]]:
        for info in self._log.segments():
            segment = self._log.segment_of(info.first)
            start, end = max(part.start, info.first), min(part.end, info.first + segment.count)
            if start < end:
                yield start, end

    def report(self, consumer: str, offset: int, kind: Kind = "consumer") -> None:
        consumers = Consumers(self._log.folder, self.name, files=DISK, clock=system_clock)
        consumers.submit(CommitPosition(consumer, offset, force=True, kind=kind))

    def wait(self, offset: int, seconds: float) -> None:
        self._log.wait(offset, seconds)

    def close(self) -> None:
        self._log.close()
