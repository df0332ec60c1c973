"""The interface of streams, implemented by a folder of logs and by PostgreSQL tables, and tested by the conformance
suite. Synchronous and thread-safe; `AsyncStreams` wraps it for an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.core.model import Progress
from penstock.errors import PenstockError
from penstock.group_commit.interface import PreparedBatch
from penstock.log.check_report import Report
from penstock.log.consumers import Kind
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

if TYPE_CHECKING:
    import pyarrow as pa

# Offset that means the first retained record.
EARLIEST = -1


class Streams(Protocol):
    def create(self, name: str, options: StreamOptions | None = None) -> bool:
        """Create a stream. Return False if it exists with the same options; raise StreamExists if with others."""

    def configure(self, name: str, options: StreamOptions) -> StreamInfo: ...

    def list_streams(self, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[StreamInfo]:
        """Return streams sorted by name."""

    def show(self, name: str) -> StreamInfo: ...

    def segments(self, name: str) -> list[SegmentInfo]: ...

    def drop(self, name: str, *, force: bool = False) -> None:
        """Delete a stream. Raise StreamInUse if it has consumers that have not expired, unless forced."""

    def append(self, name: str, payloads: Sequence[Payload]) -> AppendOutcome:
        """Append durably. Offsets are dense and in commit order; times never go back."""

    def append_many(self, name: str, batches: Sequence[Sequence[Payload]]) -> list[AppendOutcome | PenstockError]:
        """Execute several appends in one commit; each is atomic."""

    def prepare(self, name: str, batches: Sequence[Sequence[Payload]]) -> PreparedBatch | None:
        """Write like `append_many`, but leave the fsync to the caller; return None if that is not possible."""

    def read(self, name: str, offset: int = EARLIEST, *, limit: int = 1_000, bytes_max: int = MIB) -> LogPage:
        """Read a page, empty at the end. Raise OffsetTrimmed before the first record, OffsetBeyondEnd after the end.

        A damaged record ends a page; as the first record of one, it raises CorruptRecord.
        """

    def read_arrow(
        self, name: str, offset: int = EARLIEST, end: int | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns offset, timestamp and data of all records from one offset up to another."""

    def next_offset(self, name: str) -> int:
        """Return the offset of the next record. Cheap, because waiters poll it."""

    def wait(self, name: str, offset: int, seconds: float) -> bool:
        """Wait until there is a record at this offset; return False on timeout."""

    def listen(self, name: str, listener: Callable[[], None]) -> Callable[[], None] | None:
        """Call `listener` after every append, on any thread; return a function that stops it.

        Return None if appends of other processes could be missed; then poll `next_offset`.
        """

    def next(self, name: str, consumer: str, *, limit: int = 1_000, bytes_max: int = MIB) -> LogPage:
        """Read the records after a consumer's position; a new consumer starts at the first retained record."""

    def commit(
        self, name: str, consumer: str, offset: int, *, force: bool = False, kind: Kind = "consumer"
    ) -> Consumer:
        """Commit the last processed record durably; never backwards without force. Creates an unknown consumer."""

    def consumers(self, name: str) -> list[Consumer]: ...

    def consumer(self, name: str, consumer: str) -> Consumer: ...

    def create_consumer(self, name: str, consumer: str | None = None, *, kind: Kind = "consumer") -> Consumer:
        """Create a consumer, with a unique name by default. An existing one is not changed."""

    def forget(self, name: str, consumer: str) -> None: ...

    def trim(
        self, name: str, before: int | None = None, *, force: bool = False, archive: Archive | None = None
    ) -> Trimmed:
        """Remove segments before an offset, or beyond the retention options; never those that an unexpired consumer
        needs, unless forced. `archive` is called with each segment first and can keep it."""

    def check(self, name: str, progress: Progress | None = None) -> Report:
        """Check every record; change nothing."""

    def repair(self, name: str, progress: Progress | None = None) -> Report:
        """Repair damage. Intact records keep their offsets; readers skip records that are lost."""

    def close(self) -> None: ...
