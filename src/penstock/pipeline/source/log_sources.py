"""A log as Spark's source sees it: ranges of offsets, wherever it lies. In a folder, in a database, behind a server.

A *place* says where one is; it travels to Spark's tasks, each of which opens the log for itself.
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
        """The same for as long as offsets mean the same records; of a stream, its time of birth, which all can tell."""

    @property
    def first_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    def segments(self) -> Sequence[SegmentInfo]:
        """What is kept, and how many bytes it has, oldest first."""

    def read(self, part: OffsetRange, columns: Sequence[str], *, skip_lost: bool = False) -> Iterator[pa.RecordBatch]:
        """In order. Offsets that are no longer there are an error, or passed over."""

    def report(self, consumer: str, offset: int, kind: Kind = "consumer") -> None:
        """The last record that a consumer has processed."""

    def wait(self, offset: int, seconds: float) -> None:
        """Until there may be a record at this offset, or the time has passed."""

    def close(self) -> None: ...


class LogLocation(Protocol):
    """Where a log is."""

    def open(self) -> SourceLog: ...


class FolderLocation(Struct, frozen=True):
    folder: str
    events: bool = True

    def open(self) -> FolderLog:
        return FolderLog(Path(self.folder), events=self.events)


class PostgresLocation(Struct, frozen=True):
    url: str
    stream: str | None = None
    """None for the journal."""

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
    """The journal, or a stream, of a database, a server, a server's folder, or a file of queues."""
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
    """A server's folder, or the file itself."""
    if re.match(r"[A-Za-z][\w+.-]+:/", where):
        raise InvalidInput(
            f"{without_password(where)!r} is no place that is known",
            field="url",
            hint="postgresql://…, http(s)://…, or a folder of this machine",
        )
    path = Path(where)
    return path if path.is_file() else path / DB_NAME


def schema_of(stream: str | None) -> pa.Schema:
    return EVENTS if stream is None else RECORDS


class FolderLog:
    """A journal, or a stream, that this machine can map."""

    def __init__(self, folder: Path, *, events: bool) -> None:
        self._log = LogReader(folder)
        self._events = events
        self._batches = event_batches if events else record_batches
        self.name = self._log.name

    @property
    def uid(self) -> str:
        identity = self._log.identity
        return f"{identity.uid:016x}" if self._events else str(identity.created_ms)

    def told(self) -> tuple[str, str, bool]:
        """All that another reader must know."""
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
