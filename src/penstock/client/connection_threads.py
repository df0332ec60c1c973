"""A pool of keep-alive connections to a server for threads; `connection_async` has the same for coroutines."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice

from penstock.client._concurrency_threads import OneShotEvent
from penstock.client.http11 import BadResponse, HttpResponse, ResponseParser
from penstock.client.transport_errors import IDLE_SECONDS_MAX, Address, Interrupt, RequestFailed
from penstock.core import fork_safety

READ_BYTES = 256 << 10
# A connection used more recently is assumed to be open.
LOOK_SECONDS = 0.5


class Connection:
    """A connection over a plain socket that carries one request at a time."""

    def __init__(self, link: socket.socket) -> None:
        self.idle_since = 0.0
        self._link = link
        self._reader = ResponseParser()
        self._open = True

    @classmethod
    def open(cls, address: Address, seconds: float) -> Connection:
        try:
            link = socket.create_connection((address.host, address.port), timeout=seconds)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is not None:
                link = address.tls.wrap_socket(link, server_hostname=address.host)
        except TimeoutError:
            raise RequestFailed(f"no connection within {seconds:g} s", sent=False) from None
        except OSError as error:
            raise RequestFailed(f"no connection: {error}", sent=False) from None
        return cls(link)

    @property
    def usable(self) -> bool:
        return self._open and not self._reader.begun

    def ended(self) -> bool:
        """Return True if the server closed the connection: there is something to read, data or end of file."""
        try:
            self._link.settimeout(0)
            socket.socket.recv(self._link, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def request(self, request: bytes, seconds: float) -> HttpResponse:
        deadline = time.monotonic() + seconds
        try:
            self._link.settimeout(seconds)
            taken = self._send(request)
            answer = self._receive(deadline)
        except TimeoutError:
            self.close()
            raise RequestFailed(f"no answer within {seconds:g} s", sent=True) from None
        except (OSError, BadResponse) as error:
            self.close()
            raise RequestFailed(f"the connection was cut: {error}", sent=True) from None
        except BaseException:
            self.close()
            raise
        if not (taken and self._reader.keep_alive):
            self.close()
        return answer

    def stream(self, request: bytes, seconds: float) -> Iterator[HttpResponse]:
        """Yield the response in parts as they arrive; `seconds` limits the wait for each."""
        self._reader = ResponseParser(in_parts=True)
        try:
            self._link.settimeout(seconds)
            self._send(request)
            answer = None
            while answer is None:
                data = self._link.recv(READ_BYTES)
                answer = self._reader.feed(data) if data else self._reader.end()
                part = answer or self._reader.take_part()
                if part is not None:
                    yield part
                elif not data:
                    raise ConnectionError("the server closed the connection")
        except TimeoutError:
            raise RequestFailed(f"no answer within {seconds:g} s", sent=True) from None
        except (OSError, BadResponse) as error:
            raise RequestFailed(f"the connection was cut: {error}", sent=True) from None
        finally:
            self.close()

    def _send(self, request: bytes) -> bool:
        """Return True if the server took the whole request.

        A server that refuses a large request may respond and close the connection before.
        """
        try:
            self._link.sendall(request)
        except (ConnectionResetError, BrokenPipeError):
            return False
        return True

    def _receive(self, deadline: float) -> HttpResponse:
        while True:
            data = self._link.recv(READ_BYTES)
            answer = self._reader.feed(data) if data else self._reader.end()
            if answer is not None:
                return answer
            if not data:
                raise ConnectionError("the server closed the connection")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._link.settimeout(left)

    def abort(self) -> None:
        """Make a thread that waits for the response fail at once. Called from another thread."""
        self._open = False
        with contextlib.suppress(OSError):
            # Not the shutdown of TLS, which would remove its state under the thread that reads.
            socket.socket.shutdown(self._link, socket.SHUT_RDWR)

    def close(self) -> None:
        self._open = False
        self._link.close()


class ConnectionSlots:
    """Limits the number of concurrent requests.

    Not a `threading.Semaphore`, which an interrupt can leave locked forever.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._mutex = threading.Lock()
        self._inside: set[OneShotEvent] = set()
        self._waiting: dict[OneShotEvent, None] = {}

    def enter(self, mine: OneShotEvent, seconds: float) -> bool:
        """Wait for a slot; return False after the timeout. Call `leave` afterwards in either case."""
        deadline = time.monotonic() + seconds
        while True:
            with self._mutex:
                if len(self._inside) < self._limit:
                    self._inside.add(mine)
                    self._waiting.pop(mine, None)
                    return True
                self._waiting[mine] = None
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            mine.wait(left)

    def leave(self, mine: OneShotEvent) -> None:
        """Free the slot. Safe to call again."""
        with self._mutex:
            self._inside.discard(mine)
            self._waiting.pop(mine, None)
            if self._waiting:
                for waiting in islice(self._waiting, self._limit - len(self._inside)):
                    waiting.set()


class Connections:
    """A pool of open connections; the last used is reused first."""

    def __init__(self, address: Address, limit: int, connect_timeout: float) -> None:
        self._address = address
        self._limit = limit
        self._connect_timeout = connect_timeout
        self.closed = False
        self.after_fork_in_child()
        fork_safety.register_reset(self)

    def request(self, request: bytes, seconds: float, interrupt: Interrupt | None = None) -> HttpResponse:
        """Send a request and return the response, within `seconds` in total."""
        place = OneShotEvent()
        try:
            if not self._places.enter(place, seconds):
                raise RequestFailed("all connections are busy", sent=False)
            answer = self._request(request, seconds, interrupt)
            self._places.leave(place)
            return answer
        except BaseException:
            self._places.leave(place)
            raise

    def _request(self, request: bytes, seconds: float, interrupt: Interrupt | None) -> HttpResponse:
        if self.closed:
            raise RequestFailed("the client is closed", sent=False)
        connection = self._reuse() or Connection.open(self._address, min(seconds, self._connect_timeout))
        try:
            self._busy.add(connection)
            if interrupt is not None:
                interrupt.arm(connection.abort)
            answer = connection.request(request, seconds)
            if interrupt is not None:
                interrupt.arm(None)
            self._busy.discard(connection)
            self._put_back(connection)
            return answer
        except BaseException:
            if interrupt is not None:
                interrupt.arm(None)
            self._busy.discard(connection)
            connection.close()
            raise

    def stream(self, request: bytes, seconds: float) -> Iterator[HttpResponse]:
        """Send a request on a connection of its own, and yield the response in parts as they arrive."""
        yield from Connection.open(self._address, self._connect_timeout).stream(request, seconds)

    def _put_back(self, connection: Connection) -> None:
        if connection.usable and not self.closed:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    def _reuse(self) -> Connection | None:
        now = time.monotonic()
        # The ends of a deque are thread-safe; another thread may take the last one between the check and the pop.
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                idle_seconds = now - connection.idle_since
                if not connection.usable:
                    continue  # The thread that put it back was interrupted at that moment.
                if idle_seconds < LOOK_SECONDS or (idle_seconds < IDLE_SECONDS_MAX and not connection.ended()):
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

    def after_fork_in_child(self) -> None:
        """Drop the sockets without closing them: the parent goes on using them."""
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()
        self._places = ConnectionSlots(self._limit)
