"""The single writer of a log: concurrent appends share one write and one fsync."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from secrets import randbits
from typing import Any

import msgspec

from penstock.core import fork_safety
from penstock.core.commands import Command
from penstock.core.model import Clock, system_clock
from penstock.errors import (
    BatchTooLarge,
    InvalidInput,
    InvariantBroken,
    LogFailed,
    PenstockError,
    StoreClosed,
    UnknownStream,
)
from penstock.group_commit.interface import SingleLane
from penstock.group_commit.threads import ThreadCommitter
from penstock.log.active_segment import ActiveSegment
from penstock.log.check_report import Finding
from penstock.log.files import DISK, PRIVATE_FOLDER, Files, FolderLock, as_typed, make_folder, typed_errors
from penstock.log.manifest import (
    HEADED_VERSION,
    Identity,
    Manifest,
    load_identity,
    save_identity,
    save_manifest,
    with_heads,
)
from penstock.log.model import BATCH_BYTES_MAX, AppendOutcome, Payload, StreamOptions, check_payloads
from penstock.log.reader import LOCK, LogReader
from penstock.log.record import HEADER_BYTES, encode, sizes_of, time_at
from penstock.log.recovery import recover
from penstock.log.segment import Segment
from penstock.log.waiting import Listener, Stop

CHECKPOINT_BYTES = 32 << 20
CHECKPOINT_MS = 5_000


class Append(Command[AppendOutcome]):
    """User records, encoded when their turn comes, so that times grow with offsets."""

    payloads: Sequence[Payload]
    lengths: list[int]

    @property
    def size(self) -> int:
        return sum(self.lengths) + HEADER_BYTES * len(self.lengths)

    def encode(self, time_ms: int) -> tuple[bytes, list[int], int]:
        return (*encode(self.payloads, time_ms, self.lengths), time_ms)


class AppendEncoded(Command[AppendOutcome]):
    """Encoded records, which are copied verbatim."""

    data: bytes
    sizes: list[int]

    @property
    def size(self) -> int:
        return len(self.data)

    def encode(self, time_ms: int) -> tuple[bytes, list[int], int]:
        return self.data, self.sizes, time_at(self.data, len(self.data) - self.sizes[-1])


class Group:
    """Appends that share a commit. Call `commit` on any thread, then `release`."""

    waits_for_disk = True

    def __init__(self, log: Log, commands: Sequence[Append | AppendEncoded]) -> None:
        self._log = log
        now = log.time_ms()
        encoded = [command.encode(now) for command in commands]
        self.data = encoded[0][0] if len(encoded) == 1 else b"".join(data for data, _, _ in encoded)
        self.sizes = encoded[0][1] if len(encoded) == 1 else [size for _, sizes, _ in encoded for size in sizes]
        self.last_time_ms = max(time_ms for _, _, time_ms in encoded)
        self.outcomes: list[Any] = []
        offset = log.next_offset
        for _, sizes, time_ms in encoded:
            self.outcomes.append(AppendOutcome(offset, offset + len(sizes) - 1, time_ms))
            offset += len(sizes)

    def commit(self) -> None:
        self._log.commit(self)

    def release(self) -> None:
        self._log.turn.release()


class Log(SingleLane, LogReader):
    """The writer of a log, one among all processes; it also reads. Thread-safe."""

    def __init__(
        self, folder: Path | str, *, wait: bool = False, clock: Clock = system_clock, files: Files = DISK
    ) -> None:
        folder = Path(folder)
        load_identity(folder)
        self._lock = FolderLock(folder / LOCK, wait=wait)
        self.turn = threading.Lock()
        self.clock = clock
        self._failed: BaseException | None = None
        self._active: ActiveSegment | None = None
        self._listeners: tuple[Listener, ...] = ()
        # Damage that opening found, and repaired as far as possible.
        self.findings: list[Finding] = []
        # Error of the last attempt to write the manifest, if it failed.
        self.checkpoint_error: OSError | None = None
        try:
            super().__init__(folder, files=files)
        except BaseException:
            self._lock.close()
            raise
        self._committer = ThreadCommitter(self)
        fork_safety.register(self)

    @classmethod
    def create(
        cls,
        folder: Path | str,
        name: str,
        options: StreamOptions | None = None,
        *,
        first: int = 0,
        clock: Clock = system_clock,
        files: Files = DISK,
    ) -> Log:
        """Create a log in an empty or missing folder; its first record will have the offset `first`."""
        folder = Path(folder)
        identity = Identity(
            name=name,
            uid=randbits(63),
            created_ms=clock(),
            options=options or StreamOptions(),
            version=HEADED_VERSION,
            headed_from=0,
        )
        with typed_errors(f"creating stream {name!r}"):
            make_folder(folder, PRIVATE_FOLDER)
            save_manifest(files, folder, Manifest(first=first, next=first, active=first, uid=identity.uid))
            # Last: where it is, all of it is.
            save_identity(files, folder, identity)
            files.sync_folder(folder.parent)
        return cls(folder, clock=clock, files=files)

    def _reload(self) -> None:
        """Recover on opening only: a writer knows its segments, and recovery must not touch what it is writing."""
        if self._active is None and not self._closed:
            super()._reload()
        elif not self.folder.is_dir():
            raise UnknownStream(self.name)

    def _try_reload(self) -> bool:
        with typed_errors(f"opening stream {self.name!r}"):
            recovered = recover(self.files, self.folder, self.identity)
        self._active = recovered.active
        self.identity = recovered.identity
        self.findings = recovered.findings
        self._first, self._firsts = recovered.first, recovered.firsts
        self._last = self._readable(self._active)
        self._next = self._active.next
        self._checkpointed()
        return True

    def _drop(self, first: int) -> None:
        with self._mutex:
            self._open.pop(first, None)

    @property
    def next_offset(self) -> int:
        return self._next

    def _end_for(self, wanted: int) -> int:
        self._last_segment()
        return self._next

    def _readable(self, active: ActiveSegment) -> Segment:
        return Segment(self.folder, self.identity, active.first, ends=active.ends)

    @property
    def active(self) -> ActiveSegment:
        if self._active is None:
            raise StoreClosed(f"the log of stream {self.name!r} is closed")
        if self._failed is not None:
            raise LogFailed(
                f"a write to stream {self.name!r} failed earlier: {self._failed}",
                hint="nothing more is written until the log is opened again",
            ) from self._failed
        return self._active

    def time_ms(self) -> int:
        """Return the current time, but never before the last record's, even if the clock was set back."""
        return max(self.clock(), self.active.last_time_ms)

    def append(self, payloads: Sequence[Payload]) -> AppendOutcome:
        """Append durably; concurrent threads share the fsync."""
        return self._committer.submit(self.request(payloads))

    def append_encoded(self, data: bytes, sizes: list[int] | None = None) -> AppendOutcome:
        """Append encoded records verbatim with one write and one fsync."""
        return self._committer.submit(self.request_encoded(data, sizes))

    def request(self, payloads: Sequence[Payload]) -> Append:
        """Return the append for the committer; raise if it can never succeed."""
        return Append(payloads=payloads, lengths=check_payloads(payloads, self.identity.options.record_bytes))

    def request_encoded(self, data: bytes, sizes: list[int] | None = None) -> AppendEncoded:
        if not data or (sizes is not None and sum(sizes) != len(data)):
            raise InvalidInput("encoded records are whole, and at least one", field="records")
        if len(data) > BATCH_BYTES_MAX:
            raise BatchTooLarge(f"{len(data)} bytes in one append", field="records", hint=f"at most {BATCH_BYTES_MAX}")
        return AppendEncoded(data=data, sizes=sizes or sizes_of(data))

    def apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Execute appends in order, as many at once as fit in the segment."""
        waiting = deque(commands)
        outcomes: list[Any] = []
        with self.turn:
            while waiting:
                try:
                    group = self._write(self._take(waiting))
                    self.commit(group)
                except PenstockError as error:
                    if not outcomes:
                        raise
                    return outcomes + [error] * (len(commands) - len(outcomes))
                outcomes += group.outcomes
        return outcomes

    def prepare(self, commands: Sequence[Command[Any]]) -> Group | None:
        """Write without fsync; return None if that would block on something else."""
        if not self.turn.acquire(blocking=False):
            return None
        group = None
        try:
            if self._room() >= sum(command.size for command in commands):  # type: ignore[attr-defined]
                group = self._write(commands)  # type: ignore[arg-type]
        finally:
            if group is None:
                self.turn.release()
        return group

    def _room(self) -> int:
        return 0 if self.active.sealed else self.identity.options.segment_bytes - self.active.size

    def _take(self, waiting: deque[Command[Any]]) -> list[Any]:
        """Take the appends that fit into the active segment, or else into a new one; at least one, however large."""
        first: Any = waiting[0]
        if first.size > self._room() and (self.active.count or self.active.sealed):
            self.roll()
        taken, room = [waiting.popleft()], self._room() - first.size
        while waiting and (size := waiting[0].size) <= room:  # type: ignore[attr-defined]
            taken.append(waiting.popleft())
            room -= size
        return taken

    def _write(self, commands: Sequence[Append | AppendEncoded]) -> Group:
        active, group = self.active, Group(self, commands)
        if sum(group.sizes) != len(group.data):
            raise InvariantBroken(f"records of {sum(group.sizes)} bytes were encoded as {len(group.data)}")
        try:
            active.write(group.data)
        except OSError as error:
            self._undo(error)
            raise as_typed(error, f"appending to stream {self.name!r}") from error
        return group

    def commit(self, group: Group) -> None:
        """Fsync, then publish to readers. A failed fsync is not retried."""
        active = self.active
        try:
            active.sync()
        except OSError as error:
            self._failed = error
            self._undo(error)
            raise LogFailed(
                f"stream {self.name!r} could not be synced: {error.strerror or error}",
                hint="nothing of this request was kept; nothing more is written until the log is opened again",
            ) from error
        try:
            active.publish(group.data, group.sizes, group.last_time_ms)
        except OSError as error:
            self._undo(error)
            raise as_typed(error, f"appending to stream {self.name!r}") from error
        self._next = active.next
        for listener in self._listeners:
            listener()
        if active.size >= self._checkpoint_at or self.clock() >= self._checkpoint_ms:
            self._checkpoint()

    def _undo(self, error: OSError) -> None:
        """Remove unacknowledged data, which must not reappear later; if that fails, stop the writer."""
        try:
            if self._active is not None:
                self._active.undo()
        except OSError:
            self._failed = self._failed or error

    def _checkpoint(self) -> None:
        try:
            save_manifest(self.files, self.folder, self.active.manifest(self._first))
        except OSError as error:
            # The records are safe without the manifest, and the next append retries it.
            self.checkpoint_error = error
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self._failed = error
        else:
            self._checkpointed()

    def _checkpointed(self) -> None:
        self.checkpoint_error = None
        self._checkpoint_at = (self._active.size if self._active else 0) + CHECKPOINT_BYTES
        self._checkpoint_ms = self.clock() + CHECKPOINT_MS

    def skip_to(self, offset: int) -> None:
        """Continue at a later offset; reading the skipped offsets reports them as lost."""
        with self.turn:
            if offset > self.active.next:
                self.roll(offset)
                self._next = offset

    def roll(self, first: int | None = None) -> None:
        """Seal the active segment and begin another. The caller has the turn."""
        active = self.active
        if first is not None and first < active.next:
            raise InvariantBroken(f"a segment from offset {first} on would overlap the last one, up to {active.next}")
        begin = active.next if first is None else first
        with typed_errors(f"beginning a new segment of stream {self.name!r}"):
            # On a full disk, a sealed segment gets its successor with the next append. After an empty one, that would
            # have its name, and overwrite its files. So an empty segment is sealed last.
            if active.count:
                active.seal()
            self.identity = with_heads(self.files, self.folder, self.identity, begin)
            fresh = ActiveSegment.create(self.files, self.folder, self.identity, begin)
            if not active.count:
                self._seal_empty(active, fresh)
        fresh.last_time_ms = active.last_time_ms
        last = self._readable(fresh)
        with self._mutex:
            self._firsts = [*self._firsts, fresh.first]
            self._last = last
        self._active = fresh
        active.close()
        self._checkpoint()

    def _seal_empty(self, active: ActiveSegment, fresh: ActiveSegment) -> None:
        try:
            active.seal()
        except OSError as error:
            # Both are on disk, and what the disk has of the seal is unknown: recovery decides.
            self._failed = error
            fresh.close()
            raise

    def forget_before(self, first: int, removed: int) -> None:
        """The first `removed` segments are no longer kept. The caller has the turn, and removes the files."""
        with typed_errors(f"trimming stream {self.name!r}"):
            save_manifest(self.files, self.folder, self.active.manifest(first))
        with self._mutex:
            self._first, self._firsts = first, self._firsts[removed:]
            for each in [each for each in self._open if each < first]:
                del self._open[each]

    def last_time_ms(self, first: int) -> int:
        """Return the time of a segment's newest record."""
        segment = self.segment_of(first)
        if segment.header is not None and segment.header.sealed:
            return segment.header.last_time_ms
        return segment.read(segment.count - 1, segment.count, 1)[0].time_ms

    def configure(self, options: StreamOptions) -> None:
        with self.turn, typed_errors(f"configuring stream {self.name!r}"):
            identity = msgspec.structs.replace(self.identity, options=options)
            save_identity(self.files, self.folder, identity)
            self.identity = identity

    def listen(self, listener: Listener) -> Stop:
        with self._mutex:
            self._listeners = (*self._listeners, listener)

        def stop() -> None:
            with self._mutex:
                self._listeners = tuple(each for each in self._listeners if each != listener)

        return stop

    def close(self) -> None:
        """Finish pending writes, save the manifest and release the lock."""
        with self.turn:
            if self._active is None:
                return
            try:
                if self._failed is None:
                    self._checkpoint()
            finally:
                self._close_active()

    def abandon(self) -> None:
        """Release everything at once, like a process that dies."""
        self._close_active()

    def _close_active(self) -> None:
        active, self._active = self._active, None
        if active is not None:
            active.close()
        super().close()
        self._lock.close()
        for listener in self._listeners:
            listener()

    def before_fork(self) -> None:
        self.turn.acquire()

    def after_fork_in_parent(self) -> None:
        self.turn.release()

    def after_fork_in_child(self) -> None:
        """Detach in a forked child; the log belongs to the parent."""
        self.turn = threading.Lock()
        self._mutex = threading.Lock()
        self.abandon()

    def __enter__(self) -> Log:
        return self
