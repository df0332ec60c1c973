"""One stream: the verbs.

Made by tools/unasync.py from the asynchronous twin: change that.
"""

from __future__ import annotations

from collections.abc import Iterator, Iterable
from typing import TYPE_CHECKING, Any, Unpack

from penstock.client.stream_types import Appended, Commit, Record, Records, StreamChanges, to_record, to_records
from penstock.client.types import Seconds, milliseconds
from penstock.core.limits import check_flag, check_many, check_range
from penstock.errors import InvalidInput
from penstock.log.consumers import check_consumer_name, new_consumer_name
from penstock.log.interface import EARLIEST
from penstock.log.model import BATCH_RECORDS_MAX, READ_RECORDS_MAX, Consumer, StreamInfo, Trimmed
from penstock.log.reader import OFFSET_MAX
from penstock.log.streams import check_stream_name
from penstock.wire.arrow_records import batches_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client._sync.client import Client

CONSUME_WAIT_SECONDS = 20.0
COMMITS = ("batch", "record", "manual")


class Stream:
    """A stream by its name. Durations are in seconds. Made by `client.stream(name)`::

    stream.append({"order": 1})
    for record in stream.consume("billing"):
        bill(record.data)
    """

    def __init__(self, client: Client, name: str) -> None:
        self.name = check_stream_name(name)
        self._streams = client.transport.streams

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"

    # Appending

    def append(self, data: Any) -> Appended:
        """Add a record: bytes, a string, or another JSON value. Answered when it is on disk.

        Over HTTP it is tried again when the answer was lost, and still added once.
        """
        return self._streams.append(self.name, [to_record(data)])

    def append_many(self, records: Iterable[Any]) -> Appended:
        """Add records, all or none, one after the other."""
        new = [to_record(data) for data in check_many("records", records, BATCH_RECORDS_MAX)]
        if not new:
            raise InvalidInput("no records to append", field="records")
        return self._streams.append(self.name, new)

    def append_arrow(self, data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> Appended:
        """Add the column `data`, or the only one, of binary or string. In order, in parts of 10,000 records at most,
        each of them whole."""
        return self._streams.append_arrow(self.name, batches_of(data))

    # Reading

    def read(self, start: int | None = None, limit: int = 1_000, *, wait: Seconds = 0) -> Records:
        """Records from an offset on, by default the earliest kept, waiting for the first up to `wait`."""
        check_range("limit", limit, 1, READ_RECORDS_MAX)
        if start is not None:
            check_range("start", start, 0, OFFSET_MAX)
        seconds = milliseconds("wait", wait) / 1000
        offset = EARLIEST if start is None else start
        return to_records(self._streams.read(self.name, offset, limit, seconds))

    def read_arrow(self, start: int | None = None, end: int | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches with the columns offset, timestamp and data, up to an offset, by default the end as of now."""
        for field, offset in (("start", start), ("end", end)):
            if offset is not None:
                check_range(field, offset, 0, OFFSET_MAX)
        for batch in self._streams.read_arrow(self.name, start, end):
            yield batch

    def next(self, consumer: str, limit: int = 1_000, *, wait: Seconds = 0) -> Records:
        """The records after a consumer's position; a new one starts at the earliest kept."""
        check_range("limit", limit, 1, READ_RECORDS_MAX)
        seconds = milliseconds("wait", wait) / 1000
        return to_records(self._streams.next(self.name, check_consumer_name(consumer), limit, seconds))

    def consume(
        self, consumer: str, *, batch: int = 100, commit: Commit = "batch", idle: Seconds | None = None
    ) -> Iterator[Record]:
        """Records after the consumer's position as they come, for ever, or until none has come for `idle` seconds.

        At least once: a record counts as processed when the next one is asked for. The position is committed after
        each `batch`, or after each `record`, and on leaving the loop, without the record at which it was left.
        `manual` leaves that to `commit`.
        """
        check_range("batch", batch, 1, BATCH_RECORDS_MAX)
        if commit not in COMMITS:
            raise InvalidInput(f"commit is one of {', '.join(COMMITS)}", field="commit")
        wait = CONSUME_WAIT_SECONDS if idle is None else milliseconds("idle", idle) / 1000
        done = committed = -1
        page = self._streams.next(self.name, check_consumer_name(consumer), batch, wait)
        try:
            while page.records or idle is None:
                for record in to_records(page):
                    yield record
                    done = record.offset
                    if commit == "record":
                        self.commit(consumer, done)
                        committed = done
                if commit == "batch" and done > committed:
                    self.commit(consumer, done)
                    committed = done
                elif not page.records:
                    # It has nothing to say, and should be known to be there all the same.
                    self._streams.create_consumer(self.name, consumer)
                page = self._streams.read(self.name, page.next, batch, wait)
        finally:
            if commit != "manual" and done > committed:
                self.commit(consumer, done)

    # Consumers

    def commit(self, consumer: str, offset: int, *, force: bool = False) -> Consumer:
        """The last record that was processed. Durable when answered; moves back only with `force`."""
        check_range("offset", offset, -1, OFFSET_MAX)
        check_flag("force", force)
        return self._streams.commit(self.name, check_consumer_name(consumer), offset, force)

    def create_consumer(self, consumer: str | None = None) -> Consumer:
        """With a unique name if none is given. One that is there already stays as it is."""
        consumer = new_consumer_name() if consumer is None else check_consumer_name(consumer)
        return self._streams.create_consumer(self.name, consumer)

    def consumers(self) -> list[Consumer]:
        """With their positions and lag."""
        return self._streams.consumers(self.name)

    def consumer(self, consumer: str) -> Consumer:
        return self._streams.consumer(self.name, check_consumer_name(consumer))

    def forget(self, consumer: str) -> None:
        """Its position is gone, and nothing is kept for it any more."""
        self._streams.forget(self.name, check_consumer_name(consumer))

    # The stream itself

    def info(self) -> StreamInfo:
        """Options, first and next offset, sizes."""
        return self._streams.info(self.name)

    def configure(self, **changes: Unpack[StreamChanges]) -> StreamInfo:
        """Change options; the others stay."""
        return self._streams.configure(self.name, dict(changes))

    def trim(self, before: int | None = None, *, force: bool = False) -> Trimmed:
        """Remove whole segments before an offset, or what the options no longer keep; not what a consumer still needs,
        unless forced."""
        if before is not None:
            check_range("before", before, 0, OFFSET_MAX)
        check_flag("force", force)
        return self._streams.trim(self.name, before, force)

    def drop(self, *, force: bool = False) -> None:
        """Remove the stream; with `force`, also one that has consumers."""
        check_flag("force", force)
        self._streams.drop(self.name, force)
