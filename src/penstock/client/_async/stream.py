"""Operations of one stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, Unpack

from penstock.client.stream_types import Commit, Record, Records, StreamChanges, to_record, to_records
from penstock.client.types import Seconds, milliseconds
from penstock.core.limits import check_flag, check_many, check_range
from penstock.errors import InvalidInput
from penstock.log.consumers import check_consumer_name, new_consumer_name
from penstock.log.interface import EARLIEST
from penstock.log.model import BATCH_RECORDS_MAX, READ_RECORDS_MAX, Consumer, StreamInfo, Trimmed
from penstock.log.reader import OFFSET_MAX
from penstock.log.streams import check_stream_name
from penstock.wire.arrow_records import batches_of
from penstock.wire.streams import Appended

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client._async.client import Client

CONSUME_WAIT_SECONDS = 20.0
COMMITS = ("batch", "record", "manual")


class Stream:
    """A stream, returned by `client.stream(name)`. Durations are in seconds::

    await stream.append({"order": 1})
    async for record in stream.consume("billing"):
        await bill(record.data)
    """

    def __init__(self, client: Client, name: str) -> None:
        self.name = check_stream_name(name)
        self._streams = client.transport.streams

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"

    # Appending

    async def append(self, data: Any) -> Appended:
        """Append a record: bytes, a string, or another JSON value. Returns once it is durable.

        Over HTTP, an append is retried after a lost response and still added only once.
        """
        return await self._streams.append(self.name, [to_record(data)])

    async def append_many(self, records: Iterable[Any]) -> Appended:
        """Append records, all or none, at consecutive offsets."""
        new = [to_record(data) for data in check_many("records", records, BATCH_RECORDS_MAX)]
        if not new:
            raise InvalidInput("no records to append", field="records")
        return await self._streams.append(self.name, new)

    async def append_arrow(self, data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> Appended:
        """Append the column `data`, or the only column, of type binary or string.

        Records are appended in order, in parts of at most 10,000, each of them all or none.
        """
        return await self._streams.append_arrow(self.name, batches_of(data))

    # Reading

    async def read(self, start: int | None = None, limit: int = 1_000, *, wait: Seconds = 0) -> Records:
        """Read records from an offset (default: the earliest), waiting up to `wait` for the first."""
        check_range("limit", limit, 1, READ_RECORDS_MAX)
        if start is not None:
            check_range("start", start, 0, OFFSET_MAX)
        seconds = milliseconds("wait", wait) / 1000
        offset = EARLIEST if start is None else start
        return to_records(await self._streams.read(self.name, offset, limit, seconds))

    async def read_arrow(self, start: int | None = None, end: int | None = None) -> AsyncIterator[pa.RecordBatch]:
        """Yield record batches with the columns offset, timestamp and data, up to an offset (default: the end)."""
        for field, offset in (("start", start), ("end", end)):
            if offset is not None:
                check_range(field, offset, 0, OFFSET_MAX)
        async for batch in self._streams.read_arrow(self.name, start, end):
            yield batch

    async def next(self, consumer: str, limit: int = 1_000, *, wait: Seconds = 0) -> Records:
        """Read the records after a consumer's committed offset; a new consumer starts at the earliest record."""
        check_range("limit", limit, 1, READ_RECORDS_MAX)
        seconds = milliseconds("wait", wait) / 1000
        return to_records(await self._streams.next(self.name, check_consumer_name(consumer), limit, seconds))

    async def consume(
        self, consumer: str, *, batch: int = 100, commit: Commit = "batch", idle: Seconds | None = None
    ) -> AsyncIterator[Record]:
        """Yield records after the consumer's offset, forever, or until none has arrived for `idle` seconds.

        At-least-once delivery: a record counts as processed when the loop asks for the next one. The offset is
        committed after each `batch` or each `record`, and on leaving the loop, without the record at which the loop
        was left. With `manual`, call `commit` yourself.
        """
        check_range("batch", batch, 1, BATCH_RECORDS_MAX)
        if commit not in COMMITS:
            raise InvalidInput(f"commit must be one of {', '.join(COMMITS)}, got {commit!r}", field="commit")
        wait = CONSUME_WAIT_SECONDS if idle is None else milliseconds("idle", idle) / 1000
        done = committed = -1
        page = await self._streams.next(self.name, check_consumer_name(consumer), batch, wait)
        try:
            while page.records or idle is None:
                for record in to_records(page):
                    yield record
                    done = record.offset
                    if commit == "record":
                        await self.commit(consumer, done)
                        committed = done
                if commit == "batch" and done > committed:
                    await self.commit(consumer, done)
                    committed = done
                elif not page.records:
                    # Register the consumer, although it has no offset to commit yet.
                    await self._streams.create_consumer(self.name, consumer)
                page = await self._streams.read(self.name, page.next, batch, wait)
        finally:
            if commit != "manual" and done > committed:
                await self.commit(consumer, done)

    # Consumers

    async def commit(self, consumer: str, offset: int, *, force: bool = False) -> Consumer:
        """Commit the offset of the last processed record, durably. It moves back only with `force`."""
        check_range("offset", offset, -1, OFFSET_MAX)
        check_flag("force", force)
        return await self._streams.commit(self.name, check_consumer_name(consumer), offset, force)

    async def create_consumer(self, consumer: str | None = None) -> Consumer:
        """Create a consumer, with a unique name if none is given. An existing consumer stays as it is."""
        consumer = new_consumer_name() if consumer is None else check_consumer_name(consumer)
        return await self._streams.create_consumer(self.name, consumer)

    async def consumers(self) -> list[Consumer]:
        """Return the consumers with their offsets and lag."""
        return await self._streams.consumers(self.name)

    async def consumer(self, consumer: str) -> Consumer:
        return await self._streams.consumer(self.name, check_consumer_name(consumer))

    async def forget(self, consumer: str) -> None:
        """Delete a consumer's offset, so that retention no longer waits for it."""
        await self._streams.forget(self.name, check_consumer_name(consumer))

    # The stream itself

    async def info(self) -> StreamInfo:
        """Return the stream's options, first and next offset, and sizes."""
        return await self._streams.info(self.name)

    async def configure(self, **changes: Unpack[StreamChanges]) -> StreamInfo:
        """Change the given options; the others stay as they are."""
        return await self._streams.configure(self.name, dict(changes))

    async def trim(self, before: int | None = None, *, force: bool = False) -> Trimmed:
        """Remove whole segments before an offset (default: what retention allows).

        Records that a consumer still needs stay, unless forced.
        """
        if before is not None:
            check_range("before", before, 0, OFFSET_MAX)
        check_flag("force", force)
        return await self._streams.trim(self.name, before, force)

    async def drop(self, *, force: bool = False) -> None:
        """Delete the stream; with `force`, even if it has consumers."""
        check_flag("force", force)
        await self._streams.drop(self.name, force)
