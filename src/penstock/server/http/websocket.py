"""WebSockets: on a connection of our own server, where `websockets` speaks the protocol, or on any other's.

Text goes out; of what comes in only that the client is there, and that it leaves, matters.
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

# Of what a client may send us.
MESSAGE_BYTES_MAX = 64 << 10
GOODBYE_SECONDS = 2.0
SUBPROTOCOL = Subprotocol("penstock")
# Before a token in base64url, offered as one more subprotocol: a browser can set no header of a WebSocket.
BEARER = b"bearer."
HANDSHAKE = (b"host", b"upgrade", b"connection", b"origin")
NO_WEBSOCKET = HttpError(
    426,
    "upgrade_required",
    "this is a WebSocket",
    hint="connect with ws:// or wss://",
    headers={"upgrade": "websocket", "connection": "upgrade"},
)


class TooSlow(Exception):
    """The client does not take what it is sent."""


class Socket(Protocol):
    async def send(self, texts: Sequence[bytes]) -> None:
        """A message each. Raises Disconnected, or TooSlow when they have not left within the time that a client has."""

    def ping(self) -> bool:
        """Ask whether the client is there; False if it did not answer the last time."""

    async def close(self, code: int, reason: str, last: bytes | None = None) -> None:
        """With a last message, which may never arrive."""


def wants_socket(request: Request) -> bool:
    return request.headers.get(b"upgrade", b"").lower() == b"websocket"


def offered(request: Request) -> list[bytes]:
    """The subprotocols from which we may choose."""
    header = request.headers.get(b"sec-websocket-protocol", b"")
    return [name for part in header.split(b",") if (name := part.strip())]


def offered_token(request: Request) -> bytes | None:
    """What a browser sends in place of an Authorization header; empty if it cannot be read."""
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
    """Takes over the connection on which it was asked for."""

    def __init__(self, connection: ServerConnection, request: Request, slow_seconds: float) -> None:
        self._connection = connection
        self._slow_seconds = slow_seconds
        self._heard = True
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
        """What the client sent. Pings are answered, and a close is, by the protocol itself."""
        self._protocol.receive_data(data)
        self._heard = self._heard or any(isinstance(event, Frame) for event in self._protocol.events_received())
        if self._connection.unsent and self._protocol.state is State.OPEN:
            # While it takes nothing, of its pings only the last is kept to be answered, however many they are.
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
    def _over(self) -> bool:
        return self._connection.gone or self._protocol.state is not State.OPEN

    async def send(self, texts: Sequence[bytes]) -> None:
        if self._over:
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
        heard, self._heard = self._heard, False
        if not self._over:
            self._protocol.send_ping(b"")
            self._flush()
        return heard

    async def close(self, code: int, reason: str, last: bytes | None = None) -> None:
        if self._over:
            return
        if last is not None:
            self._protocol.send_text(last)
        self._protocol.send_close(code, reason)
        self._flush()
        # Its goodbye is read first: a connection that is closed before is reset, and what was sent may be lost.
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._connection.leaving()


def _handshake(request: Request) -> bytes:
    """The request once more, as the protocol wants to read it: what matters of it."""
    lines = [b"GET / HTTP/1.1"]
    for name, value in request.headers.items():
        if name in HANDSHAKE or name.startswith(b"sec-websocket-"):
            lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join(lines) + b"\r\n\r\n"
