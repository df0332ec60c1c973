"""Streams in PostgreSQL tables, shared by all servers; offsets are dense and in commit order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

from penstock.core.commands import Command
from penstock.core.limits import check_range
from penstock.core.model import Clock, Progress
from penstock.core.options import encode_options
from penstock.errors import PenstockError, StreamExists, StreamInUse, UnknownStream
from penstock.group_commit.interface import PreparedBatch
from penstock.group_commit.threads import ThreadCommitter
from penstock.log.check_report import Report
from penstock.log.consumers import Kind, check_consumer_name, check_known_consumer_name, new_consumer_name
from penstock.log.interface import EARLIEST
from penstock.log.model import (
    MIB,
    RECORD_BYTES_MAX,
    AppendOutcome,
    Archive,
    Consumer,
    LogPage,
    Payload,
    SegmentInfo,
    StreamInfo,
    StreamOptions,
    Trimmed,
    check_payloads,
    decode_stream_options,
)
from penstock.log.postgres import maintenance, reader
from penstock.log.postgres.database import Database
from penstock.log.postgres.offsets import OffsetMove, Positions
from penstock.log.postgres.writer import Appender, AppendTo
from penstock.log.reader import OFFSET_MAX
from penstock.log.retention import TrimRequest
from penstock.log.streams import SEEN_AGAIN_PARTS, check_stream_name
from penstock.log.waiting import wait_for_offset
from penstock.postgres.connection import DatabaseTarget
from penstock.postgres.pipeline import texts

if TYPE_CHECKING:
    import pyarrow as pa

APPEND_LANES = 4
# One connection per commit lane, one for positions, and some for reads.
CONNECTIONS = APPEND_LANES + 4
BUSY_MS = 30_000


class _Lanes:
    """Executes batches of appends and positions."""

    lanes = APPEND_LANES + 1
    commit_is_instant = False

    def __init__(self, appender: Appender, positions: Positions) -> None:
        self._appender = appender
        self._positions = positions

    def lane(self, command: Command[Any]) -> int:
        return crc32(command.stream.encode()) % APPEND_LANES if isinstance(command, AppendTo) else APPEND_LANES

    def apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        if isinstance(commands[0], AppendTo):
            return self._appender.apply(commands)  # type: ignore[arg-type]
        return self._positions.apply(commands)  # type: ignore[arg-type]

    def prepare(self, commands: Sequence[Command[Any]]) -> None:
        """Return None: every statement waits for the database."""

    def apply_now(self, command: Command[Any]) -> None:
        """Return None, like `prepare`."""


class PostgresStreams:
    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        clock: Clock | None = None,
        durability: Literal["full", "relaxed"] = "full",
        busy_ms: int = BUSY_MS,
        connections: int = CONNECTIONS,
    ) -> None:
        self.database = Database(
            DatabaseTarget(url, schema),
            clock=clock,
            relaxed=durability == "relaxed",
            busy_ms=busy_ms,
            connections=connections,
        )
        self._appender = Appender(self.database)
        self._positions = Positions(self.database)
        self._upkeep = maintenance.Upkeep(self.database)
        self._committer = ThreadCommitter(_Lanes(self._appender, self._positions))

    # Streams

    def create(self, name: str, options: StreamOptions | None = None) -> bool:
        check_stream_name(name)
        options = options or StreamOptions()
        if self.database.ask("stream.create", name, *_columns(options)):
            return True
        changed = self.show(name).options.differing(options)
        if changed:
            raise StreamExists(name, changed)
        return False

    def configure(self, name: str, options: StreamOptions) -> StreamInfo:
        stored = self._row(name)[2]
        if not self.database.ask("stream.configure", name, *_columns(options, stored)):
            raise UnknownStream(name)
        return self.show(name)

    def list_streams(self, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[StreamInfo]:
        return [_info(row) for row in self.database.ask("stream.list", after or "", prefix, limit)]

    def show(self, name: str) -> StreamInfo:
        return _info(self._row(name))

    def _row(self, name: str) -> tuple[Any, ...]:
        rows = self.database.ask("stream.show", check_stream_name(name))
        if not rows:
            raise UnknownStream(name)
        return rows[0]

    def segments(self, name: str) -> list[SegmentInfo]:
        return maintenance.segments(self.database, check_stream_name(name))[0]

    def drop(self, name: str, *, force: bool = False) -> None:
        waiting = [each.name for each in self.consumers(name) if not each.expired]
        if waiting and not force:
            raise StreamInUse(name, waiting)
        self._upkeep.drop(name)
        self._appender.forget(name)
        self.database.listeners.notify(name)

    # Records

    def append(self, name: str, payloads: Sequence[Payload]) -> AppendOutcome:
        return self._committer.submit(_request(name, payloads))

    def append_many(self, name: str, batches: Sequence[Sequence[Payload]]) -> list[AppendOutcome | PenstockError]:
        outcomes: list[Any] = []
        for payloads in batches:
            try:
                outcomes.append(_request(name, payloads))
            except PenstockError as error:
                outcomes.append(error)
        fine = [each for each in outcomes if isinstance(each, AppendTo)]
        done = iter(self._appender.apply(fine) if fine else ())
        return [next(done) if isinstance(each, AppendTo) else each for each in outcomes]

    def prepare(self, name: str, batches: Sequence[Sequence[Payload]]) -> PreparedBatch | None:
        """Always None: every statement is a wait for the database."""
        return None

    def read(self, name: str, offset: int = EARLIEST, *, limit: int = 1_000, bytes_max: int = MIB) -> LogPage:
        return reader.read(self.database, check_stream_name(name), offset, limit, bytes_max)

    def read_arrow(
        self, name: str, offset: int = EARLIEST, end: int | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        yield from reader.read_arrow(self.database, check_stream_name(name), offset, end, columns)

    def next_offset(self, name: str) -> int:
        rows = self.database.ask("stream.ends", texts([check_stream_name(name)]))
        if not rows:
            raise UnknownStream(name)
        end: int = rows[0][1]
        return end

    # Waiting

    def wait(self, name: str, offset: int, seconds: float) -> bool:
        return wait_for_offset(
            offset, seconds, lambda: self.next_offset(name), lambda listener: self.listen(name, listener)
        )

    def listen(self, name: str, listener: Callable[[], None]) -> Callable[[], None]:
        check_stream_name(name)
        self.database.listen()
        return self.database.listeners.add(name, listener)

    # Consumers

    def next(self, name: str, consumer: str, *, limit: int = 1_000, bytes_max: int = MIB) -> LogPage:
        known, options, now_ms = self._positions.all(check_stream_name(name), check_consumer_name(consumer))
        soon_ms = options.consumer_expire_ms // SEEN_AGAIN_PARTS
        if not known or now_ms - known[0].seen_ms > soon_ms:
            known = [self._committer.submit(OffsetMove(stream=name, consumer=consumer, offset=None))]
        position = known[0].offset
        return self.read(name, EARLIEST if position is None else position + 1, limit=limit, bytes_max=bytes_max)

    def commit(
        self, name: str, consumer: str, offset: int, *, force: bool = False, kind: Kind = "consumer"
    ) -> Consumer:
        check_range("offset", offset, -1, OFFSET_MAX)
        check_consumer_name(consumer)
        move = OffsetMove(stream=check_stream_name(name), consumer=consumer, offset=offset, force=force, kind=kind)
        return self._committer.submit(move)

    def consumers(self, name: str) -> list[Consumer]:
        return self._positions.all(check_stream_name(name))[0]

    def consumer(self, name: str, consumer: str) -> Consumer:
        return self._positions.get(check_stream_name(name), check_consumer_name(consumer))

    def create_consumer(self, name: str, consumer: str | None = None, *, kind: Kind = "consumer") -> Consumer:
        consumer = new_consumer_name() if consumer is None else check_consumer_name(consumer)
        return self._committer.submit(
            OffsetMove(stream=check_stream_name(name), consumer=consumer, offset=None, kind=kind)
        )

    def forget(self, name: str, consumer: str) -> None:
        self._positions.forget(check_stream_name(name), check_known_consumer_name(consumer))

    # Maintenance

    def trim(
        self, name: str, before: int | None = None, *, force: bool = False, archive: Archive | None = None
    ) -> Trimmed:
        consumers, options, now_ms = self._positions.all(check_stream_name(name))
        return self._upkeep.trim(name, consumers, options, now_ms, TrimRequest(before, force), archive)

    def check(self, name: str, progress: Progress | None = None) -> Report:
        return self._upkeep.check(check_stream_name(name), progress, repair=False)

    def repair(self, name: str, progress: Progress | None = None) -> Report:
        return self._upkeep.check(check_stream_name(name), progress, repair=True)

    def close(self) -> None:
        """Close; may be called repeatedly."""
        self.database.close()


def _request(name: str, payloads: Sequence[Payload]) -> AppendTo:
    """Return the append; raise if it can never succeed. The database checks the stream's own limits."""
    return AppendTo(
        stream=check_stream_name(name), payloads=payloads, lengths=check_payloads(payloads, RECORD_BYTES_MAX)
    )


def _columns(options: StreamOptions, stored: str = "{}") -> tuple[str, int, int]:
    return encode_options(options, stored), options.segment_bytes, options.record_bytes


def _info(row: tuple[Any, ...]) -> StreamInfo:
    _, name, options, created_ms, first, next_offset, _, filled, _, segments, size, consumers = row
    return StreamInfo(
        name=name,
        options=decode_stream_options(options),
        created_ms=created_ms,
        first=first,
        next=next_offset,
        bytes=size + filled,
        segments=segments + 1,
        consumers=consumers,
    )
