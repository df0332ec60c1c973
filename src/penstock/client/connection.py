"""Connections to a server, kept open and shared: `Connections` for coroutines, `ThreadConnections` for threads.

Why not a library: for our pattern MEASURED.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from msgspec import Struct

from penstock import forks
from penstock.client.http1 import Answer, AnswerReader, BadAnswer

READ_BYTES = 256 << 10
IDLE_SECONDS_MAX = 60.0
"""A server closes a connection that idles for 75 s; one used just then would fail."""


class Address(Struct, frozen=True):
    host: str
    port: int
    tls: ssl.SSLContext | None = None


class NoAnswer(Exception):
    """Refused, cut or too late. `sent`: the server may have done what was asked."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class Interrupt:
    """Ends a request from outside, by closing its connection: the server then knows that nobody listens."""

    def __init__(self) -> None:
        self.triggered = False
        self._abort: Callable[[], None] | None = None

    def trigger(self) -> None:
        self.triggered = True
        abort = self._abort
        if abort is not None:
            abort()

    def arm(self, abort: Callable[[], None] | None) -> None:
        self._abort = abort
        if self.triggered and abort is not None:
            abort()


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._reader = AnswerReader()
        self._waiting: asyncio.Future[Answer] | None = None
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
            raise NoAnswer(f"no connection within {seconds:g} s", sent=False) from None
        except OSError as error:
            raise NoAnswer(f"no connection: {error}", sent=False) from None
        return connection

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and not self._reader.begun

    async def ask(self, request: bytes, seconds: float) -> Answer:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise NoAnswer("the connection was closed", sent=False)
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Answer] = loop.create_future()
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
        if not self._reader.keep_alive:
            transport.close()
        return answer

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _fail(self, reason: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(NoAnswer(reason, sent=True))
        self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not instances of it.

    def data_received(self, data: bytes) -> None:
        try:
            answer = self._reader.feed(data)
        except BadAnswer as error:
            self._fail(str(error))
            return
        if answer is not None:
            self._deliver(answer)

    def _deliver(self, answer: Answer) -> None:
        if self._waiting is None:
            self.abort()  # An answer that nobody asked for.
        elif not self._waiting.done():
            self._waiting.set_result(answer)

    def eof_received(self) -> None:
        answer = self._reader.end()
        if answer is not None:
            self._deliver(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(NoAnswer(f"the connection was cut{f': {error}' if error else ''}", sent=True))


class Connections:
    """Open connections for reuse, the last used first."""

    def __init__(self, address: Address, limit: int) -> None:
        self._address = address
        self._idle: deque[Connection] = deque()
        self._places = asyncio.Semaphore(limit)
        self._busy: set[Connection] = set()
        self.closed = False

    async def ask(self, request: bytes, seconds: float, interrupt: Interrupt | None = None) -> Answer:
        """Send a request and wait for its answer, `seconds` for all of it."""
        async with self._places:
            if self.closed:
                raise NoAnswer("the client is closed", sent=False)
            connection = self._reuse() or await Connection.open(self._address, seconds)
            self._busy.add(connection)
            if interrupt is not None:
                interrupt.arm(connection.abort)
            try:
                answer = await connection.ask(request, seconds)
            finally:
                self._busy.discard(connection)
                if interrupt is not None:
                    interrupt.arm(None)
                if connection.usable and not self.closed:
                    connection.idle_since = time.monotonic()
                    self._idle.append(connection)
            return answer

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
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # Transports tell of their end on the loop's next round.


class ThreadConnection:
    """One request at a time, over a plain socket."""

    def __init__(self, link: socket.socket) -> None:
        self.idle_since = 0.0
        self._link = link
        self._reader = AnswerReader()
        self._open = True

    @classmethod
    def open(cls, address: Address, seconds: float) -> ThreadConnection:
        try:
            link = socket.create_connection((address.host, address.port), timeout=seconds)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is not None:
                link = address.tls.wrap_socket(link, server_hostname=address.host)
        except TimeoutError:
            raise NoAnswer(f"no connection within {seconds:g} s", sent=False) from None
        except OSError as error:
            raise NoAnswer(f"no connection: {error}", sent=False) from None
        return cls(link)

    @property
    def usable(self) -> bool:
        return self._open and not self._reader.begun

    def ask(self, request: bytes, seconds: float) -> Answer:
        deadline = time.monotonic() + seconds
        try:
            self._link.settimeout(seconds)
            self._link.sendall(request)
            answer = self._receive(deadline)
        except TimeoutError:
            self.close()
            raise NoAnswer(f"no answer within {seconds:g} s", sent=True) from None
        except (OSError, BadAnswer) as error:
            self.close()
            raise NoAnswer(f"the connection was cut: {error}", sent=True) from None
        except BaseException:
            self.close()
            raise
        if not self._reader.keep_alive:
            self.close()
        return answer

    def _receive(self, deadline: float) -> Answer:
        while True:
            data = self._link.recv(READ_BYTES)
            answer = self._reader.feed(data) if data else self._reader.end()
            if answer is not None:
                return answer
            if not data:
                raise ConnectionError("the other side has closed it")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._link.settimeout(left)

    def abort(self) -> None:
        """From another thread: whoever waits here is told at once."""
        self._open = False
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._open = False
        self._link.close()


class ThreadConnections:
    """Open connections for reuse, the last used first."""

    def __init__(self, address: Address, limit: int) -> None:
        self._address = address
        self._limit = limit
        self.closed = False
        self.after_fork_in_child()
        forks.register(self)

    def ask(self, request: bytes, seconds: float, interrupt: Interrupt | None = None) -> Answer:
        """Send a request and wait for its answer, `seconds` for all of it."""
        if not self._places.acquire(timeout=seconds):
            raise NoAnswer(f"{self._limit} requests are on their way already", sent=False)
        try:
            if self.closed:
                raise NoAnswer("the client is closed", sent=False)
            connection = self._reuse() or ThreadConnection.open(self._address, seconds)
            self._busy.add(connection)
            if interrupt is not None:
                interrupt.arm(connection.abort)
            try:
                return connection.ask(request, seconds)
            finally:
                self._busy.discard(connection)
                if interrupt is not None:
                    interrupt.arm(None)
                self._put_back(connection)
        finally:
            self._places.release()

    def _put_back(self, connection: ThreadConnection) -> None:
        if connection.usable and not self.closed:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    def _reuse(self) -> ThreadConnection | None:
        oldest = time.monotonic() - IDLE_SECONDS_MAX
        # A deque's ends are safe for threads; another may take the last one between the look and the pop.
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.idle_since >= oldest:
                    return connection
                connection.close()
        return None

    def close(self) -> None:
        self.closed = True
        for connection in list(self._busy):
            connection.abort()
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        """The parent goes on using the sockets; here they are only let go."""
        self._pid = os.getpid()
        self._idle: deque[ThreadConnection] = deque()
        self._busy: set[ThreadConnection] = set()
        self._places = threading.BoundedSemaphore(self._limit)
