"""Measures Penstock's server on PostgreSQL over plain HTTP with a journal: full cycles per second, and memory.

Memory is the proportional set size of the server and of all database processes, in which shared pages, such as the
database's buffers, count once.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from lib.scenarios import say
from peers.penstock_http import FOREIGN, PROGRAM, HttpClient, PenstockHttp
from peers.process import free_port

from .base import PAYLOAD_BYTES, text
from .cells import rate
from .databases import Databases
from .plan import Plan

Row = dict[str, Any]
MEMORY_MB_MOST = 512
FILL_STEP = 1_000


class Served(PenstockHttp):
    """Runs `penstock serve --store postgresql://…`."""

    url = ""

    async def launch(self) -> None:
        self.port = free_port()
        command = [PROGRAM, "serve", "--port", str(self.port), "--data", str(self.folder / "data"), "--store", self.url]
        env = {name: value for name, value in os.environ.items() if not name.startswith((*FOREIGN, "PG_", "DB_"))}
        self.start(command, env)
        await self.until_ready()


class Member:
    """Adapts an HTTP client to the cells."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def push(self, count: int) -> None:
        await self._client.push([text(PAYLOAD_BYTES - 2)] * count)

    async def pop(self, count: int) -> list[Any]:
        return await self._client.pop(count)

    async def ack(self, popped: list[Any]) -> None:
        await self._client.ack(popped)


async def serve(plan: Plan, databases: Databases, root: Path) -> tuple[list[Row], Row]:
    server = Served(root, None)
    server.url = databases.create("served")
    rows: list[Row] = []
    try:
        await server.fresh()
        await server.create("q")
        for clients, batch in plan.served:
            rates = []
            for _ in range(plan.rounds):
                await asyncio.to_thread(os.sync)
                users = await server.connect("q", clients)
                rates.append(await rate([Member(user) for user in users], batch, plan.seconds))  # type: ignore[arg-type]
                for user in users:
                    await user.close()
            rows.append({"clients": clients, "batch": batch, "rounds": rates, "median": median(rates)})
            say(f"http, {clients} clients, batch {batch}: {rows[-1]['median']:,.0f}")
        memory = await hold(server, databases, plan.held_messages)
    finally:
        server.stop()
        databases.drop("served")
    return rows, memory


async def hold(server: Served, databases: Databases, messages: int) -> Row:
    """Measure the memory for a large backlog, after its messages were pushed and some were acked."""
    (user,) = await server.connect("q", 1)
    member = Member(user)  # type: ignore[arg-type]
    for _ in range(0, messages, FILL_STEP):
        await member.push(FILL_STEP)
    for _ in range(10):
        await member.ack(await member.pop(FILL_STEP))
        await member.push(FILL_STEP)
    await user.close()
    (child,) = server.children
    row: Row = {
        "messages": messages,
        "server_bytes": sum(proportional_bytes(process) for process in child.family()),
        "database_bytes": database_bytes(databases.cluster.process.pid),
    }
    say(f"memory at {messages:,}: {(row['server_bytes'] + row['database_bytes']) / 1e6:.0f} MB")
    return row


def database_bytes(pid: int) -> int:
    postmaster = psutil.Process(pid)
    return sum(proportional_bytes(each) for each in [postmaster, *postmaster.children(recursive=True)])


def proportional_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0
