"""HTTP/1.1 on one connection: handles requests one after the other, with limits on slow clients.

Data is written to the kernel at once, so whatever the transport still buffers has not been sent.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from penstock.server.error_responses import to_response
from penstock.server.http.exchange import STATUS_LINES, HttpExchange
from penstock.server.http.messages import Request
from penstock.server.http.request_parser import END, HEAD_BYTES_MAX, Head, RequestParser
from penstock.server.http.websocket import HttpSocket
from penstock.wire.http_errors import HttpError

if TYPE_CHECKING:
    from penstock.server.http.server import HttpServer

READ_AHEAD_BYTES = 64 << 10
assert READ_AHEAD_BYTES >= HEAD_BYTES_MAX
STEPS_MAX = 256
IDLE_SECONDS_MAX = 75.0
HEAD_SECONDS_MAX = 15.0
BODY_BYTES_PER_SECOND_MIN = 512
BODY_SECONDS_GRACE = 30.0
STALL_SECONDS_MAX = 60.0
LINGER_SECONDS = 2.0
LINGER_BYTES = 32 << 20
TCP_ESTABLISHED = 1

FULL = HttpError(503, "too_many_connections", "too many connections are open", headers={"retry-after": "1"})


class ServerConnection(asyncio.Protocol):
    """Handles the requests of one connection in one task. The next request is parsed after the response."""

    def __init__(self, listener: HttpServer) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser()
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self._closed_waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._kernel: socket.socket | None = None
        # The request in progress; None between two.
        self._exchange: HttpExchange | None = None
        # The last response has been written, so further input is ignored.
        self._ignores_input = False
        # The client has closed its sending side.
        self._peer_sent_eof = False
        self._socket: HttpSocket | None = None
        self._reading_paused = False
        self._body_bytes = 0
        # Time since when expected bytes are missing; 0 if none are expected.
        self._waiting_since = self._loop.time()
        self._idle_since = 0.0
        self._stalled_since = 0.0
        self._stalled_bytes = 0
        self.lost = False
        self.client: str | None = None

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not instances of it.
        # Pause writing whenever the transport buffers anything. TLS pauses at the limit, plain TCP above it.
        self._has_tls = transport.get_extra_info("sslcontext") is not None
        self._transport.set_write_buffer_limits(high=1 if self._has_tls else 0, low=0)
        peer = transport.get_extra_info("peername")
        self.client = str(peer[0]) if peer else None
        if not self._listener.admit(self):
            self._refuse(FULL)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self._listener.forget(self)
        if self._kernel is not None:
            self._kernel.detach()
        for waiting in (self._next, self._closed_waiter, self._drained):
            _wake(waiting)
        if self._exchange is not None:
            self._exchange.wake()

    def eof_received(self) -> bool:
        """Respond to complete requests: the client may have closed only its side. TLS closes both."""
        self._peer_sent_eof = True
        _wake(self._closed_waiter)
        if self._socket is not None or (self._ignores_input and self._exchange is None):
            return False
        self.advance()
        return not self.is_closed and not self._has_tls

    @property
    def is_closed(self) -> bool:
        """True if the connection is lost or closing, so nothing can be sent."""
        return self.lost or self._transport.is_closing()

    @property
    def peer_closed(self) -> bool:
        """True if closed, also if the kernel knows it before the event loop does."""
        if self.is_closed:
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
    def half_closed(self) -> bool:
        """True if the client has closed its sending side; it may still be reading."""
        return not self.is_closed and (self._peer_sent_eof or self.peer_closed)

    @property
    def stopping(self) -> bool:
        return self._listener.stopping

    @property
    def date(self) -> bytes:
        return self._listener.date

    def wait_closed(self) -> asyncio.Future[None]:
        self._closed_waiter = self._loop.create_future()
        if self.lost or self._peer_sent_eof:
            self._closed_waiter.set_result(None)
        return self._closed_waiter

    def end(self) -> None:
        """Close after the response in progress, if there is one."""
        if self._exchange is None or self._exchange.answered:
            self._transport.close()

    async def abort(self) -> None:
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._socket is not None:
            self._socket.feed(data)
            return
        if self._ignores_input:
            self._body_bytes += len(data)
            if self._body_bytes > LINGER_BYTES:
                self._transport.close()
            return
        self._parser.feed(data)
        self.advance()
        if self._exchange is None or not self._exchange.complete:
            self._waiting_since = self._waiting_since or self._loop.time()

    def advance(self) -> None:
        """Parse the input up to the end of one request; pause reading from a client that is too far ahead."""
        if self.lost:
            return
        is_starved = False
        for _ in range(STEPS_MAX):
            exchange = self._exchange
            if self._ignores_input or (exchange is not None and (exchange.complete or self._is_ahead(exchange))):
                break
            try:
                event = self._parser.next()
            except HttpError as error:
                self._fail(error)
                break
            if event is None:
                is_starved = True
                break
            if isinstance(event, Head):
                self._begin(event)
            elif exchange is not None:
                self._continue(exchange, b"" if event is END else event)
        else:
            self._loop.call_soon(self.advance)  # Let other connections run first.
        if is_starved and self._peer_sent_eof:
            self._transport.close()
        self._pause_reading(not is_starved and self._parser.unread > 0)

    def _is_ahead(self, exchange: HttpExchange) -> bool:
        return not exchange.answered and exchange.buffered > READ_AHEAD_BYTES

    def _pause_reading(self, is_ahead: bool) -> None:
        # Reading continues up to a limit, so that a disconnect is noticed.
        hold_back = is_ahead and self._parser.unread > READ_AHEAD_BYTES and not self._ignores_input
        if hold_back != self._reading_paused and not self.is_closed and not self._peer_sent_eof:
            self._reading_paused = hold_back
            if hold_back:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _begin(self, head: Head) -> None:
        exchange = HttpExchange(
            self, keep_alive=head.keep_alive, chunks=head.is_http_1_1, expects_continue=head.expects_continue
        )
        limit = self._listener.request_bytes
        exchange.request = Request(exchange, head.method, head.path, head.query, head.headers, limit)
        self._exchange = exchange
        self._waiting_since = 0.0
        self._body_bytes = 0
        if self._task is None:
            self._task = self._loop.create_task(self._serve_requests())
        else:
            _wake(self._next)

    def _continue(self, exchange: HttpExchange, part: bytes) -> None:
        self._body_bytes += len(part)
        if not part:
            exchange.complete = True
            self._waiting_since = 0.0
            if exchange.answered:
                self._exchange = None
            exchange.wake()
        elif not exchange.answered:
            exchange.feed(part)
        elif self._body_bytes > LINGER_BYTES:
            self._transport.close()

    def _fail(self, error: HttpError) -> None:
        """Reject malformed input, or the request whose body is malformed."""
        exchange = self._exchange
        if exchange is None:
            self._refuse(error)
        elif exchange.answered:
            self._transport.close()
        else:
            self._ignores_input = True
            self._waiting_since = 0.0
            exchange.fail(error)

    def open_socket(self, request: Request, slow_seconds: float) -> HttpSocket:
        """Switch this connection to WebSocket."""
        self._socket = HttpSocket(self, request, slow_seconds)
        self._socket.feed(self._parser.take_rest())
        self._pause_reading(False)
        return self._socket

    # Responses

    async def _serve_requests(self) -> None:
        while not self.is_closed:
            exchange = self._exchange
            if exchange is None or exchange.answered:
                self._next = self._loop.create_future()
                await self._next
                continue
            await self.drain()  # Produce nothing for a client that has not read the last response.
            try:
                await self._listener.answer(exchange.request)
            except Exception:
                break  # The application has logged the error; abort the response.
            if not exchange.answered or not exchange.keep_alive or self.stopping:
                break
            self._idle_since = self._listener.now
            if exchange.complete:
                self._exchange = None
            else:
                # Rejected before its body was read. Read a little more, so that a reset does not drop the response.
                self._waiting_since, self._body_bytes = self._loop.time(), 0
            if self._parser.unread or self._peer_sent_eof:
                self._waiting_since = self._waiting_since or self._loop.time()
                self.advance()
                await asyncio.sleep(0)  # Yield to other connections between pipelined requests.
        if self._parser.unread and not self.is_closed:
            self._linger()
        else:
            self._transport.close()

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def end_writing(self) -> None:
        """Close when everything has been sent."""
        self._transport.close()

    @property
    def unsent(self) -> bool:
        """True if the kernel has not accepted everything that was written."""
        return self._stalled_since != 0.0

    async def drain(self) -> None:
        """Wait until everything has been sent or the connection is lost."""
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
        """Send an error for malformed input and close."""
        response = to_response(error)
        head = b"".join(b"%s: %s\r\n" % header for header in response.headers)
        self.write(
            b"%sdate: %s\r\n%scontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (STATUS_LINES[error.status], self.date, head, len(response.body), response.body)
        )
        self._linger()

    def _linger(self) -> None:
        """Close, but read a little more first: a reset would drop the response."""
        self._ignores_input = True
        self._exchange = None
        if self._peer_sent_eof or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        self._pause_reading(False)
        self._waiting_since, self._body_bytes = self._loop.time(), 0

    # Timeouts

    def check(self, now: float) -> None:
        """Drop a client that is too slow. Called periodically, which costs less than timers per connection."""
        if self._stalled_since and now - self._stalled_since > STALL_SECONDS_MAX:
            self._check_reader(now)
        waited = now - self._waiting_since if self._waiting_since else 0.0
        exchange = self._exchange
        if exchange.answered if exchange is not None else self._ignores_input:
            if waited > LINGER_SECONDS:
                self._transport.close()
        elif exchange is not None:
            if waited > BODY_SECONDS_GRACE:
                self._check_body(now)
        elif waited > HEAD_SECONDS_MAX:
            self._transport.abort()
        elif self._idle_since and now - self._idle_since > IDLE_SECONDS_MAX:
            self._transport.close()

    def _check_body(self, now: float) -> None:
        # A client whose reading is paused by the server is not slow.
        if self._body_bytes < BODY_BYTES_PER_SECOND_MIN * BODY_SECONDS_GRACE and not self._reading_paused:
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
