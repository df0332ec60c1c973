"""uvicorn's HTTP/1.1 protocol with the limits it lacks: on the head of a request, and on how long one may dawdle."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 64 << 10
HEADERS_MAX = 100
HEAD_SECONDS_MAX = 15.0
BODY_BYTES_PER_SECOND_MIN = 512
BODY_SECONDS_GRACE = 30.0


class LimitedProtocol(HttpToolsProtocol):
    """Drops a client whose request head does not arrive in time, or whose body trickles."""

    _watch: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _body_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch = self.loop.call_later(HEAD_SECONDS_MAX, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._body_bytes = 0
        if self._watch is None:
            self._watch = self.loop.call_later(HEAD_SECONDS_MAX, self._too_slow)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if len(self.headers) >= HEADERS_MAX:
            self._refuse()
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unwatch()
        self._watch = self.loop.call_later(BODY_SECONDS_GRACE, self._check_body)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unwatch()
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse()

    def _refuse(self) -> None:
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
        self.transport.close()

    def _check_body(self) -> None:
        if self._body_bytes < BODY_BYTES_PER_SECOND_MIN * BODY_SECONDS_GRACE:
            self._too_slow()
        else:
            self._body_bytes = 0
            self._watch = self.loop.call_later(BODY_SECONDS_GRACE, self._check_body)

    def _too_slow(self) -> None:
        self.transport.abort()

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
