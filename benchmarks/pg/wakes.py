"""Measures wakeups between two brokers on one database: a long poll at one for each queue, and pushes at the other."""

from __future__ import annotations

import asyncio
from itertools import cycle
from time import perf_counter
from typing import Any

from lib.scenarios import say

from penstock.broker.broker import Broker
from penstock.core.commands import Command, Configure, Lease
from penstock.core.model import PushItem, QueueOptions
from penstock.store.postgres import PostgresStore

from .databases import Databases
from .spread import spread

Row = dict[str, Any]
WAKE_MS_MOST = 20
LEASES_A_PUSH_MOST = 1.2
MADE_AT_ONCE = 200
PUSH_EVERY_S = 0.005
SETTLE_S = 2.0
WAIT_MS = 60_000


class Counting(Broker):
    """Counts its leases, including those that find no message."""

    def __init__(self, url: str) -> None:
        super().__init__(PostgresStore(url))
        self.leases = 0
        commit = self._commit

        def counted(command: Command[Any]) -> Any:
            self.leases += isinstance(command, Lease)
            return commit(command)

        self._commit = counted  # type: ignore[assignment]


async def wakes(databases: Databases, count: int) -> Row:
    url = databases.create("wakes")
    brokers = [Counting(url), Counting(url)]
    try:
        return await _measure(brokers, [f"queue-{number}" for number in range(count)])
    finally:
        for broker in brokers:
            await broker.close()
        databases.drop("wakes")


async def _measure(brokers: list[Counting], names: list[str]) -> Row:
    """Push to each queue at the broker that does not have its long poll."""
    for first in range(0, len(names), MADE_AT_ONCE):
        made = names[first : first + MADE_AT_ONCE]
        brokers[0].store.apply([Configure(queue=name, changes={}, create=QueueOptions()) for name in made])
    pushed_at: dict[str, float] = {}
    woken_at: dict[str, float] = {}
    push_ms: list[float] = []

    async def poll(broker: Broker, name: str) -> None:
        await broker.lease(name, wait_ms=WAIT_MS)
        woken_at[name] = perf_counter()

    polls = [asyncio.create_task(poll(broker, name)) for broker, name in zip(cycle(brokers), names, strict=False)]
    await asyncio.sleep(SETTLE_S)
    for broker in brokers:
        broker.leases = 0
    for broker, name in zip(cycle(reversed(brokers)), names, strict=False):
        sent_at = perf_counter()
        await broker.push(name, [PushItem(payload=b"x")])
        pushed_at[name] = perf_counter()
        push_ms.append((pushed_at[name] - sent_at) * 1000)
        await asyncio.sleep(max(0.0, sent_at + PUSH_EVERY_S - perf_counter()))
    await asyncio.gather(*polls)
    row = spread([(woken_at[name] - pushed_at[name]) * 1000 for name in names])
    row |= {"push": spread(push_ms), "queues": len(names), "leases": sum(broker.leases for broker in brokers)}
    shown = f"p99 {row['p99_ms']} ms (the pushes: {row['push']['p99_ms']})"
    say(f"{len(names):,} queues waited for: {shown}, {row['leases']:,} leases")
    return row
