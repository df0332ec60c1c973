"""Streaming in the queue API: NDJSON push, import and export, and live events."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.events import QueueEvent, Subscription
from penstock.config import Settings
from penstock.core.ids import DLQ_SUFFIX
from penstock.core.model import StoredMessage
from penstock.errors import PenstockError, UnknownQueue
from penstock.server.api.ndjson import after as failed_after
from penstock.server.api.ndjson import records
from penstock.server.event_stream import EventBroadcaster
from penstock.server.http.messages import Request, Response, reply
from penstock.server.signatures import Signatures
from penstock.wire.http_errors import HttpError
from penstock.wire.new_messages import check_imported, imported, new_message
from penstock.wire.queue_views import export_line, pushed_many
from penstock.wire.queues import Imported, ImportedMessage, PushedMany, PushOne

BATCH = 500
EXPORT_BYTES = 256 << 10
# Memory of one export: a page of messages, their lines, unsent bytes, and its own connection to the store.
EXPORT_STREAM_BYTES = 2 << 20
SSE_KEEPALIVE_SECONDS = 15.0

push_one = msgspec.json.Decoder(PushOne)
imported_message = msgspec.json.Decoder(ImportedMessage)


class QueueStreams:
    def __init__(
        self, broker: Broker, settings: Settings, signatures: Signatures, broadcaster: EventBroadcaster | None
    ) -> None:
        self._broker = broker
        self._broadcaster = broadcaster
        self._settings = settings
        self._signatures = signatures
        self._batch = min(BATCH, settings.batch_max)

    async def push(self, request: Request, queue: str) -> Response:
        """Push line by line, committed in batches; the size limit applies to each line."""
        pushed = PushedMany([], [])
        key, parts = request.header(b"idempotency-key"), 0
        line_bytes_max = self._settings.payload_bytes * 2 + 4_096
        try:
            async for batch in records(request, push_one, line_bytes_max=line_bytes_max, batch_max=self._batch):
                secret = await self._signatures.secret(queue)
                messages = [new_message(each, secret, request.traceparent) for each in batch]
                request_key = None if key is None else f"{key.decode('latin-1')}:{parts}"
                parts += 1
                more = pushed_many(await self._broker.push(queue, messages, request_key=request_key))
                first = len(pushed.message_ids)
                pushed.message_ids += more.message_ids
                pushed.duplicates += [first + position for position in more.duplicates]
        except PenstockError as error:
            raise failed_after(len(pushed.message_ids), error) from None
        if not pushed.message_ids:
            await self._require(queue)
        return reply(pushed, 201, rows=len(pushed.message_ids))

    async def import_(self, request: Request) -> Response:
        queue = await self._require(request.params["queue"])
        done = Imported(0, 0, 0)
        line_bytes_max = self._settings.payload_bytes * 2 + 65_536
        try:
            async for batch in records(request, imported_message, line_bytes_max=line_bytes_max, batch_max=self._batch):
                work = [line for line in batch if line.state != "archived"]
                done.skipped += len(batch) - len(work)
                held = await self._broker.held(queue, [line.uuid for line in work if line.uuid])
                new = [line for line in work if line.uuid not in held]
                messages = [imported(line) for line in new]
                check_imported(await self._signatures.secret(queue), messages)
                receipts = await self._broker.push(queue, messages) if messages else []
                added = sum(not receipt.duplicate for receipt in receipts)
                done.imported += added
                done.duplicates += len(work) - added
        except PenstockError as error:
            raise failed_after(done.imported, error) from None
        return reply(done, rows=done.imported)

    async def export(self, request: Request) -> Response:
        queue = await self._require(request.params["queue"])
        stream = self._export_lines(queue)
        return Response(200, content_type=b"application/x-ndjson", stream=stream, stream_bytes=EXPORT_STREAM_BYTES)

    async def _export_lines(self, queue: str) -> AsyncGenerator[bytes, None]:
        messages = self._broker.export(queue)
        try:
            while chunk := await self._broker.read(lambda: _next_lines(messages)):
                yield chunk
        finally:
            # The export holds a read snapshot, which keeps SQLite from truncating the WAL.
            await self._broker.read(messages.close)

    async def events(self, request: Request) -> Response:
        # Events of dead letters are published under their queue.
        queue = (await self._require(request.params["queue"])).removesuffix(DLQ_SUFFIX)
        since = _last_event(request)
        headers = [(b"cache-control", b"no-store")]
        stream = self._event_lines(request, queue, since)
        return Response(200, content_type=b"text/event-stream", headers=headers, stream=stream)

    async def _event_lines(self, request: Request, queue: str, since: int | None) -> AsyncGenerator[bytes, None]:
        broadcaster = await self._events_of(queue)
        begin = b""
        if broadcaster is not None:
            # An id without an event, so that a client that disconnects before the first event also resumes here.
            begin = b"id: %d\n" % (await broadcaster.next_offset() - 1 if since is None else since)
        async with self._subscribe(queue) as subscription:
            disconnected = request.exchange.wait_closed()
            disconnected.add_done_callback(lambda _: subscription.wake())
            sent_until = 0
            try:
                yield b": events of this queue follow\n%s\n" % begin
                if broadcaster is not None and since is not None:
                    async for events, after in broadcaster.since(queue, since + 1):
                        sent_until = after
                        yield _event_stream(events)
                while not disconnected.done() and not self._broker.closing:
                    events = await subscription.next(SSE_KEEPALIVE_SECONDS)
                    new = [event for event in events if event[2] is None or event[2] >= sent_until]
                    if new or not events:
                        yield _event_stream(new) or b": still here\n\n"
            finally:
                disconnected.cancel()

    async def _events_of(self, queue: str) -> EventBroadcaster | None:
        """Return the broadcaster if the journal covers this queue."""
        info = await self._broker.find_queue(queue)
        return None if info is None or info.options.journal == "off" else self._broadcaster

    def _subscribe(self, queue: str) -> AbstractAsyncContextManager[Subscription]:
        return self._subscribe_here(queue) if self._broadcaster is None else self._broadcaster.subscribe(queue)

    @asynccontextmanager
    async def _subscribe_here(self, queue: str) -> AsyncIterator[Subscription]:
        """Subscribe; without a journal, only to events of this server."""
        with self._broker.events.subscribe(queue) as subscription:
            yield subscription

    async def _require(self, name: str) -> str:
        if await self._broker.find_queue(name) is None:
            raise UnknownQueue(name)
        return name


def _next_lines(messages: Iterator[StoredMessage]) -> bytes:
    """Return a page of messages as lines; empty at the end."""
    encoded = bytearray()
    for message in messages:
        encoded += export_line(message)
        if len(encoded) >= EXPORT_BYTES:
            break
    return bytes(encoded)


def _event_stream(events: Sequence[QueueEvent]) -> bytes:
    return b"".join(
        (b"" if offset is None else b"id: %d\n" % offset)
        + b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(data))
        for kind, data, offset in events
    )


def _last_event(request: Request) -> int | None:
    """Return the offset in the Last-Event-ID header."""
    text = request.header(b"last-event-id")
    if text is None or text == b"":
        return None
    if not re.fullmatch(rb"-1|[0-9]{1,18}", text):
        raise HttpError(
            422,
            "invalid_value",
            "invalid Last-Event-ID",
            field="Last-Event-ID",
            hint="send the id of an event, or omit it",
        )
    return int(text)
