"""Named positions in a stream, in one small file that is replaced whole.

Whole, because a file that is either the old or the new one cannot be torn, so a wrong checksum always means damage;
one for all, because commits that wait at the same time then share its two fsyncs. Any process may commit.
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


class _Saved(Struct, frozen=True):
    consumers: dict[str, Consumer]


def saved(consumers: dict[str, Consumer]) -> Struct:
    """As the file holds them."""
    return _Saved(consumers)


_saved = msgspec.json.Decoder(_Saved)  # Made here: threads that decode a nested type first, together, crash msgspec.


class CommitPosition(Command[Consumer]):
    consumer: str
    offset: int
    """The last record that has been processed; -1 for none."""
    force: bool = False
    kind: Kind = "consumer"


class SeeConsumer(Command[Consumer]):
    """Make it known, or note that it is still there."""

    consumer: str
    kind: Kind = "consumer"


class ForgetConsumer(Command[None]):
    consumer: str


def check_consumer_name(name: str) -> str:
    # Programs that tidy up URLs and paths could not reach a consumer called "..".
    if check_known_consumer_name(name) in (".", ".."):
        raise InvalidName(f"{name!r} is not a consumer's name", field="consumer", hint="choose one that is no path")
    return name


def check_known_consumer_name(name: str) -> str:
    """As `check_consumer_name`, and what 0.1.0 allowed too, so that it can be forgotten."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} is not a consumer's name", field="consumer", hint="1 to 255 of letters, digits and . _ : -"
        )
    return name


def new_consumer_name() -> str:
    return f"c-{uuid.uuid4().hex}"


class Consumers(SingleLane):
    """All positions in one stream. Safe for threads and processes."""

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
        """Durable when answered."""
        return self._committer.submit(command)

    def all(self) -> dict[str, Consumer]:
        """As of the last commit of anyone."""
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
                raise ValueError("its checksum is wrong")
            return _saved.decode(data).consumers
        except ValueError as error:
            raise Damaged(
                f"the positions of stream {self._stream!r} are damaged: {error}",
                hint="`penstock stream repair` sets it aside; consumers then begin anew",
            ) from error

    def apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Commits of any number of consumers, with one replacing of the file."""
        lock = FolderLock(self._folder / LOCK, wait=True)
        try:
            # Not from what is remembered: two changes in one moment may look like one from outside.
            before = self._load() if self._path.exists() else {}
            known = dict(before)
            outcomes: list[Any] = []
            for command in commands:
                try:
                    outcomes.append(self._carry_out(known, command))
                except PenstockError as error:
                    outcomes.append(error)
            if known != before:
                with typed_errors(f"committing positions of stream {self._stream!r}"):
                    save(self._files, self._path, _Saved(known))
            return outcomes
        finally:
            lock.close()

    def prepare(self, commands: Sequence[Command[Any]]) -> None:
        """There is nothing that could be done without waiting for the disk."""

    def _carry_out(self, known: dict[str, Consumer], command: Command[Any]) -> Consumer | None:
        match command:
            case CommitPosition():
                return self._commit(known, command)
            case SeeConsumer():
                seen = known.get(command.consumer) or self._new(known, command.consumer, command.kind)
                known[seen.name] = seen = msgspec.structs.replace(seen, seen_ms=self._clock())
                return seen
            case ForgetConsumer():
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
                f"stream {self._stream!r} has {len(known)} consumers already", field="consumer", hint="forget some"
            )
        now = self._clock()
        return Consumer(name=check_consumer_name(name), offset=None, seen_ms=now, created_ms=now, kind=kind)
