"""Penstock inside any ASGI server, or mounted in another application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import Any

from penstock.server.errors import Disconnected
from penstock.server.http import Request, Response

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class AsgiExchange:
    """What is known of the connection is what the server tells: whether a client has gone, and no more."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._ended = False

    def request(self, body_max: int) -> Request:
        headers = dict(reversed(self._scope["headers"]))
        return Request(self, self._scope["method"], self._raw_path(), self._scope["query_string"], headers, body_max)

    def _raw_path(self) -> bytes:
        """As it was sent, without the prefix under which the application is mounted."""
        raw_path: bytes = self._scope.get("raw_path") or self._scope["path"].encode()
        prefix: bytes = self._scope.get("root_path", "").rstrip("/").encode()
        if prefix and raw_path.startswith(prefix) and raw_path[len(prefix) : len(prefix) + 1] in (b"/", b""):
            return raw_path[len(prefix) :]
        return raw_path

    @property
    def gone(self) -> bool:
        """Known of uvicorn; others raise when something is sent."""
        return bool(getattr(getattr(self._receive, "__self__", None), "disconnected", False))

    @property
    def hung_up(self) -> bool:
        return self.gone

    def leaving(self) -> asyncio.Future[None]:
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
        if response.status != 204:
            headers.append((b"content-type", response.content_type))
            if response.stream is None:
                headers.append((b"content-length", str(len(response.body)).encode()))
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
        if response.stream is None or request.method == "HEAD":
            body = b"" if request.method == "HEAD" else response.body
            await self._send({"type": "http.response.body", "body": body})
            return
        async with aclosing(response.stream) as chunks:
            async for chunk in chunks:
                if self.gone:
                    raise Disconnected
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def sent(self) -> bool:
        return not self.gone
