"""Measures one cell: servers on a store that is filled, clients that push, lease and ack, and the processor time."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from time import perf_counter

import msgspec
import psutil
from peers.lean_http import Connection
from peers.penstock_http import HttpClient
from pg.databases import Databases
from pg.served import Served

from penstock.core.commands import Configure, Push
from penstock.core.model import Content, PushItem, QueueOptions
from penstock.store.factory import open_store

from .plan import BATCHES, Cell

FILL_MESSAGES = 10_000
FILL_BYTES = 16 << 20
QUEUES_AT_ONCE = 500
WARM_SECONDS = 0.5
# A window lasts until each client has done this many cycles, but no longer than the maximum.
CYCLES_MIN = 3
WINDOW_SECONDS_MAX = 8.0


class Stores:
    """The stores of one kind, each filled once and used in every round."""

    def __init__(self, kind: str, root: Path, databases: Databases) -> None:
        self.kind, self._root, self._databases = kind, root, databases
        self._urls: dict[Cell, str] = {}
        # Two servers share a database; a file belongs to one server.
        self.servers = 2 if kind == "postgresql" else 1

    def url(self, cell: Cell) -> str:
        if cell not in self._urls:
            self._urls[cell] = self._create(cell)
        return self._urls[cell]

    def _create(self, cell: Cell) -> str:
        name = f"growth-{len(self._urls)}"
        if self.kind == "sqlite":
            (self._root / name).mkdir()
            path = self._root / name / "penstock.db"
            fill(str(path), cell)
            return f"sqlite:///{path}"
        url = self._databases.create(name)
        fill(url, cell)
        self._databases.settle(name)
        return url

    def cpu_seconds(self) -> float:
        """Processor time of the database, whose ended processes count with their parent; 0 for files."""
        if self.kind == "sqlite":
            return 0.0
        postmaster = psutil.Process(self._databases.cluster.process.pid)
        ended = postmaster.cpu_times()
        return used(postmaster) + ended.children_user + ended.children_system + sum(map(used, postmaster.children()))

    def remove(self) -> None:
        for number in range(len(self._urls)):
            if self.kind == "sqlite":
                shutil.rmtree(self._root / f"growth-{number}")
            else:
                self._databases.drop(f"growth-{number}")


def used(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def text(size: int) -> str:
    """Hex digits, so that JSON adds two bytes only."""
    return Random(size).randbytes(size // 2).hex()


def fill(where: str, cell: Cell) -> None:
    """Create the queues and their backlog, through the store and without a journal, which servers turn on."""
    message = PushItem(payload=msgspec.json.encode(text(cell.payload_bytes)), content=Content.JSON)
    at_once = min(FILL_MESSAGES, FILL_BYTES // cell.payload_bytes)
    with closing(open_store(where, durability="relaxed", journal=False)) as store:
        for first in range(0, cell.queues, QUEUES_AT_ONCE):
            names = [f"q{number}" for number in range(first, min(cell.queues, first + QUEUES_AT_ONCE))]
            store.apply([Configure(queue=name, changes={}, create=QueueOptions()) for name in names])
        each = cell.backlog // cell.queues
        for number in range(cell.queues if each else 0):
            for first in range(0, each, at_once):
                messages = [message] * min(at_once, each - first)
                store.apply([Push(queue=f"q{number}", messages=messages)])


@asynccontextmanager
async def serving(stores: Stores, cell: Cell, root: Path) -> AsyncIterator[list[Served]]:
    url = await asyncio.to_thread(stores.url, cell)
    servers = [Served(root, None) for _ in range(stores.servers)]
    try:
        for server in servers:
            server.url = url
            await server.fresh()
        yield servers
    finally:
        for server in servers:
            server.stop()


@dataclass
class Work:
    """Repeats push, lease and ack with every client, each with queues of its own where there are enough."""

    cell: Cell
    batch: int
    acked: int = 0
    cycles: int = 0
    stopping: bool = False

    async def use(self, number: int, server: Served) -> None:
        connection = await Connection.open(server.port)
        queues = range(number % self.cell.queues, self.cell.queues, self.cell.clients)
        messages = [text(self.cell.payload_bytes)] * self.batch
        try:
            for client in cycle([HttpClient(connection, f"q{queue}") for queue in queues]):
                if self.stopping:
                    return
                await client.push(messages)
                popped = await client.pop(self.batch)
                await client.ack(popped)
                self.acked += len(popped)
                self.cycles += 1
        finally:
            connection.close()


async def measure(stores: Stores, cell: Cell, root: Path, seconds: float) -> dict[int, dict[str, float]]:
    """Return microseconds of processor time for each message, and messages per second, by batch."""
    async with serving(stores, cell, root) as servers:
        return {batch: await _window(stores, Work(cell, batch), servers, seconds) for batch in BATCHES}


async def _window(stores: Stores, work: Work, servers: list[Served], seconds: float) -> dict[str, float]:
    def spent() -> tuple[float, float, float, int]:
        return perf_counter(), sum(server.cpu_s() for server in servers), stores.cpu_seconds(), work.acked

    await asyncio.to_thread(os.sync)
    users = [
        asyncio.create_task(work.use(number, server))
        for number, server in zip(range(work.cell.clients), cycle(servers), strict=False)
    ]
    await asyncio.sleep(WARM_SECONDS)
    before, cycles = spent(), work.cycles
    while (lasted := perf_counter() - before[0]) < seconds or (
        work.cycles - cycles < CYCLES_MIN * work.cell.clients and lasted < WINDOW_SECONDS_MAX
    ):
        await asyncio.sleep(0.02)
        if failed := [user for user in users if user.done()]:
            failed[0].result()
    took, server_s, database_s, messages = (now - then for now, then in zip(spent(), before, strict=True))
    work.stopping = True
    await asyncio.gather(*users)
    if not messages:
        raise RuntimeError(f"no message was acked in {took:.1f} s: {work.cell}, batch {work.batch}")
    return {
        "server_us": round(server_s / messages * 1e6, 2),
        "database_us": round(database_s / messages * 1e6, 2),
        "per_s": round(messages / took),
    }
