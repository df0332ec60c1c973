"""Support for the SDK tests: one suite for sync and async, and a proxy that loses, forges and counts responses."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import penstock
from penstock import aio
from penstock.client.types import Page

PATIENCE = 30.0
DIRECT = ("queue", "stream", "transact", "worker", "item", "stop")


_threads = ThreadPoolExecutor(128, "test-caller")


async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
    """Run a call as asyncio.to_thread does, with enough threads for all concurrent calls."""
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: call(*args))


class Call:
    """A call of the sync client that can be awaited, iterated over or entered like a call of the async client."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def __await__(self) -> Any:
        return in_thread(lambda: wrap(self._call())).__await__()

    async def __aiter__(self) -> AsyncIterator[Any]:
        iterator = self._call()
        try:
            while found := [each for each in [await in_thread(next, iterator, None)] if each is not None]:
                yield wrap(found.pop())  # Do not keep a reference to a message that the caller has dropped.
        finally:
            await in_thread(iterator.close)


class Threaded:
    """Wraps a sync object as if it were async, and runs each call in a thread."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        direct = name in DIRECT or (isinstance(self.target, penstock.Transaction) and name != "commit")
        if not callable(value) or isinstance(value, type):
            return value
        if direct:
            return lambda *args, **kwargs: wrap(value(*map(unwrap, args), **kwargs))
        return lambda *args, **kwargs: Call(lambda: value(*map(unwrap, args), **kwargs))

    async def __aenter__(self) -> Any:
        return wrap(await in_thread(self.target.__enter__))

    async def __aexit__(self, *error: Any) -> None:
        await in_thread(self.target.__exit__, *error)


KINDS = (penstock.Client, penstock.Queue, penstock.LeasedMessage, penstock.Transaction, penstock.Stream)


def wrap(value: Any) -> Any:
    if isinstance(value, KINDS):
        return Threaded(value)
    if type(value) is list:
        return [wrap(each) for each in value]
    if isinstance(value, Page):
        return value
    return value


def unwrap(value: Any) -> Any:
    if isinstance(value, Threaded):
        return value.target
    if type(value) is list:
        return [unwrap(each) for each in value]
    return value


class Sdk:
    """One flavour of the SDK, sync or async: how to connect, and how to write a handler."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def connect(self, url: str, **settings: Any) -> Any:
        if self.kind == "async":
            return aio.connect(url, **settings)
        return Threaded(penstock.connect(url, **settings))

    def handler(self, work: Callable[[Any], Any]) -> Any:
        """Make a worker's handler from a coroutine function that takes a message."""
        if self.kind == "async":
            return work
        return lambda message: asyncio.run(work(Threaded(message)))

    async def run(self, worker: Any) -> None:
        if self.kind == "async":
            await worker.run()
        else:
            await in_thread(worker.run)


class Proxy:
    """A proxy between a client and a server that records each request and can lose or forge its response."""

    def __init__(self, port: int) -> None:
        self.requests: list[str] = []
        self._target = port
        self._tricks: list[tuple[str, bytes | None]] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lose_answer(self, path: str) -> None:
        """Forward the next request to this path, but drop its response."""
        self._tricks.append((path, None))

    def answer(self, path: str, status: str, *headers: str, body: str = "") -> None:
        """Respond to the next request to this path without forwarding it."""
        head = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
        self._tricks.append((path, ("\r\n".join(head) + "\r\n\r\n" + body).encode()))

    def count(self, path: str) -> int:
        return sum(path in request for request in self.requests)

    def cut(self) -> None:
        """Close every connection."""
        with self._lock:
            for link in self._sockets:
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            server = socket.create_connection(("127.0.0.1", self._target))
            with server:
                with self._lock:
                    self._sockets |= {client, server}
                self._relay(client, server)

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        while request := _read_http(client):
            line = request.partition(b" HTTP/")[0].decode()
            self.requests.append(line)
            with self._lock:
                trick = next((each for each in self._tricks if each[0] in line), None)
                if trick is not None:
                    self._tricks.remove(trick)
            if trick is not None and trick[1] is not None:
                client.sendall(trick[1])
                continue
            server.sendall(request)
            answer = _read_http(server, gone=client)
            if not answer or trick is not None:
                return
            client.sendall(answer)


def _read_http(link: socket.socket, gone: socket.socket | None = None) -> bytes:
    """Read one whole request or response. Return nothing at the end, or as soon as the socket `gone` is closed."""
    data = b""
    while True:
        if gone is not None:
            readable, _, _ = select.select([link, gone], [], [])
            if gone in readable and link not in readable:
                return b""
        part = link.recv(1 << 20)
        if not part:
            return b""
        data += part
        head, end, body = data.partition(b"\r\n\r\n")
        if end:
            length = 0
            for header in head.split(b"\r\n")[1:]:
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if len(body) >= length:
                return data


@contextlib.contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    between = Proxy(port)
    try:
        yield between
    finally:
        between.close()
