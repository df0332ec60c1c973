"""HTTP/1.1 on one connection: httptools reads it, and what limits a client, and tells what has left for it, is here.

Bytes are written to the kernel at once, so that what the transport still holds has not left.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from penstock.server.errors import HttpError
from penstock.server.exchange import STATUS_LINES, HttpExchange
from penstock.server.http import Request
from penstock.server.problems import to_response
from penstock.server.sockets import HttpSocket

if TYPE_CHECKING:
    from penstock.server.listener import Listener

HEAD_BYTES_MAX = 64 << 10
HEADERS_MAX = 100
PIPELINED_MAX = 16
BEYOND_BYTES_MAX = 4 << 10
BODY_BYTES_AHEAD = 64 << 10
IDLE_SECONDS_MAX = 75.0
HEAD_SECONDS_MAX = 15.0
BODY_BYTES_PER_SECOND_MIN = 512
BODY_SECONDS_GRACE = 30.0
STALL_SECONDS_MAX = 60.0
LINGER_SECONDS = 2.0
LINGER_BYTES = 32 << 20
TCP_ESTABLISHED = 1
BODY_HEADERS = frozenset((b"content-length", b"transfer-encoding"))

HEAD_TOO_LARGE = HttpError(431, "head_too_large", "the request's head is too large", hint=f"at most {HEAD_BYTES_MAX}")
NOT_HTTP = HttpError(400, "malformed_request", "this is not an HTTP/1.1 request")
NO_UPGRADE = HttpError(400, "no_upgrade", "only HTTP/1.1 is spoken here", hint="leave out the Upgrade header")
FULL = HttpError(503, "too_many_connections", "too many connections are open", headers={"retry-after": "1"})


class Connection(asyncio.Protocol):
    """Requests are answered one after the other, in one task for as long as the connection lasts."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self._leaving: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._kernel: socket.socket | None = None
        self._exchanges: deque[HttpExchange] = deque()
        """Begun and not answered, the first of them in work."""
        self._reading: HttpExchange | None = None
        """Whose body is on its way."""
        self._deaf = False
        """Refused, or spoken to in another protocol: what comes is not HTTP."""
        self._socket: HttpSocket | None = None
        self._beyond = b""
        """What came in the other protocol before it was agreed upon."""
        self._held_back = False
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._in_head = False
        self._head_bytes = self._head_lines = 0
        self._body_bytes = 0
        self._waiting_since = self._loop.time()
        """When it began to wait for the bytes that are due; 0 when none are."""
        self._idle_since = 0.0
        self._stalled_since = 0.0
        self._stalled_bytes = 0
        self.lost = False
        self.client: str | None = None

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not instances of it.
        # So that it pauses us whenever it holds bytes back. TLS counts from the limit on, plain TCP from above it.
        tls = transport.get_extra_info("sslcontext") is not None
        self._transport.set_write_buffer_limits(high=1 if tls else 0, low=0)
        peer = transport.get_extra_info("peername")
        self.client = str(peer[0]) if peer else None
        if not self._listener.admit(self):
            self._refuse(FULL)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self._listener.forget(self)
        del self._parser  # It holds on to this object, too.
        if self._kernel is not None:
            self._kernel.detach()
        for waiting in (self._next, self._leaving, self._drained):
            _wake(waiting)
        for exchange in self._exchanges:
            exchange.wake()

    @property
    def gone(self) -> bool:
        """Whether what would be sent now could not arrive."""
        return self.lost or self._transport.is_closing()

    @property
    def hung_up(self) -> bool:
        """As `gone`, asking the kernel also for what the event loop has not come round to."""
        if self.gone:
            return True
        if self._kernel is None:
            known = self._transport.get_extra_info("socket")
            if known is None or not hasattr(socket, "TCP_INFO"):
                return False
            # uvloop's own socket object has no getsockopt.
            self._kernel = socket.socket(known.family, socket.SOCK_STREAM, 0, known.fileno())
        try:
            return self._kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != TCP_ESTABLISHED
        except OSError:
            return False

    @property
    def stopping(self) -> bool:
        return self._listener.stopping

    def leaving(self) -> asyncio.Future[None]:
        self._leaving = self._loop.create_future()
        if self.lost:
            self._leaving.set_result(None)
        return self._leaving

    def end(self) -> None:
        """After the answer that is in work, if there is one."""
        if not self._exchanges:
            self._transport.close()

    async def break_off(self) -> None:
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._listen(data)
            return
        was_in_head = self._in_head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Answered as a plain request unless it asks for a WebSocket; what follows may be in the other protocol.
            self._deaf = True
            self._listen(data[upgrade.args[0] :])
            for exchange in self._exchanges:
                exchange.keep_alive = exchange is not self._exchanges[-1]
        except httptools.HttpParserError:
            self._refuse(NOT_HTTP)
        if self._in_head and was_in_head:
            # A header is shown when it is whole; until then its bytes are counted as they come.
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(HEAD_TOO_LARGE)
        if self._reading is not None or self._in_head or not self._exchanges:
            self._waiting_since = self._waiting_since or self._loop.time()
        if self._reading is not None or len(self._exchanges) > PIPELINED_MAX:
            self.regulate()

    def _listen(self, data: bytes) -> None:
        if self._socket is not None:
            self._socket.feed(data)
        elif len(self._beyond) <= BEYOND_BYTES_MAX:
            self._beyond += data

    def open_socket(self, request: Request, slow_seconds: float) -> HttpSocket:
        """From now on this connection is a WebSocket."""
        self._socket = HttpSocket(self, request, slow_seconds)
        self._socket.feed(self._beyond)
        return self._socket

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._in_head = True
        self._head_bytes = self._head_lines = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        self._head_lines += 1
        if self._head_lines > HEADERS_MAX or self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(HEAD_TOO_LARGE)
        elif self._in_head:
            self._headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._deaf:
            return
        try:
            path, query = _split_target(self._url)
        except httptools.HttpParserError:
            self._refuse(NOT_HTTP)
            return
        parser, headers = self._parser, self._headers
        if parser.should_upgrade() and not BODY_HEADERS.isdisjoint(headers):
            # The parser takes the body for the other protocol's, and without it this is another request.
            self._refuse(NO_UPGRADE)
            return
        new = parser.get_http_version() != "1.0"
        exchange = HttpExchange(
            self,
            keep_alive=new and parser.should_keep_alive(),
            chunks=new,
            expects_continue=headers.get(b"expect", b"").lower() == b"100-continue",
        )
        method = parser.get_method().decode("ascii")
        exchange.request = Request(exchange, method, path, query, headers, self._listener.request_bytes)
        self._reading = exchange
        self._exchanges.append(exchange)
        self._waiting_since = 0.0
        self._body_bytes = 0
        if self._task is None:
            self._task = self._loop.create_task(self._converse())
        else:
            _wake(self._next)

    def on_body(self, body: bytes) -> None:
        exchange = self._reading
        if exchange is None:
            return
        self._body_bytes += len(body)
        if not exchange.answered:
            exchange.feed(body)
        elif self._body_bytes > LINGER_BYTES:
            self._transport.close()

    def on_message_complete(self) -> None:
        exchange, self._reading = self._reading, None
        if exchange is not None:
            exchange.complete = True
            exchange.wake()
            self._waiting_since = 0.0

    def regulate(self) -> None:
        """Stop reading from a client that is further ahead than we can follow, and go on when it is not."""
        body = self._reading
        hold_back = len(self._exchanges) > PIPELINED_MAX or (
            body is not None and not body.answered and body.buffered > BODY_BYTES_AHEAD
        )
        if hold_back != self._held_back and not self.gone:
            self._held_back = hold_back
            if hold_back:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # Answering

    async def _converse(self) -> None:
        while not self.gone:
            if not self._exchanges:
                self._next = self._loop.create_future()
                await self._next
                continue
            exchange = self._exchanges[0]
            try:
                await self._listener.answer(exchange.request)
            except Exception:
                break  # The application has said why; the answer is broken off.
            self._exchanges.popleft()
            if not exchange.answered or not exchange.keep_alive or self.stopping:
                break
            self._idle_since = self._listener.now
            if not exchange.complete:
                # Refused before it was read. A little more is read, so that the refusal is not lost in a reset.
                self._waiting_since, self._body_bytes = self._loop.time(), 0
            if self._held_back:
                self.regulate()
        self._transport.close()

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def end_writing(self) -> None:
        """Hang up when everything has left."""
        self._transport.close()

    @property
    def unsent(self) -> bool:
        """Whether some of what was written has not left for the kernel, be it that it never will."""
        return self._stalled_since != 0.0

    async def drain(self) -> None:
        """Wait until everything has left, or the connection is lost."""
        while self._stalled_since and not self.lost:
            self._drained = self._loop.create_future()
            await self._drained

    def pause_writing(self) -> None:
        self._stalled_since = self._loop.time()
        self._stalled_bytes = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self._stalled_since = 0.0
        _wake(self._drained)

    def _refuse(self, error: HttpError) -> None:
        """Of what cannot be read as a request, say so and hang up."""
        if self._deaf:
            return
        self._deaf = True
        response = to_response(error)
        head = b"".join(b"%s: %s\r\n" % header for header in response.headers)
        self.write(
            b"%s%scontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (STATUS_LINES[error.status], head, len(response.body), response.body)
        )
        self._transport.close()

    # Dawdling

    def check(self, now: float) -> None:
        """Drop a client that keeps us waiting. Called now and then, which costs less than timers do."""
        if self._stalled_since and now - self._stalled_since > STALL_SECONDS_MAX:
            self._check_reader(now)
        waited = now - self._waiting_since if self._waiting_since else 0.0
        if self._reading is not None and self._reading.answered:
            if waited > LINGER_SECONDS:
                self._transport.close()
        elif self._reading is not None:
            if waited > BODY_SECONDS_GRACE:
                self._check_body(now)
        elif waited > HEAD_SECONDS_MAX:
            self._transport.abort()
        elif not self._exchanges and self._idle_since and now - self._idle_since > IDLE_SECONDS_MAX:
            self._transport.close()

    def _check_body(self, now: float) -> None:
        # Whoever is kept waiting by us does not dawdle.
        if self._body_bytes < BODY_BYTES_PER_SECOND_MIN * BODY_SECONDS_GRACE and not self._held_back:
            self._transport.abort()
        self._waiting_since, self._body_bytes = now, 0

    def _check_reader(self, now: float) -> None:
        unsent = self._transport.get_write_buffer_size()
        if unsent >= self._stalled_bytes:
            self._transport.abort()
        self._stalled_since, self._stalled_bytes = now, unsent


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _split_target(url: bytes) -> tuple[bytes, bytes]:
    if url.startswith(b"/") and b"#" not in url:
        path, _, query = url.partition(b"?")
        return path, query
    parsed = httptools.parse_url(url)
    return parsed.path or b"/", parsed.query or b""
