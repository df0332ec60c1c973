"""Positions of a stream's consumers, in one small file that is replaced atomically.

An atomic replacement cannot be torn, so a wrong checksum always means damage. With one file for all consumers,
concurrent commits share its two fsyncs. Any process may commit.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from penstock.core.commands import Command
from penstock.core.model import Clock
from penstock.errors import BatchTooLarge, Damaged, InvalidName, PenstockError, PositionMovesBack, UnknownConsumer
from penstock.group_commit.interface import SingleLane
from penstock.group_commit.threads import ThreadCommitter
from penstock.log.files import Files, FolderLock, typed_errors
from penstock.log.manifest import save
from penstock.log.model import CONSUMERS_MAX, Consumer
from penstock.log.record import crc32

FILE = "consumers"
LOCK = "consumers.lock"
NAME_PATTERN = r"[A-Za-z0-9._:-]{1,255}"
_NAME = re.compile(NAME_PATTERN, re.ASCII)
Kind = Literal["consumer", "pipeline"]


class SavedConsumers(Struct, frozen=True):
    """Content of the file."""

    consumers: dict[str, Consumer]


# Created at import, because msgspec crashes if threads decode a nested type for the first time concurrently.
_saved = msgspec.json.Decoder(SavedConsumers)


class CommitPosition(Command[Consumer]):
    consumer: str
    offset: int
    """Offset of the last processed record; -1 for none."""
    force: bool = False
    kind: Kind = "consumer"


class TouchConsumer(Command[Consumer]):
    """Registers a consumer, or records its activity."""

    consumer: str
    kind: Kind = "consumer"


class DeleteConsumer(Command[None]):
    consumer: str


def check_consumer_name(name: str) -> str:
    # HTTP clients that normalize paths could not address a consumer called "..".
    if check_known_consumer_name(name) in (".", ".."):
        raise InvalidName(f"invalid consumer name {name!r}", field="consumer", hint="choose a name other than . and ..")
    return name


def check_known_consumer_name(name: str) -> str:
    """Check a name, but allow those that 0.1.0 allowed, so that such consumers can be deleted."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} is not a consumer's name", field="consumer", hint="1 to 255 of letters, digits and . _ : -"
        )
    return name


def new_consumer_name() -> str:
    return f"c-{uuid.uuid4().hex}"


class Consumers(SingleLane):
    """All positions in one stream. Thread-safe and process-safe."""

    def __init__(self, folder: Path, stream: str, *, files: Files, clock: Clock) -> None:
        self._folder = folder
        self._path = folder / FILE
        self._stream = stream
        self._files = files
        self._clock = clock
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, Consumer] = {}
        self._committer = ThreadCommitter(self)

    def submit(self, command: Command[Any]) -> Any:
        """Execute a command; it is durable when this returns."""
        return self._committer.submit(command)

    def all(self) -> dict[str, Consumer]:
        """Return all consumers as of the last commit of any process."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return {}
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._known, self._stamp = self._load(), stamp
        return self._known

    def get(self, name: str) -> Consumer:
        consumer = self.all().get(name)
        if consumer is None:
            raise UnknownConsumer(self._stream, name)
        return consumer

    def _load(self) -> dict[str, Consumer]:
        data, _, checksum = self._path.read_bytes().removesuffix(b"\n").rpartition(b"\n")
        try:
            if checksum != b"%08x" % crc32(data):
                raise ValueError("wrong checksum")
            return _saved.decode(data).consumers
        except ValueError as error:
            raise Damaged(
                f"the positions of stream {self._stream!r} are damaged: {error}",
                hint="`penstock stream repair` sets the file aside; consumers then start from the beginning",
            ) from error

    def apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Execute commands of any number of consumers with one replacement of the file."""
        lock = FolderLock(self._folder / LOCK, wait=True)
        try:
            # Read the file, not the cache: two changes within one timestamp look the same to `all`.
            before = self._load() if self._path.exists() else {}
            known = dict(before)
            outcomes: list[Any] = []
            for command in commands:
                try:
                    outcomes.append(self._execute(known, command))
                except PenstockError as error:
                    outcomes.append(error)
            if known != before:
                with typed_errors(f"committing positions of stream {self._stream!r}"):
                    save(self._files, self._path, SavedConsumers(known))
            return outcomes
        finally:
            lock.close()

    def prepare(self, commands: Sequence[Command[Any]]) -> None:
        """Return None: every commit waits for the disk."""

    def _execute(self, known: dict[str, Consumer], command: Command[Any]) -> Consumer | None:
        match command:
            case CommitPosition():
                return self._commit(known, command)
            case TouchConsumer():
                seen = known.get(command.consumer) or self._new(known, command.consumer, command.kind)
                known[seen.name] = seen = msgspec.structs.replace(seen, seen_ms=self._clock())
                return seen
            case DeleteConsumer():
                if known.pop(command.consumer, None) is None:
                    raise UnknownConsumer(self._stream, command.consumer)
        return None

    def _commit(self, known: dict[str, Consumer], command: CommitPosition) -> Consumer:
        consumer = known.get(command.consumer) or self._new(known, command.consumer, command.kind)
        committed = -1 if consumer.offset is None else consumer.offset
        if command.offset < committed and not command.force:
            raise PositionMovesBack(self._stream, consumer.name, command.offset, committed)
        offset = None if command.offset < 0 else command.offset
        consumer = msgspec.structs.replace(consumer, offset=offset, seen_ms=self._clock())
        known[consumer.name] = consumer
        return consumer

    def _new(self, known: dict[str, Consumer], name: str, kind: Kind) -> Consumer:
        if len(known) >= CONSUMERS_MAX:
            raise BatchTooLarge(
                f"stream {self._stream!r} already has {len(known)} consumers",
                field="consumer",
                hint="delete unused ones",
            )
        now = self._clock()
        return Consumer(name=check_consumer_name(name), offset=None, seen_ms=now, created_ms=now, kind=kind)
