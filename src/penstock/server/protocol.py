"""uvicorn's HTTP/1.1 protocol with what it lacks: limits on a request's head and on dawdling, and knowing what left."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from penstock.server.http import CONNECTION, HttpError
from penstock.server.problems import to_response

HEAD_BYTES_MAX = 64 << 10
HEADERS_MAX = 100
PIPELINED_MAX = 16
HEAD_SECONDS_MAX = 15.0
BODY_BYTES_PER_SECOND_MIN = 512
BODY_SECONDS_GRACE = 30.0
STALL_SECONDS_MAX = 60.0
LINGER_SECONDS = 2.0
LINGER_BYTES = 4 << 20
TCP_ESTABLISHED = 1

HEAD_TOO_LARGE = HttpError(431, "head_too_large", "the request's head is too large", hint=f"at most {HEAD_BYTES_MAX}")
NOT_HTTP = HttpError(400, "malformed_request", "this is not an HTTP/1.1 request")
FULL = HttpError(503, "too_many_connections", "too many connections are open", headers={"retry-after": "1"})


class LimitedProtocol(HttpToolsProtocol):
    """Drops a client whose request does not arrive in time, or who does not read its answer."""

    connections_max = 1 << 62

    _watch: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _active: RequestResponseCycle | None = None
    _kernel: socket.socket | None = None
    _in_head = True
    _in_body = False
    _refused = False
    _head_bytes = 0
    _body_bytes = 0
    _discarded_bytes = 0
    lost = False
    lost_by: Exception | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._refuse(FULL)
        else:
            self._watch = self.loop.call_later(HEAD_SECONDS_MAX, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost, self.lost_by = True, exc
        if self._kernel is not None:
            self._kernel.detach()
        self._unwatch()
        if self._stall is not None:
            self._stall.cancel()
        # uvicorn tells only the newest of pipelined requests.
        active = self._active
        if active is not None and active is not self.cycle and not active.response_complete:
            active.disconnected = True
            active.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._in_body:
            if self._watch is None:
                self._watch = self.loop.call_later(BODY_SECONDS_GRACE, self._check_body)
        elif self._in_head or (self._is_idle() and self.timeout_keep_alive_task is None):
            # Line ends between requests end uvicorn's own time limit, and begin no request.
            if self._watch is None:
                self._watch = self.loop.call_later(HEAD_SECONDS_MAX, self._too_slow)
        elif self._watch is not None:
            self._unwatch()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        self._in_head = True
        self._head_bytes = self._body_bytes = self._discarded_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if len(self.headers) >= HEADERS_MAX:
            self._refuse(HEAD_TOO_LARGE)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._refused:
            return
        self._in_head, self._in_body = False, True
        self._unwatch()
        super().on_headers_complete()
        # uvicorn stops reading at the first pipelined request, and would then not see its client go.
        if self.pipeline and len(self.pipeline) < PIPELINED_MAX:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            # Refused before it was read. A little more is read, so that the refusal is not lost in a reset.
            self._discarded_bytes += len(body)
            if self._discarded_bytes > LINGER_BYTES:
                self.transport.close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            self._in_body = False
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            self._unwatch()
            self._watch = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(STALL_SECONDS_MAX, self._check_reader, self._unsent())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def send_400_response(self, msg: str) -> None:
        if not self._refused:
            self._refuse(NOT_HTTP)

    @property
    def gone(self) -> bool:
        """Whether what would be sent now could not arrive."""
        return self.lost or self.transport.is_closing()

    @property
    def hung_up(self) -> bool:
        """As `gone`, asking the kernel also for what the event loop has not come round to."""
        if self.gone:
            return True
        if self._kernel is None:
            known = self.transport.get_extra_info("socket")
            if known is None or not hasattr(socket, "TCP_INFO"):
                return False
            # uvloop's own socket object has no getsockopt.
            self._kernel = socket.socket(known.family, socket.SOCK_STREAM, 0, known.fileno())
        try:
            return self._kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != TCP_ESTABLISHED
        except OSError:
            return False

    async def sent(self) -> bool:
        """Wait until all that was written has left for the kernel; False if it never did."""
        await asyncio.sleep(0)
        pause = 0.001
        while self._unsent():
            if self.lost:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.1)
        return not (self.lost and pause > 0.001 and self.lost_by is not None)

    def _unsent(self) -> int:
        return int(self.transport.get_write_buffer_size())

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(HEAD_TOO_LARGE)

    def _refuse(self, error: HttpError) -> None:
        if self._refused:
            return
        self._refused = True
        response = to_response(error)
        head = b"".join(b"%s: %s\r\n" % header for header in response.headers)
        reason = {400: b"Bad Request", 431: b"Request Header Fields Too Large", 503: b"Service Unavailable"}
        self.transport.write(
            b"HTTP/1.1 %d %s\r\n%scontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (error.status, reason[error.status], head, len(response.body), response.body)
        )
        self.transport.close()

    def _check_body(self) -> None:
        self._watch = None
        # Whoever is kept waiting by us does not dawdle.
        if self._body_bytes < BODY_BYTES_PER_SECOND_MIN * BODY_SECONDS_GRACE and not self.flow.read_paused:
            self._too_slow()
        else:
            self._body_bytes = 0
            self._watch = self.loop.call_later(BODY_SECONDS_GRACE, self._check_body)

    def _check_reader(self, unsent: int) -> None:
        if self._unsent() >= unsent:
            self._too_slow()
        else:
            self._stall = self.loop.call_later(STALL_SECONDS_MAX, self._check_reader, self._unsent())

    def _too_slow(self) -> None:
        self.transport.abort()

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
