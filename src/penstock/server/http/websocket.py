"""WebSockets on the built-in server, with the protocol of the `websockets` library, and on any ASGI server.

The server sends text; from the client it only needs to know that it is alive, or that it closes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame
from websockets.http11 import Request as Handshake
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from penstock.server.http.messages import Request
from penstock.wire.http_errors import Disconnected, HttpError

if TYPE_CHECKING:
    from penstock.server.http.connection import ServerConnection

# Size limit of a message from the client.
MESSAGE_BYTES_MAX = 64 << 10
GOODBYE_SECONDS = 2.0
SUBPROTOCOL = Subprotocol("penstock")
# Prefix of a base64url token offered as a subprotocol, because browsers cannot set headers of a WebSocket.
BEARER = b"bearer."
HANDSHAKE = (b"host", b"upgrade", b"connection", b"origin")
NO_WEBSOCKET = HttpError(
    426,
    "upgrade_required",
    "this endpoint is a WebSocket",
    hint="connect with ws:// or wss://",
    headers={"upgrade": "websocket", "connection": "upgrade"},
)


class TooSlow(Exception):
    """The client does not read what it is sent."""


class Socket(Protocol):
    async def send(self, texts: Sequence[bytes]) -> None:
        """Send one message per text. Raise Disconnected, or TooSlow if the client does not read them in time."""

    def ping(self) -> bool:
        """Send a ping; return False if the client did not respond to the last one."""

    async def close(self, code: int, reason: str, last: bytes | None = None) -> None:
        """Close, after a `last` message that may not arrive."""


def wants_socket(request: Request) -> bool:
    return request.headers.get(b"upgrade", b"").lower() == b"websocket"


def offered(request: Request) -> list[bytes]:
    """Return the subprotocols that the client offers."""
    header = request.headers.get(b"sec-websocket-protocol", b"")
    return [name for part in header.split(b",") if (name := part.strip())]


def offered_token(request: Request) -> bytes | None:
    """Return the token that a browser sends as a subprotocol; empty if it is malformed, None if there is none."""
    for name in offered(request):
        if name.startswith(BEARER):
            encoded = name.removeprefix(BEARER)
            try:
                return base64.b64decode(encoded + b"=" * (-len(encoded) % 4), b"-_", validate=True)
            except binascii.Error:
                return b""
    return None


def _choose(_: ServerProtocol, names: Sequence[Subprotocol]) -> Subprotocol | None:
    return SUBPROTOCOL if SUBPROTOCOL in names else None


class HttpSocket:
    """A WebSocket that takes over its connection to the built-in server."""

    def __init__(self, connection: ServerConnection, request: Request, slow_seconds: float) -> None:
        self._connection = connection
        self._slow_seconds = slow_seconds
        self._alive = True
        self._pong: list[bytes] = []
        self._protocol = ServerProtocol(max_size=MESSAGE_BYTES_MAX, select_subprotocol=_choose)
        self._open(request)

    def _open(self, request: Request) -> None:
        protocol = self._protocol
        protocol.receive_data(_handshake(request))
        events = protocol.events_received()
        if not events or not isinstance(events[0], Handshake):
            raise NO_WEBSOCKET
        response = protocol.accept(events[0])
        if response.status_code != 101:
            assert isinstance(protocol.handshake_exc, InvalidHandshake)
            raise HttpError(400, "malformed_handshake", str(protocol.handshake_exc))
        response.headers["x-request-id"] = request.request_id.decode("ascii")
        protocol.send_response(response)
        self._flush()

    def feed(self, data: bytes) -> None:
        """Process input; the protocol responds to pings and a close by itself."""
        self._protocol.receive_data(data)
        self._alive = self._alive or any(isinstance(event, Frame) for event in self._protocol.events_received())
        if self._connection.unsent and self._protocol.state is State.OPEN:
            # While the client reads nothing, keep only the last pong, however many pings it sends.
            self._pong = self._protocol.data_to_send()[-1:] or self._pong
        else:
            self._flush()

    def _flush(self) -> None:
        parts, self._pong = self._pong + self._protocol.data_to_send(), []
        if data := b"".join(parts):
            self._connection.write(data)
        if b"" in parts:
            self._connection.end_writing()

    @property
    def _is_over(self) -> bool:
        return self._connection.is_closed or self._protocol.state is not State.OPEN

    async def send(self, texts: Sequence[bytes]) -> None:
        if self._is_over:
            raise Disconnected
        for text in texts:
            self._protocol.send_text(text)
        self._flush()
        if self._connection.unsent:
            try:
                async with asyncio.timeout(self._slow_seconds):
                    await self._connection.drain()
            except TimeoutError:
                raise TooSlow from None
            self._flush()

    def ping(self) -> bool:
        was_alive, self._alive = self._alive, False
        if not self._is_over:
            self._protocol.send_ping(b"")
            self._flush()
        return was_alive

    async def close(self, code: int, reason: str, last: bytes | None = None) -> None:
        if self._is_over:
            return
        if last is not None:
            self._protocol.send_text(last)
        self._protocol.send_close(code, reason)
        self._flush()
        # Wait for the client's close frame: closing earlier resets the connection and may lose sent data.
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._connection.wait_closed()


def _handshake(request: Request) -> bytes:
    """Return the handshake headers of the request as bytes for the protocol to parse."""
    lines = [b"GET / HTTP/1.1"]
    for name, value in request.headers.items():
        if name in HANDSHAKE or name.startswith(b"sec-websocket-"):
            lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join(lines) + b"\r\n\r\n"
