"""What every implementation of streams does: a folder of logs, or tables of PostgreSQL. The conformance suite holds
each of them to it. Synchronous and safe for threads; a committer brings it to an event loop.
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

# As an offset to read from: the first record that is kept.
EARLIEST = -1


class Streams(Protocol):
    def create(self, name: str, options: StreamOptions | None = None) -> bool:
        """False if it is there already with the same options; StreamExists if with others."""

    def configure(self, name: str, options: StreamOptions) -> StreamInfo: ...

    def list_streams(self, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[StreamInfo]:
        """By name."""

    def show(self, name: str) -> StreamInfo: ...

    def segments(self, name: str) -> list[SegmentInfo]: ...

    def drop(self, name: str, *, force: bool = False) -> None:
        """StreamInUse while it has consumers that have not expired, unless forced."""

    def append(self, name: str, payloads: Sequence[Payload]) -> AppendOutcome:
        """Answered when on disk. Offsets are dense and in the order of commits; times never go back."""

    def append_many(self, name: str, batches: Sequence[Sequence[Payload]]) -> list[AppendOutcome | PenstockError]:
        """Several appends that share a commit; each is whole."""

    def prepare(self, name: str, batches: Sequence[Sequence[Payload]]) -> PreparedBatch | None:
        """As `append_many`, but the wait for the disk is left to the caller; None if it cannot be had apart."""

    def read(self, name: str, offset: int = EARLIEST, *, limit: int = 1_000, bytes_max: int = MIB) -> LogPage:
        """OffsetTrimmed before what is kept, OffsetBeyondEnd after the end, empty at the end.

        A damaged record ends a page, and raises CorruptRecord as the first of one.
        """

    def read_arrow(
        self, name: str, offset: int = EARLIEST, end: int | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Columns offset, timestamp and data, of all records from one offset up to another."""

    def next_offset(self, name: str) -> int:
        """That of the next record to come. Cheap: watched while someone waits."""

    def wait(self, name: str, offset: int, seconds: float) -> bool:
        """Until there is a record at this offset; False if the time passes first."""

    def listen(self, name: str, listener: Callable[[], None]) -> Callable[[], None] | None:
        """Call it after every append, on any thread, until the function returned is called.

        None if appends of others might be missed: then only `next_offset` tells.
        """

    def next(self, name: str, consumer: str, *, limit: int = 1_000, bytes_max: int = MIB) -> LogPage:
        """The records after a consumer's position; a new one starts at the earliest kept."""

    def commit(
        self, name: str, consumer: str, offset: int, *, force: bool = False, kind: Kind = "consumer"
    ) -> Consumer:
        """The last record processed; durable when answered, never back without force. An unknown consumer is made."""

    def consumers(self, name: str) -> list[Consumer]: ...

    def consumer(self, name: str, consumer: str) -> Consumer: ...

    def create_consumer(self, name: str, consumer: str | None = None, *, kind: Kind = "consumer") -> Consumer:
        """With a unique name if none is given. One that is there already stays as it is."""

    def forget(self, name: str, consumer: str) -> None: ...

    def trim(
        self, name: str, before: int | None = None, *, force: bool = False, archive: Archive | None = None
    ) -> Trimmed:
        """Remove what lies before an offset, or what the options no longer keep; never what a consumer that has not
        expired still needs, unless forced. `archive` sees each segment first, and can keep it."""

    def check(self, name: str, progress: Progress | None = None) -> Report:
        """Look at every record; change nothing."""

    def repair(self, name: str, progress: Progress | None = None) -> Report:
        """Mend what can be mended. Good records keep their offsets; those beyond help are passed over from then on."""

    def close(self) -> None: ...
