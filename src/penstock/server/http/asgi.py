"""Exchanges for running in any ASGI server or mounted in another application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from penstock.server.http.messages import Request, Response
from penstock.server.http.websocket import NO_WEBSOCKET, SUBPROTOCOL, Socket, TooSlow, offered
from penstock.wire.http_errors import Disconnected

PART_BYTES = 64 << 10

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class AsgiExchange:
    """A request of an ASGI server, which reports only that a client has disconnected."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._ended = False

    def request(self, body_max: int) -> Request:
        headers = dict(reversed(self._scope["headers"]))
        return Request(self, self._scope["method"], self._raw_path(), self._scope["query_string"], headers, body_max)

    def _raw_path(self) -> bytes:
        """Return the path as sent, without the prefix under which the application is mounted."""
        raw_path: bytes = self._scope.get("raw_path") or self._scope["path"].encode()
        prefix: bytes = self._scope.get("root_path", "").rstrip("/").encode()
        if prefix and raw_path.startswith(prefix) and raw_path[len(prefix) : len(prefix) + 1] in (b"/", b""):
            return raw_path[len(prefix) :]
        return raw_path

    @property
    def client(self) -> str | None:
        address = self._scope.get("client")
        return None if address is None else str(address[0])

    @property
    def is_closed(self) -> bool:
        """True if uvicorn reports a disconnect; other servers raise on the next send."""
        return bool(getattr(getattr(self._receive, "__self__", None), "disconnected", False))

    @property
    def peer_closed(self) -> bool:
        return self.is_closed

    @property
    def half_closed(self) -> bool:
        return False

    def wait_closed(self) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._until_disconnect())

    async def _until_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def read(self) -> bytes:
        while not self._ended:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise Disconnected
            self._ended = not event.get("more_body", False)
            if body := event.get("body", b""):
                return bytes(body)
        return b""

    async def send(self, request: Request, response: Response) -> None:
        headers = [(b"x-request-id", request.request_id), *response.headers]
        if response.status not in (204, 304):
            headers.append((b"content-type", response.content_type))
            if response.stream is None:
                headers.append((b"content-length", str(len(response.body)).encode()))
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
        if response.stream is None or request.method == "HEAD":
            body = b"" if request.method == "HEAD" else response.body
            # Send in parts, so that the server can apply backpressure for a client that does not read.
            for at in range(0, len(body), PART_BYTES):
                await self._send({"type": "http.response.body", "body": body[at : at + PART_BYTES], "more_body": True})
            await self._send({"type": "http.response.body", "body": b""})
            return
        async with aclosing(response.stream) as chunks:
            async for chunk in chunks:
                if self.is_closed:
                    raise Disconnected
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def upgrade(self, request: Request, slow_seconds: float) -> Socket:
        raise NO_WEBSOCKET

    async def sent(self) -> bool:
        return not self.is_closed


class AsgiSocketExchange(AsgiExchange):
    """A WebSocket request; until it is accepted, it can be rejected like any request."""

    _upgraded = False

    def request(self, body_max: int) -> Request:
        headers = dict(reversed(self._scope["headers"]))
        return Request(self, "GET", self._raw_path(), self._scope["query_string"], headers, body_max)

    async def _until_disconnect(self) -> None:
        while (await self._receive())["type"] != "websocket.disconnect":
            pass

    async def read(self) -> bytes:
        return b""

    async def upgrade(self, request: Request, slow_seconds: float) -> Socket:
        if (await self._receive())["type"] != "websocket.connect":
            raise Disconnected
        headers = [(b"x-request-id", request.request_id)]
        chosen = SUBPROTOCOL if SUBPROTOCOL.encode() in offered(request) else None
        await self._send({"type": "websocket.accept", "subprotocol": chosen, "headers": headers})
        self._upgraded = True
        return AsgiSocket(self._send, slow_seconds)

    async def send(self, request: Request, response: Response) -> None:
        if self._upgraded:
            return
        if "websocket.http.response" not in self._scope.get("extensions", {}):
            await self._send({"type": "websocket.close", "code": 1008, "reason": f"refused with {response.status}"})
            return
        headers = [(b"x-request-id", request.request_id), *response.headers, (b"content-type", response.content_type)]
        await self._send({"type": "websocket.http.response.start", "status": response.status, "headers": headers})
        await self._send({"type": "websocket.http.response.body", "body": response.body})


class AsgiSocket:
    """A WebSocket of an ASGI server, which sends its own pings."""

    def __init__(self, send: Send, slow_seconds: float) -> None:
        self._send = send
        self._slow_seconds = slow_seconds

    async def send(self, texts: Sequence[bytes]) -> None:
        try:
            async with asyncio.timeout(self._slow_seconds):
                for text in texts:
                    await self._send({"type": "websocket.send", "text": text.decode()})
        except TimeoutError:
            raise TooSlow from None
        except OSError:
            raise Disconnected from None

    def ping(self) -> bool:
        return True

    async def close(self, code: int, reason: str, last: bytes | None = None) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._slow_seconds):
                if last is not None:
                    await self._send({"type": "websocket.send", "text": last.decode()})
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
