"""Accepts connections, enforces their limits and timeouts, and closes them gracefully."""

from __future__ import annotations

import asyncio
import socket
import ssl
from email.utils import formatdate

from penstock.server.app import App
from penstock.server.http.connection import HEAD_SECONDS_MAX, ServerConnection

BACKLOG = 4_096
WATCH_SECONDS = 0.5


class HttpServer:
    def __init__(self, app: App, *, connections_max: int) -> None:
        self.answer = app.answer
        self.request_bytes = app.settings.request_bytes
        self._unsent = app.unsent
        self.stopping = False
        # The loop's time at the last check of the connections.
        self.now = asyncio.get_running_loop().time()
        # The Date header, of the same age.
        self.date = formatdate(usegmt=True).encode()
        self._connections_max = connections_max
        self._connections: set[ServerConnection] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    async def start(self, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        patience = None if tls is None else HEAD_SECONDS_MAX
        self._server = await loop.create_server(
            lambda: ServerConnection(self), sock=sock, ssl=tls, ssl_handshake_timeout=patience, backlog=BACKLOG
        )
        self._watching = loop.create_task(self._watch())

    async def stop(self, grace_seconds: float, force_stop: asyncio.Event) -> None:
        """Accept no more connections; finish open requests until the grace time ends or `force_stop` is set."""
        self.stopping = True
        self._server.close()
        for connection in list(self._connections):
            connection.end()
        ended = [asyncio.create_task(event.wait()) for event in (self._empty, force_stop)]
        await asyncio.wait(ended, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(connection.abort() for connection in self._connections))
        for task in (*ended, self._watching):
            task.cancel()
        await asyncio.gather(*ended, self._watching, return_exceptions=True)

    def admit(self, connection: ServerConnection) -> bool:
        self._connections.add(connection)
        self._empty.clear()
        return len(self._connections) <= self._connections_max

    def forget(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self.now = loop.time()
            self.date = formatdate(usegmt=True).encode()
            for connection in list(self._connections):
                connection.check(self.now)
            self._unsent.trim()
