"""Streams as a folder of logs. The first process that appends stays the stream's writer; all processes may read."""

from __future__ import annotations

import logging
import shutil
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.ids import check_queue_name
from penstock.core.limits import check_range
from penstock.core.model import Clock, Progress, system_clock
from penstock.errors import (
    CannotOpen,
    Damaged,
    InvalidInput,
    InvalidName,
    OffsetBeyondEnd,
    PenstockError,
    StoreClosed,
    StreamExists,
    StreamInUse,
    UnknownStream,
)
from penstock.group_commit.interface import PreparedBatch
from penstock.log import check as checks
from penstock.log.check_report import Report
from penstock.log.consumers import (
    CommitPosition,
    Consumers,
    DeleteConsumer,
    Kind,
    TouchConsumer,
    check_consumer_name,
    check_known_consumer_name,
    new_consumer_name,
)
from penstock.log.files import DISK, PRIVATE_FOLDER, Files, make_folder, typed_errors
from penstock.log.interface import EARLIEST
from penstock.log.manifest import STREAM
from penstock.log.model import (
    MIB,
    AppendOutcome,
    Archive,
    Consumer,
    LogPage,
    Payload,
    SegmentInfo,
    StreamInfo,
    StreamOptions,
    Trimmed,
)
from penstock.log.reader import OFFSET_MAX, LogReader
from penstock.log.retention import TrimRequest, is_expired, trim
from penstock.log.writer import Append, Log

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("penstock.log")
OPEN_STREAMS_MAX = 128
# The activity of a consumer that only reads is saved this many times per expiry period.
SEEN_AGAIN_PARTS = 10
FLAT, TREE, MAKING, TRASH = "flat", "tree", "making", "trash"


class _Stream:
    """An open stream; its log is a reader until the first write."""

    def __init__(self, folder: Path, name: str, files: Files, clock: Clock) -> None:
        self.folder = folder
        self.name = name
        self.consumers = Consumers(folder, name, files=files, clock=clock)
        self.log: LogReader | None = None
        self.users = 0
        self.opening = threading.Lock()


