"""Generates the load: concurrent clients repeat one operation, and a window of the steady state is counted.

A message counts if it becomes durable (or is acked) within the window. The clients are busy before and after it, so
that calls cut by its two ends even out. The calls themselves are in `peers`.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from random import random
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Literal

from peers.base import Client, Peer

Operation = Literal["push", "pop+ack", "cycle"]
OPERATIONS: tuple[Operation, ...] = ("push", "pop+ack", "cycle")
LOOK_S = 0.005
FINISH_S = 20.0
CUT_OFF_S = 1.0
# A window lasts until each client has received a response, but no longer than this.
MOST_WINDOW_S = 15.0
# With fewer calls per client than this, the ends of a window would dominate, so the whole run is counted.
FEW_CALLS = 8


@dataclass(frozen=True)
class Window:
    seconds: float
    warm_s: float


@dataclass
class Measured:
    per_s: float
    p50_ms: float | None
    p99_ms: float | None
    pop_p50_ms: float | None
    pop_p99_ms: float | None
    calls: int
    seconds: float
    generator_cpu: float
    server_cpu: float


class Load:
    """Repeat `operation` on every client.

    `most` is the backlog, for loads that only pop. With `pace_s`, each client begins a call at this interval instead of
    immediately after the last one.
    """

    def __init__(
        self,
        clients: list[Client],
        operation: Operation,
        batch: list[str],
        *,
        most: int | None = None,
        pace_s: float | None = None,
    ) -> None:
        self.clients, self.operation, self.batch = clients, operation, batch
        self.most = self.left = most
        self.pace_s = pace_s
        self.samples: list[tuple[float, float]] = []
        self.pops: list[tuple[float, float]] = []
        self.stopping = False
        self.over = asyncio.Event()

    def moved(self) -> int:
        if self.operation == "push":
            return sum(client.pushed for client in self.clients)
        return sum(client.acked for client in self.clients)

    async def step(self, client: Client) -> bool:
        """Run the operation once; return True if messages moved."""
        if self.operation != "pop+ack":
            await client.push(self.batch)
        if self.operation == "push":
            return True
        begun = perf_counter()
        popped = await client.pop(len(self.batch))
        now = perf_counter()
        if not popped:
            return False
        self.pops.append((now, now - begun))
        await client.ack(popped)
        return True

    def _claim(self) -> bool:
        """Claim a batch of the backlog; return False if too little is left, so that no client polls an empty queue."""
        if self.left is None:
            return True
        self.left -= len(self.batch)
        return self.left >= 0

    async def _client(self, client: Client) -> None:
        due = perf_counter() + random() * (self.pace_s or 0)
        try:
            while not self.stopping and self._claim():
                if self.pace_s:
                    await asyncio.sleep(max(0, due - perf_counter()))
                    due += self.pace_s
                begun = perf_counter()
                if await self.step(client):
                    now = perf_counter()
                    self.samples.append((now, now - begun))
            await client.release()
        finally:
            self.over.set()

    async def run(self, window: Window, peer: Peer) -> Measured:
        """Measure one window. Calls in flight may end after it; pops are cancelled soon."""
        gc.collect()
        few = self.most is not None and self.most < FEW_CALLS * len(self.clients) * len(self.batch) and not peer.loops
        tasks = [asyncio.create_task(self._client(client)) for client in self.clients]
        try:
            measured = await (self._drain(tasks, peer) if few else self._window(window, peer))
        finally:
            await self._end(tasks)
        return measured

    async def _window(self, window: Window, peer: Peer) -> Measured:
        base, enough = self.moved(), (self.most or 0) // 5
        await self._look(perf_counter() + window.warm_s, lambda: bool(enough) and self.moved() - base >= enough)
        meter = Meter(self, peer)
        await self._look(meter.opened + window.seconds, lambda: False)
        wanted = len(self.clients)
        await self._look(meter.opened + MOST_WINDOW_S, lambda: self._calls(meter.opened) >= wanted)
        return meter.read(perf_counter())

    async def _drain(self, tasks: list[asyncio.Task[None]], peer: Peer) -> Measured:
        meter = Meter(self, peer)
        await asyncio.wait(tasks, timeout=FINISH_S)
        return meter.read(self.samples[-1][0] if self.samples else perf_counter())

    async def _look(self, until: float, early: Callable[[], bool]) -> None:
        while not self.over.is_set() and perf_counter() < until and not early():
            await asyncio.sleep(LOOK_S)

    def _calls(self, since: float) -> int:
        return sum(1 for end, _ in self.samples if end >= since)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        self.stopping = True
        # A push must not be cancelled halfway, because the backlog would then have an unknown size.
        await asyncio.wait(tasks, timeout=FINISH_S if self.operation == "push" else CUT_OFF_S)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


class Meter:
    def __init__(self, load: Load, peer: Peer) -> None:
        self.load, self.peer = load, peer
        self.moved, self.opened = load.moved(), perf_counter()
        self.cpu_s, self.server_cpu_s = time.process_time(), peer.cpu_s()

    def read(self, closed: float) -> Measured:
        moved, took = self.load.moved() - self.moved, closed - self.opened
        if not moved:
            raise RuntimeError(f"no message moved in {took:.1f} s")
        cpu_s, server_cpu_s = time.process_time() - self.cpu_s, self.peer.cpu_s() - self.server_cpu_s
        calls, pops = (
            [spent * 1000 for end, spent in part if self.opened <= end <= closed]
            for part in (self.load.samples, self.load.pops)
        )
        return Measured(
            moved / took, *spread(calls), *spread(pops), len(calls), took, cpu_s / took, server_cpu_s / took
        )


def spread(values: list[float]) -> tuple[float | None, float | None]:
    """Return the median and the 99th percentile."""
    if len(values) < 2:
        return (values[0], values[0]) if values else (None, None)
    return median(values), quantiles(values, n=100, method="inclusive")[98]


async def fill(clients: list[Client], batch: list[str], count: int, *, most_s: float = math.inf) -> None:
    """Push `count` messages in whole batches, or fewer if that takes longer than `most_s`; this is not timed."""
    left, until = -(-count // len(batch)), perf_counter() + most_s

    async def some(client: Client) -> None:
        nonlocal left
        while left > 0 and perf_counter() < until:
            left -= 1
            await client.push(batch)

    await together(some(client) for client in clients)


async def together(coroutines: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run all coroutines concurrently; the first failure cancels the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in coroutines]
    return [task.result() for task in tasks]
