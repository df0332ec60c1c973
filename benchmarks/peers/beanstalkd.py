"""beanstalkd, with its log synced at every write.

A small asyncio client replaces its Python client, greenstalk, which blocks and would need a thread per client. Both
have the same throughput, because the disk is the limit.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .base import Client, Peer, Worker, handle
from .process import first_line, free_port

TTR_S = 120


class Beanstalkd(Peer):
    key, label = "beanstalkd", "beanstalkd"
    program, source = "beanstalkd", "apt-get install -y --no-install-recommends beanstalkd"
    library, module = "own asyncio client", None
    durability = "-f0 (fsync at every write)"
    loops = True
    batch_form = "loop of single calls (it has no batch)"
    worker_form = "reserve, delete"

    async def launch(self) -> None:
        self.port = free_port()
        self.start(["beanstalkd", "-l", "127.0.0.1", "-p", str(self.port), "-b", str(self.folder), "-f0"])
        await self.until_open(self.port)

    async def create(self, queue: str) -> None:
        """Do nothing: a tube is created by its first use."""

    async def connect(self, queue: str, clients: int) -> list[Client]:
        return [BeanstalkdClient(await self._open(queue)) for _ in range(clients)]

    async def hire(self, queue: str, count: int) -> list[Worker]:
        return [BeanstalkdWorker(await self._open(queue)) for _ in range(count)]

    async def _open(self, queue: str) -> Lines:
        _, protocol = await asyncio.get_running_loop().create_connection(Lines, "127.0.0.1", self.port)
        await protocol.call(b"use %b\r\n" % queue.encode(), b"USING")
        await protocol.call(b"watch %b\r\n" % queue.encode(), b"WATCHING")
        await protocol.call(b"ignore default\r\n", b"WATCHING")
        return protocol

    def version(self) -> str:
        return first_line(["beanstalkd", "-v"]).removeprefix("beanstalkd ")


class Lines(asyncio.Protocol):
    """Sends one command at a time. A response is a line; after RESERVED a body follows, whose size the line states."""

    def __init__(self) -> None:
        self.buffer = b""
        self.waiter: asyncio.Future[tuple[bytes, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        line, end, rest = self.buffer.partition(b"\r\n")
        if not end:
            return
        size = int(line.rsplit(b" ", 1)[1]) + 2 if line.startswith(b"RESERVED") else 0
        if len(rest) >= size and self.waiter and not self.waiter.done():
            self.buffer = rest[size:]
            self.waiter.set_result((line, rest[: max(size - 2, 0)]))

    def connection_lost(self, problem: Exception | None) -> None:
        if self.waiter and not self.waiter.done():
            self.waiter.set_exception(problem or ConnectionResetError("beanstalkd closed the connection"))

    async def call(self, command: bytes, *expected: bytes) -> tuple[bytes, bytes]:
        self.waiter = asyncio.get_running_loop().create_future()
        self.transport.write(command)
        line, body = await self.waiter
        if not line.startswith(expected):
            raise RuntimeError(f"unexpected response from beanstalkd: {line!r}")
        return line, body


class BeanstalkdClient(Client):
    def __init__(self, protocol: Lines) -> None:
        super().__init__()
        self.protocol = protocol

    async def push(self, batch: list[str]) -> None:
        for payload in batch:
            data = payload.encode()
            await self.protocol.call(b"put 100 0 %d %d\r\n%b\r\n" % (TTR_S, len(data), data), b"INSERTED")
            self.pushed += 1

    async def pop(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            line, _ = await self.protocol.call(b"reserve-with-timeout 0\r\n", b"RESERVED", b"TIMED_OUT")
            if line.startswith(b"TIMED_OUT"):
                break
            found.append(line.split(b" ")[1])
        return found

    async def ack(self, popped: list[bytes]) -> None:
        for number in popped:
            await self.protocol.call(b"delete %b\r\n" % number, b"DELETED")
            self.acked += 1

    async def close(self) -> None:
        self.protocol.transport.close()


class BeanstalkdWorker(Worker):
    def __init__(self, protocol: Lines) -> None:
        super().__init__()
        self.protocol = protocol

    async def run(self) -> None:
        while not self.stopping:
            line, body = await self.protocol.call(b"reserve\r\n", b"RESERVED")
            handle(body)
            await self.protocol.call(b"delete %b\r\n" % line.split(b" ")[1], b"DELETED")
            self.acked += 1

    async def close(self) -> None:
        self.protocol.transport.close()