class FileStreams:
    """All streams under a folder."""

    def __init__(self, root: Path | str, *, clock: Clock = system_clock, files: Files = DISK) -> None:
        self._root = Path(root)
        self._clock = clock
        self._files = files
        self._mutex = threading.Lock()
        self._used: OrderedDict[str, _Stream] = OrderedDict()
        self._left_out: set[str] = set()
        self._closed = False
        with typed_errors(f"opening {self._root}"):
            for part in (FLAT, TREE, MAKING, TRASH):
                make_folder(self._root / part, PRIVATE_FOLDER)
            for dropped in (self._root / TRASH).iterdir():
                # Another process was killed while it removed the stream, or is still removing it.
                shutil.rmtree(dropped, ignore_errors=True)

    def folder(self, name: str) -> Path:
        """Return a stream's folder; flat names and paths have separate roots, so they cannot collide."""
        return self._root.joinpath(TREE if "/" in name else FLAT, *check_stream_name(name).split("/"))

    @contextmanager
    def _using(self, name: str) -> Iterator[_Stream]:
        with self._mutex:
            if self._closed:
                raise StoreClosed("the streams are closed")
            stream = self._used.get(name)
            if stream is None:
                folder = self.folder(name)
                if not folder.is_dir():
                    raise UnknownStream(name)
                stream = self._used[name] = _Stream(folder, name, self._files, self._clock)
            self._used.move_to_end(name)
            stream.users += 1
        try:
            yield stream
        except UnknownStream:
            with self._mutex:
                self._used.pop(name, None)
            raise
        finally:
            with self._mutex:
                stream.users -= 1
                idle = self._idle() if len(self._used) > OPEN_STREAMS_MAX else None
            if idle is not None and idle.log is not None:
                idle.log.close()

    def _idle(self) -> _Stream | None:
        for name, stream in self._used.items():
            if not stream.users:
                return self._used.pop(name)
        return None

    @contextmanager
    def _reader(self, name: str) -> Iterator[tuple[_Stream, LogReader]]:
        with self._using(name) as stream:
            if stream.log is None:
                with stream.opening:
                    if stream.log is None:
                        stream.log = self._open(LogReader, stream)
            yield stream, stream.log

    @contextmanager
    def _writer(self, name: str) -> Iterator[tuple[_Stream, Log]]:
        with self._using(name) as stream:
            log = stream.log
            if not isinstance(log, Log):
                with stream.opening:
                    log = stream.log
                    if not isinstance(log, Log):
                        log = stream.log = self._open(Log, stream, clock=self._clock)
            assert isinstance(log, Log)
            yield stream, log

    def _open(self, kind: type[Any], stream: _Stream, **options: Any) -> Any:
        try:
            return kind(stream.folder, files=self._files, **options)
        except CannotOpen:
            if stream.folder.is_dir():
                raise
            raise UnknownStream(stream.name) from None

    def create(self, name: str, options: StreamOptions | None = None) -> bool:
        folder, options = self.folder(name), options or StreamOptions()
        if not folder.is_dir():
            making = self._root / MAKING / uuid.uuid4().hex
            Log.create(making, name, options, clock=self._clock, files=self._files).close()
            with typed_errors(f"creating stream {name!r}"):
                make_folder(folder.parent, PRIVATE_FOLDER)
                try:
                    self._files.rename(making, folder)
                except OSError:
                    if not folder.is_dir():
                        raise
                    shutil.rmtree(making)  # Another process created it first.
                else:
                    self._sync_up(folder.parent)
                    return True
        with self._reader(name) as (_, log):
            changed = log.identity.options.differing(options)
        if changed:
            raise StreamExists(name, changed)
        return False

    def _sync_up(self, folder: Path) -> None:
        while folder != self._root.parent:
            self._files.sync_folder(folder)
            folder = folder.parent

    def configure(self, name: str, options: StreamOptions) -> StreamInfo:
        with self._writer(name) as (_, log):
            log.configure(options)
        return self.show(name)

    def list_streams(self, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[StreamInfo]:
        names = [each.name for each in (self._root / FLAT).iterdir()]
        names += [str(each.relative_to(self._root / TREE)) for each in (self._root / TREE).glob("*/*/*")]
        names = sorted(name for name in names if name.startswith(prefix) and (after is None or name > after))
        found: list[StreamInfo] = []
        for name in names:
            if len(found) == limit:
                break
            try:
                found.append(self.show(name))
            except UnknownStream:
                pass
            except (Damaged, CannotOpen, InvalidName) as error:
                # A damaged stream must not hide the others; a call that names it reports the error.
                if name not in self._left_out:
                    self._left_out.add(name)
                    log.warning("stream %s is left out of lists: %s", name, error)
        return found

    def show(self, name: str) -> StreamInfo:
        with self._reader(name) as (stream, log):
            segments = log.segments()
            return StreamInfo(
                name=name,
                options=log.identity.options,
                created_ms=log.identity.created_ms,
                first=log.first_offset,
                next=log.next_offset,
                bytes=sum(segment.bytes for segment in segments),
                segments=len(segments),
                consumers=len(stream.consumers.all()),
            )

    def segments(self, name: str) -> list[SegmentInfo]:
        with self._reader(name) as (_, log):
            return log.segments()

    def drop(self, name: str, *, force: bool = False) -> None:
        with self._writer(name) as (stream, log):
            waiting = [each.name for each in self._seen(stream, log) if not each.expired]
            if waiting and not force:
                raise StreamInUse(name, waiting)
            trash = self._root / TRASH / uuid.uuid4().hex
            with log.turn, typed_errors(f"dropping stream {name!r}"):
                self._files.rename(stream.folder, trash)
                self._sync_up(stream.folder.parent)
                log.abandon()
            with self._mutex:
                self._used.pop(name, None)
        shutil.rmtree(trash, ignore_errors=True)

    def append(self, name: str, payloads: Sequence[Payload]) -> AppendOutcome:
        log = self._writing(name)
        if log is not None:
            with suppress(StoreClosed):
                return log.append(payloads)
        with self._writer(name) as (_, log):
            return log.append(payloads)

    def _writing(self, name: str) -> Log | None:
        """Return the log if it is open for writing; it may be closed as idle at any moment."""
        stream = self._used.get(name)
        return stream.log if stream is not None and isinstance(stream.log, Log) else None

    def append_many(self, name: str, batches: Sequence[Sequence[Payload]]) -> list[AppendOutcome | PenstockError]:
        with self._writer(name) as (_, log):
            requests = [_request(log, payloads) for payloads in batches]
            fine = [each for each in requests if isinstance(each, Append)]
            outcomes = iter(log.apply(fine) if fine else ())
            return [next(outcomes) if isinstance(each, Append) else each for each in requests]

    def prepare(self, name: str, batches: Sequence[Sequence[Payload]]) -> PreparedBatch | None:
        log = self._writing(name)
        if log is None:
            return None
        try:
            return log.prepare([log.request(payloads) for payloads in batches])
        except (InvalidInput, StoreClosed):
            return None  # `append_many` reports errors per batch and reopens a closed log.

    def read(self, name: str, offset: int = EARLIEST, *, limit: int = 1_000, bytes_max: int = MIB) -> LogPage:
        with self._reader(name) as (_, log):
            _catch_up(log, offset)
            return log.read(log.first_offset if offset == EARLIEST else offset, limit, bytes_max)

    def read_arrow(
        self, name: str, offset: int = EARLIEST, end: int | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        from penstock.log.arrow import batches

        with self._reader(name) as (_, log):
            yield from batches(log, log.first_offset if offset == EARLIEST else offset, end, columns)

    def next_offset(self, name: str) -> int:
        with self._reader(name) as (_, log):
            return log.next_offset

    def wait(self, name: str, offset: int, seconds: float) -> bool:
        with self._reader(name) as (_, log):
            return log.wait(offset, seconds)

    def listen(self, name: str, listener: Callable[[], None]) -> Callable[[], None] | None:
        with self._reader(name) as (_, log):
            return log.listen(listener)

    def next(self, name: str, consumer: str, *, limit: int = 1_000, bytes_max: int = MIB) -> LogPage:
        with self._reader(name) as (stream, log):
            known = stream.consumers.all().get(check_consumer_name(consumer))
            soon_ms = log.identity.options.consumer_expire_ms // SEEN_AGAIN_PARTS
            if known is None or self._clock() - known.seen_ms > soon_ms:
                known = stream.consumers.submit(TouchConsumer(consumer=consumer))
            assert known is not None
            offset = log.first_offset if known.offset is None else known.offset + 1
            _catch_up(log, offset)
            return log.read(offset, limit, bytes_max)

    def commit(
        self, name: str, consumer: str, offset: int, *, force: bool = False, kind: Kind = "consumer"
    ) -> Consumer:
        check_range("offset", offset, -1, OFFSET_MAX)
        check_consumer_name(consumer)
        with self._reader(name) as (stream, log):
            _catch_up(log, offset + 1)
            if offset >= (end := log.next_offset):
                raise OffsetBeyondEnd(name, offset, end)
            command = CommitPosition(consumer=consumer, offset=offset, force=force, kind=kind)
            return self._with_lag(stream.consumers.submit(command), log)

    def consumers(self, name: str) -> list[Consumer]:
        with self._reader(name) as (stream, log):
            return self._seen(stream, log)

    def _seen(self, stream: _Stream, log: LogReader) -> list[Consumer]:
        return [self._with_lag(each, log) for _, each in sorted(stream.consumers.all().items())]

    def _with_lag(self, consumer: Consumer, log: LogReader) -> Consumer:
        after = log.first_offset if consumer.offset is None else max(consumer.offset + 1, log.first_offset)
        gone = is_expired(consumer, log.identity.options, self._clock())
        return msgspec.structs.replace(consumer, lag=max(0, log.next_offset - after), expired=gone)

    def consumer(self, name: str, consumer: str) -> Consumer:
        with self._reader(name) as (stream, log):
            return self._with_lag(stream.consumers.get(check_consumer_name(consumer)), log)

    def create_consumer(self, name: str, consumer: str | None = None, *, kind: Kind = "consumer") -> Consumer:
        consumer = new_consumer_name() if consumer is None else check_consumer_name(consumer)
        with self._reader(name) as (stream, log):
            return self._with_lag(stream.consumers.submit(TouchConsumer(consumer=consumer, kind=kind)), log)

    def forget(self, name: str, consumer: str) -> None:
        with self._using(name) as stream:
            stream.consumers.submit(DeleteConsumer(consumer=check_known_consumer_name(consumer)))

    def trim(
        self, name: str, before: int | None = None, *, force: bool = False, archive: Archive | None = None
    ) -> Trimmed:
        with self._writer(name) as (stream, log):
            return trim(log, stream.consumers.all().values(), TrimRequest(before, force), self._clock(), archive)

    def check(self, name: str, progress: Progress | None = None) -> Report:
        with self._using(name) as stream:
            return checks.check(stream.folder, name, progress)

    def repair(self, name: str, progress: Progress | None = None) -> Report:
        with self._using(name) as stream, stream.opening:
            if stream.log is not None:
                stream.log.close()
                stream.log = None
            return checks.repair(stream.folder, name, progress, files=self._files, clock=self._clock)

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            streams = list(self._used.values())
            self._used.clear()
        for stream in streams:
            if stream.log is not None:
                stream.log.close()


def stream_folders(root: Path) -> Iterator[Path]:
    """Yield the folder of every stream below a root."""
    for pattern in (f"{FLAT}/*", f"{TREE}/*/*/*"):
        for folder in sorted(root.glob(pattern)):
            if (folder / STREAM).exists():
                yield folder


def streams_beside(database: Path | str) -> Path:
    """Return the folder of a SQLite file's streams."""
    return Path(f"{database}.streams")


def _request(log: Log, payloads: Sequence[Payload]) -> Append | PenstockError:
    try:
        return log.request(payloads)
    except PenstockError as error:
        return error


def check_stream_name(name: str) -> str:
    """Check a stream name; the rules are those of queue names."""
    try:
        return check_queue_name(name)
    except InvalidName as error:
        raise InvalidName(f"invalid stream name {name!r}", field="stream", hint=error.hint) from None


def _catch_up(log: LogReader, offset: int) -> None:
    """Wait for the writer, if a reader saw in the files what it is just publishing."""
    if offset > log.next_offset and isinstance(log, Log):
        with log.turn:
            pass
