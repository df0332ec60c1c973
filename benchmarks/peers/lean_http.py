"""A minimal HTTP/1.1 client: one connection, one request at a time, responses with Content-Length.

It does so little that the load generator is not the limit. It supports neither chunks nor redirects.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
END = b"\r\n\r\n"


class Refused(Exception):
    """Raised for a response with a status of 400 or more."""


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.buffer = b""
        self.waiter: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, port: int) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        connection.host = f"127.0.0.1:{port}".encode()
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.host = b""

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        end = self.buffer.find(END)
        if end < 0:
            return
        length = LENGTH.search(self.buffer, 0, end)
        size = int(length[1]) if length else 0
        if len(self.buffer) < end + 4 + size or self.waiter is None or self.waiter.done():
            return
        status, body = int(self.buffer[9:12]), self.buffer[end + 4 : end + 4 + size]
        if not length and status != 204:
            self.waiter.set_exception(Refused(f"{status} without Content-Length"))
        elif status >= 400:
            self.waiter.set_exception(Refused(f"{status}: {body[:300].decode(errors='replace')}"))
        else:
            self.waiter.set_result(body)
        self.buffer = self.buffer[end + 4 + size :]

    def connection_lost(self, problem: Exception | None) -> None:
        if self.waiter and not self.waiter.done():
            self.waiter.set_exception(problem or ConnectionResetError("the server closed the connection"))

    def request(self, method: bytes, target: bytes, body: bytes = b"") -> asyncio.Future[bytes]:
        """Send the request now, and return a future of the response's body."""
        self.waiter = asyncio.get_running_loop().create_future()
        self.transport.write(
            b"%b %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (method, target, self.host, len(body), body)
        )
        return self.waiter

    def close(self) -> None:
        self.transport.close()
