"""One request on a connection of the built-in server: its body as it arrives, its response in one write."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING

from penstock.server.http.messages import Request, Response
from penstock.server.http.response_budget import SMALL_BYTES
from penstock.server.http.websocket import NO_WEBSOCKET, Socket, wants_socket
from penstock.wire.http_errors import Disconnected, HttpError

if TYPE_CHECKING:
    from penstock.server.http.connection import ServerConnection

STATUS_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpExchange:
    __slots__ = (
        "_connection",
        "_error",
        "_has_begun",
        "_left",
        "_parts",
        "_waiting",
        "answered",
        "buffered",
        "chunks",
        "complete",
        "expects_continue",
        "keep_alive",
        "request",
        "upgraded",
    )

    request: Request

    def __init__(self, connection: ServerConnection, *, keep_alive: bool, chunks: bool, expects_continue: bool) -> None:
        self._connection = connection
        self.keep_alive = keep_alive
        # True if the client understands chunked responses.
        self.chunks = chunks
        self.expects_continue = expects_continue
        # The whole request has arrived.
        self.complete = False
        # The whole response is written; the rest of the body is skipped.
        self.answered = False
        self.upgraded = False
        self.buffered = 0
        self._parts: list[bytes] = []
        self._waiting: asyncio.Future[None] | None = None
        self._error: HttpError | None = None
        self._has_begun = False
        self._left = False

    @property
    def client(self) -> str | None:
        return self._connection.client

    @property
    def is_closed(self) -> bool:
        return self._connection.is_closed

    @property
    def peer_closed(self) -> bool:
        return self._connection.peer_closed

    @property
    def half_closed(self) -> bool:
        return self._connection.half_closed and not self._has_begun

    def wait_closed(self) -> asyncio.Future[None]:
        return self._connection.wait_closed()

    def feed(self, part: bytes) -> None:
        self._parts.append(part)
        self.buffered += len(part)
        self.wake()

    def fail(self, error: HttpError) -> None:
        """Mark the body as malformed; the connection cannot be reused."""
        self._error = error
        self.keep_alive = False
        self.wake()

    def wake(self) -> None:
        """Wake the reader: more data has arrived, or none will."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def read(self) -> bytes:
        while not self._parts and not self.complete:
            if self._connection.lost:
                raise Disconnected
            if self._error is not None:
                raise self._error
            if self.expects_continue:
                self.expects_continue = False
                self._connection.write(CONTINUE)
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if not self._parts:
            return b""
        parts, self._parts, self.buffered = self._parts, [], 0
        if not self.complete:
            self._connection.advance()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def upgrade(self, request: Request, slow_seconds: float) -> Socket:
        if not wants_socket(request) or not self.complete:
            raise NO_WEBSOCKET
        socket = self._connection.open_socket(request, slow_seconds)
        self.upgraded, self.keep_alive = True, False
        return socket

    async def send(self, request: Request, response: Response) -> None:
        connection = self._connection
        if self.upgraded:
            self.answered = True
            return
        await connection.drain()
        self._has_begun = True
        head = self._head(request, response)
        if request.method == "HEAD":
            connection.write(head)
        elif response.stream is not None:
            await self._send_stream(head, response)
        elif len(response.body) <= SMALL_BYTES:
            connection.write(head + response.body)
        else:
            connection.write(head)
            connection.write(response.body)
            await connection.drain()  # Until then, it counts against the response budget.
        self.answered = True
        self._left = not connection.is_closed

    def _head(self, request: Request, response: Response) -> bytes:
        head = b"%sdate: %s\r\nx-request-id: %s\r\n" % (
            STATUS_LINES[response.status],
            self._connection.date,
            request.request_id,
        )
        for header in response.headers:
            head += b"%s: %s\r\n" % header
        if not self.keep_alive or self._connection.stopping:
            self.keep_alive = False
            head += b"connection: close\r\n"
        if response.status in (204, 304):
            return head + b"\r\n"
        if response.stream is None:
            return b"%scontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (
                head,
                response.content_type,
                len(response.body),
            )
        encoding = b"transfer-encoding: chunked\r\n" if self.chunks else b""
        return b"%scontent-type: %s\r\n%s\r\n" % (head, response.content_type, encoding)

    async def _send_stream(self, head: bytes, response: Response) -> None:
        connection = self._connection
        connection.write(head)
        assert response.stream is not None
        async with aclosing(response.stream) as chunks:
            async for chunk in chunks:
                await connection.drain()
                if connection.is_closed:
                    raise Disconnected
                if chunk:
                    connection.write(b"%x\r\n%s\r\n" % (len(chunk), chunk) if self.chunks else chunk)
        if self.chunks:
            connection.write(b"0\r\n\r\n")

    async def sent(self) -> bool:
        if self._left and self._connection.unsent:
            await self._connection.drain()
            self._left = not self._connection.unsent
        return self._left
