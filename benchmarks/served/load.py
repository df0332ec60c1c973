"""The load: concurrent clients repeat one operation, and a window of that steady state is counted.

Messages are counted as they become safe (or are acked) inside the window; the clients are busy before it opens
and after it closes, so that calls cut by its two edges even out. Only the queue's user is here: what a call
means to each system is in `peers`.
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
# A window lasts until each client has had an answer, but no longer than this.
MOST_WINDOW_S = 15.0
# With fewer calls than this to each client, the edges of a window say more than its middle: count it all.
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

    `most` is how many messages wait, for loads that only take. With `pace_s`, each client begins a call that often
    instead of at once after the last.
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
        """Whether messages moved."""
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
        """Whether as much as a batch is certain to be there: nobody polls an empty queue on the clock."""
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
        """Measure one window. Calls under way may end after it; those that take are cut off soon."""
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
        # What a push leaves half done would be missing, or too much, when the messages are taken.
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
    """The median and the 99th percentile."""
    if len(values) < 2:
        return (values[0], values[0]) if values else (None, None)
    return median(values), quantiles(values, n=100, method="inclusive")[98]


async def fill(clients: list[Client], batch: list[str], count: int, *, most_s: float = math.inf) -> None:
    """Push `count` messages, in whole batches, off the clock; fewer if that takes longer than `most_s`."""
    left, until = -(-count // len(batch)), perf_counter() + most_s

    async def some(client: Client) -> None:
        nonlocal left
        while left > 0 and perf_counter() < until:
            left -= 1
            await client.push(batch)

    await together(some(client) for client in clients)


async def together(coroutines: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """All of them; the first that fails cancels the rest."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in coroutines]
    return [task.result() for task in tasks]
