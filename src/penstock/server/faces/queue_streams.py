"""What the queue face streams: NDJSON in and out, and live events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from penstock.broker import Broker
from penstock.config import Settings
from penstock.errors import PenstockError, UnknownQueue
from penstock.events import Subscription
from penstock.model import Message
from penstock.server.faces.importing import imported
from penstock.server.faces.ndjson import after, records
from penstock.server.faces.queue_shapes import Imported, ImportedMessage, PushedMany, PushOne, export_line
from penstock.server.faces.queue_translation import new_message, pushed_many
from penstock.server.http import Request, Response, reply
from penstock.server.news import News
from penstock.server.signatures import Signatures

BATCH = 500
EXPORT_BYTES = 256 << 10
SSE_KEEPALIVE_SECONDS = 15.0

push_one = msgspec.json.Decoder(PushOne)
imported_message = msgspec.json.Decoder(ImportedMessage)


class QueueStreams:
    def __init__(self, broker: Broker, settings: Settings, signatures: Signatures, news: News | None) -> None:
        self._broker = broker
        self._news = news
        self._settings = settings
        self._signatures = signatures
        self._batch = min(BATCH, settings.batch_max)

    async def push(self, request: Request, queue: str) -> Response:
        """Committed batch by batch, limited a record at a time."""
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
            raise after(len(pushed.message_ids), error) from None
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
                receipts = await self._broker.push(queue, [imported(line) for line in new]) if new else []
                added = sum(not receipt.duplicate for receipt in receipts)
                done.imported += added
                done.duplicates += len(work) - added
        except PenstockError as error:
            raise after(done.imported, error) from None
        return reply(done, rows=done.imported)

    async def export(self, request: Request) -> Response:
        queue = await self._require(request.params["queue"])
        return Response(200, content_type=b"application/x-ndjson", stream=self._export_lines(queue))

    async def _export_lines(self, queue: str) -> AsyncGenerator[bytes, None]:
        messages = self._broker.export(queue)
        try:
            while chunk := await self._broker.read(lambda: _next_lines(messages)):
                yield chunk
        finally:
            # It holds a moment of the file, and with it the write-ahead log.
            await self._broker.read(messages.close)

    async def events(self, request: Request) -> Response:
        queue = await self._require(request.params["queue"])
        headers = [(b"cache-control", b"no-store")]
        stream = self._event_lines(request, queue)
        return Response(200, content_type=b"text/event-stream", headers=headers, stream=stream)

    async def _event_lines(self, request: Request, queue: str) -> AsyncGenerator[bytes, None]:
        async with self._subscribe(queue) as subscription:
            leaving = request.exchange.leaving()
            leaving.add_done_callback(lambda _: subscription.wake())
            try:
                yield b": events of this queue follow\n\n"
                while not leaving.done() and not self._broker.closing:
                    events = await subscription.next(SSE_KEEPALIVE_SECONDS)
                    yield (
                        b"".join(
                            b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(data))
                            for kind, data in events
                        )
                        or b": still here\n\n"
                    )
            finally:
                leaving.cancel()

    def _subscribe(self, queue: str) -> AbstractAsyncContextManager[Subscription]:
        return self._subscribe_here(queue) if self._news is None else self._news.subscribe(queue)

    @asynccontextmanager
    async def _subscribe_here(self, queue: str) -> AsyncIterator[Subscription]:
        """Without a journal, what happens at other servers is not known."""
        with self._broker.events.subscribe(queue) as subscription:
            yield subscription

    async def _require(self, name: str) -> str:
        if await self._broker.find_queue(name) is None:
            raise UnknownQueue(name)
        return name


def _next_lines(messages: Iterator[Message]) -> bytes:
    """Some messages as lines; empty at the end."""
    encoded = bytearray()
    for message in messages:
        encoded += export_line(message)
        if len(encoded) >= EXPORT_BYTES:
            break
    return bytes(encoded)
