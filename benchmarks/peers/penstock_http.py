"""Penstock over plain HTTP: the queue API with default settings, and one keep-alive connection per client."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from .base import READY_S, Client, Peer
from .lean_http import Connection, Refused
from .process import first_line, free_port

PROGRAM = str(Path(sys.executable).parent / "penstock")
# Removed from the environment, because settings of the caller must not change what is measured.
FOREIGN = ("PENSTOCK_", "AUTH_TOKEN", "DB_PATH", "GET_LIMIT_DEFAULT", "HOST", "LISTEN_ADDR", "PORT")


class Leased(msgspec.Struct):
    id: int | str
    token: str
    payload: str


class Polled(msgspec.Struct):
    messages: list[Leased]


class Item(msgspec.Struct):
    id: int | str
    token: str


encode = msgspec.json.Encoder().encode
read_polled = msgspec.json.Decoder(Polled).decode


class PenstockServer(Peer):
    program, module = PROGRAM, None
    durability = "full (the default): a response means on disk"

    @classmethod
    def missing(cls) -> str | None:
        output = first_line([PROGRAM, "serve", "--help"])
        return None if output.startswith("Usage") else f"`penstock serve` does not run: {output}"

    async def launch(self) -> None:
        self.port = free_port()
        command = [PROGRAM, "serve", "--port", str(self.port), "--data", str(self.folder / "data")]
        env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        self.start(command, env)
        await self.until_ready()

    async def until_ready(self) -> None:
        await self.until_open(self.port)
        admin = await Connection.open(self.port)
        for _ in range(int(READY_S / 0.05)):
            try:
                await admin.request(b"GET", b"/readyz")
                break
            except Refused:
                await asyncio.sleep(0.05)
        admin.close()

    async def create(self, queue: str) -> None:
        admin = await Connection.open(self.port)
        await admin.request(b"POST", b"/queues", encode({"name": queue}))
        admin.close()

    def version(self) -> str:
        return first_line([PROGRAM, "--version"]).split()[-1]


class PenstockHttp(PenstockServer):
    key, label = "penstock", "Penstock, HTTP"
    library = "lean asyncio HTTP client"
    batch_form = 'one request: {"messages": […]}, poll?batch=n, ack {"items": […]}'

    async def connect(self, queue: str, clients: int) -> list[Client]:
        return [HttpClient(await Connection.open(self.port), queue) for _ in range(clients)]


class HttpClient(Client):
    def __init__(self, connection: Connection, queue: str) -> None:
        super().__init__()
        self.connection = connection
        base = f"/queues/{queue}".encode()
        self.messages, self.poll, self.acks = base + b"/messages", base + b"/poll", base + b"/ack"

    async def push(self, batch: list[str]) -> None:
        if len(batch) == 1:
            body = encode({"payload": batch[0]})
        else:
            body = encode({"messages": [{"payload": payload} for payload in batch]})
        await self.connection.request(b"POST", self.messages, body)
        self.pushed += len(batch)

    async def pop(self, count: int, wait_ms: int = 0) -> list[Leased]:
        target = b"%b?batch=%d&wait_ms=%d" % (self.poll, count, wait_ms)
        return read_polled(await self.connection.request(b"POST", target)).messages

    async def ack(self, popped: list[Leased]) -> None:
        items = [Item(message.id, message.token) for message in popped]
        answer = await self.connection.request(b"POST", self.acks, encode({"items": items}))
        if b'"stale"' in answer or b'"unknown"' in answer:
            raise RuntimeError(f"an ack was refused: {answer[:300]!r}")
        self.acked += len(popped)

    async def close(self) -> None:
        self.connection.close()
