"""A pool of keep-alive connections to a server for coroutines; `connection_threads` has the same for threads.

Why not a library: for small JSON requests over a few kept-alive connections, this client needs 77 to 152 µs of CPU
time per request (five runs on a busy machine). aiohttp needs 1.4 to 3.0 times that, http.client 1.3 to 2.6, urllib3
3 to 4, niquests 7 to 15, httpx 8 (sync) and 12 to 28 (async). It also keeps the base install small.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import cast

from penstock.client.http11 import BadResponse, HttpResponse, ResponseParser
from penstock.client.transport_errors import IDLE_SECONDS_MAX, Address, Interrupt, RequestFailed


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._reader = ResponseParser()
        self._waiting: asyncio.Future[HttpResponse] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, address: Address, seconds: float) -> Connection:
        loop = asyncio.get_running_loop()
        name = address.host if address.tls else None
        try:
            async with asyncio.timeout(seconds):
                _, connection = await loop.create_connection(
                    cls, address.host, address.port, ssl=address.tls, server_hostname=name
                )
        except TimeoutError:
            raise RequestFailed(f"no connection within {seconds:g} s", sent=False) from None
        except OSError as error:
            raise RequestFailed(f"no connection: {error}", sent=False) from None
        return connection

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and not self._reader.begun

    async def request(self, request: bytes, seconds: float) -> HttpResponse:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise RequestFailed("the connection was closed", sent=False)
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[HttpResponse] = loop.create_future()
        self._waiting = waiting
        timer = loop.call_later(seconds, self._fail, f"no answer within {seconds:g} s")
        transport.write(request)
        try:
            answer = await waiting
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            timer.cancel()
            self._waiting = None
        if transport.get_write_buffer_size():
            transport.abort()  # The server refused the request before all of it was sent; drop the rest.
        elif not self._reader.keep_alive:
            transport.close()
        return answer

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def release(self) -> None:
        """Drop the transport: it cannot be closed without its loop, but its socket closes when it is collected."""
        self._transport = None

    def _fail(self, reason: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(RequestFailed(reason, sent=True))
        self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not instances of it.

    def data_received(self, data: bytes) -> None:
        try:
            answer = self._reader.feed(data)
        except BadResponse as error:
            self._fail(str(error))
            return
        if answer is not None:
            self._deliver(answer)

    def _deliver(self, answer: HttpResponse) -> None:
        if self._waiting is None:
            self.abort()  # A response without a request.
        elif not self._waiting.done():
            self._waiting.set_result(answer)

    def eof_received(self) -> None:
        answer = self._reader.end()
        if answer is not None:
            self._deliver(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(
                RequestFailed(f"the connection was cut{f': {error}' if error else ''}", sent=True)
            )


class Connections:
    """A pool of open connections; the last used is reused first."""

    def __init__(self, address: Address, limit: int, connect_timeout: float) -> None:
        self._address = address
        self._limit = limit
        self._connect_timeout = connect_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()
        self._places = asyncio.Semaphore(limit)
        self.closed = False

    async def request(self, request: bytes, seconds: float, interrupt: Interrupt | None = None) -> HttpResponse:
        """Send a request and return the response, within `seconds` in total."""
        self._use_this_loop()
        places = self._places
        try:
            async with asyncio.timeout(seconds if places.locked() else None):
                await places.acquire()
        except TimeoutError:
            raise RequestFailed("all connections are busy", sent=False) from None
        try:
            if self.closed:
                raise RequestFailed("the client is closed", sent=False)
            connection = self._reuse() or await Connection.open(self._address, min(seconds, self._connect_timeout))
            self._busy.add(connection)
            if interrupt is not None:
                interrupt.arm(connection.abort)
            try:
                answer = await connection.request(request, seconds)
            finally:
                self._busy.discard(connection)
                if interrupt is not None:
                    interrupt.arm(None)
                if connection.usable and not self.closed:
                    connection.idle_since = time.monotonic()
                    self._idle.append(connection)
            return answer
        finally:
            places.release()

    def _use_this_loop(self) -> None:
        """Start over in a new event loop (a second `asyncio.run`): the old loop's connections cannot be used."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            for connection in (*self._idle, *self._busy):
                connection.release()
            self._loop, self._places = loop, asyncio.Semaphore(self._limit)
            self._idle.clear()
            self._busy.clear()

    def _reuse(self) -> Connection | None:
        oldest = time.monotonic() - IDLE_SECONDS_MAX
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.popleft().close()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def close(self) -> None:
        self.closed = True
        self._use_this_loop()
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # Transports report their end on the loop's next iteration.
