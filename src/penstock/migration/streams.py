"""Migrates streams: encoded records, which are the same in files and in tables, and consumer positions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from penstock.core.model import system_clock
from penstock.errors import MoveDiffers
from penstock.log.consumers import FILE, Consumers, SavedConsumers
from penstock.log.files import DISK, FolderLock
from penstock.log.manifest import STREAM, load_identity, save
from penstock.log.model import Consumer, StreamOptions
from penstock.log.reader import LOCK, LogReader
from penstock.log.recovery import recover
from penstock.log.snapshot import raw_records
from penstock.log.streams import FLAT, TREE
from penstock.log.writer import Log


class MigratedStream(Struct, frozen=True, kw_only=True):
    """Metadata of a stream."""

    name: str
    options: StreamOptions
    created_ms: int
    first: int
    next: int


class Chunk(NamedTuple):
    first: int
    data: bytes
    """Encoded records back to back."""
    sizes: list[int]


class StreamEndpoint(Protocol):
    """The streams of a source or target."""

    def streams(self) -> list[MigratedStream]:
        """Return the streams, sorted by name."""

    def chunks(self, stream: MigratedStream, offset: int) -> Iterator[Chunk]: ...

    def consumers(self, stream: MigratedStream) -> list[Consumer]:
        """Return the consumers, sorted by name, without computed fields."""

    def add_stream(self, stream: MigratedStream) -> None:
        """Create an empty stream with the source's first offset, within a step."""

    def append(self, stream: MigratedStream, chunk: Chunk) -> None: ...

    def set_consumers(self, stream: MigratedStream, consumers: Sequence[Consumer]) -> None: ...


class StreamsMigrated(NamedTuple):
    streams: int
    records: int
    checksum: str


def copy_streams(
    source: StreamEndpoint,
    target: StreamEndpoint,
    step: Callable[[], AbstractContextManager[None]],
    advance: Callable[[int], None],
) -> None:
    """Copy all streams; each continues where the target's copy ends. A `step` is committed completely or not at all."""
    there = {stream.name: stream for stream in target.streams()}
    for stream in source.streams():
        copy = there.get(stream.name)
        if copy is None:
            with step():
                target.add_stream(stream)
        for chunk in source.chunks(stream, stream.first if copy is None else copy.next):
            with step():
                target.append(stream, chunk)
            advance(len(chunk.sizes))
        with step():
            target.set_consumers(stream, source.consumers(stream))


def compare_streams(
    source: StreamEndpoint, target: StreamEndpoint, names: tuple[str, str], advance: Callable[[int], None]
) -> StreamsMigrated:
    """Compare all streams record by record, with metadata and consumer positions."""
    wanted, found = source.streams(), target.streams()
    if [stream.name for stream in wanted] != [stream.name for stream in found]:
        raise MoveDiffers(*names, "the list of streams")
    whole = hashlib.blake2b(digest_size=16)
    records = 0
    for one, other in zip(wanted, found, strict=True):
        digests = []
        for side, stream in ((source, one), (target, other)):
            digest = hashlib.blake2b(msgspec.json.encode(stream), digest_size=16)
            digest.update(msgspec.json.encode(side.consumers(stream)))
            for chunk in side.chunks(stream, stream.first):
                digest.update(chunk.data)
                advance(len(chunk.sizes))
            digests.append(digest.hexdigest())
        if digests[0] != digests[1]:
            raise MoveDiffers(*names, f"stream {one.name}")
        whole.update(digests[0].encode())
        records += one.next - one.first
    return StreamsMigrated(len(wanted), records, whole.hexdigest())


class FileStreamEndpoint:
    """Streams in folders. Those of a source are locked until it is closed, so that nobody appends."""

    def __init__(self, root: Path, *, source: bool) -> None:
        self._root = root
        self._locks: list[FolderLock] = []
        self._written: Log | None = None
        if source:
            try:
                for folder in self._folders():
                    self._locks.append(FolderLock(folder / LOCK))
                    # Recover the log first, as a reader would if it had the lock.
                    recover(DISK, folder, load_identity(folder)).active.close()
            except BaseException:
                self.close()
                raise

    def _folders(self) -> list[Path]:
        found = [*self._root.glob(f"{FLAT}/*"), *self._root.glob(f"{TREE}/*/*/*")]
        return [folder for folder in found if (folder / STREAM).exists()]

    def _folder(self, name: str) -> Path:
        return self._root.joinpath(TREE if "/" in name else FLAT, *name.split("/"))

    def streams(self) -> list[MigratedStream]:
        found = []
        for folder in self._folders():
            with LogReader(folder) as log:
                identity = log.identity
                found.append(
                    MigratedStream(
                        name=identity.name,
                        options=identity.options,
                        created_ms=identity.created_ms,
                        first=log.first_offset,
                        next=log.next_offset,
                    )
                )
        return sorted(found, key=lambda stream: stream.name)

    def chunks(self, stream: MigratedStream, offset: int) -> Iterator[Chunk]:
        with LogReader(self._folder(stream.name)) as log:
            for first, data, sizes in raw_records(log, offset, stream.next):
                yield Chunk(first, data, sizes)

    def consumers(self, stream: MigratedStream) -> list[Consumer]:
        folder = self._folder(stream.name)
        known = Consumers(folder, stream.name, files=DISK, clock=system_clock).all()
        return [known[name] for name in sorted(known)]

    def add_stream(self, stream: MigratedStream) -> None:
        folder = self._folder(stream.name)
        Log.create(folder, stream.name, stream.options, first=stream.first, clock=lambda: stream.created_ms).close()

    def append(self, stream: MigratedStream, chunk: Chunk) -> None:
        if self._written is None:
            self._written = Log(self._folder(stream.name))
        if chunk.first > self._written.next_offset:
            self._written.skip_to(chunk.first)
        self._written.append_encoded(chunk.data, chunk.sizes)

    def set_consumers(self, stream: MigratedStream, consumers: Sequence[Consumer]) -> None:
        """Write the consumers, after all records."""
        self._close_written()
        if consumers:
            known = {consumer.name: consumer for consumer in consumers}
            save(DISK, self._folder(stream.name) / FILE, SavedConsumers(known))

    def _close_written(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            written.close()

    def close(self) -> None:
        self._close_written()
        for lock in self._locks:
            lock.close()
        self._locks = []
