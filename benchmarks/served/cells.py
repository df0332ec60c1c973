"""Compares push, pop+ack and the full cycle in every cell of clients × batch; the systems take turns.

The push phase fills the queue that the pop+ack phase empties; the cycle has its own queue. If a system fails in a cell,
its row has an `error` instead of a median, and the run continues.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from itertools import product
from statistics import median
from typing import Any

from lib.clock import payloads
from lib.scenarios import say, turns
from peers import Peer
from peers.base import close_all

from .load import OPERATIONS, Load, Measured, fill
from .plan import Plan

Row = dict[str, Any]
# The minimum backlog for pop+ack, in calls per client.
LEAST_CALLS = 3
MOST_VISIT_S = 90
NUMBERS = ("per_s", "p50_ms", "p99_ms", "pop_p50_ms", "pop_p99_ms", "generator_cpu", "server_cpu")


def texts(count: int) -> list[str]:
    return [payload.decode() for payload in payloads(count)]


async def compare(plan: Plan, systems: list[Peer]) -> list[Row]:
    rows: list[Row] = []
    systems = [system for system in systems if system.batch_form]
    cells = list(product(plan.batches, plan.clients))
    for number, (batch, clients) in enumerate(cells, 1):
        say(f"compare {number}/{len(cells)}: {clients} clients, batch {batch}")
        part = {system.key: _rows(system, clients, batch) for system in systems}
        for system in turns(systems, plan.rounds):
            await _turn(plan, system, clients, batch, part[system.key])
        for three in part.values():
            rows += [settle(row) for row in three.values()]
    return rows


def _rows(system: Peer, clients: int, batch: int) -> dict[str, Row]:
    return {
        operation: {"system": system.key, "operation": operation, "batch": batch, "clients": clients, "rounds": []}
        for operation in OPERATIONS
    }


async def _turn(plan: Plan, system: Peer, clients: int, batch: int, rows: dict[str, Row]) -> None:
    if any("error" in row for row in rows.values()):
        return
    before = len(rows[OPERATIONS[0]]["rounds"])
    try:
        async with asyncio.timeout(MOST_VISIT_S):
            await visit(plan, system, clients, batch, rows)
        if not system.keeps_running:
            system.stop()
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}"
        say(f"  {system.label}: {reason}")
        # The phases that were complete in this round keep their results.
        for row in rows.values():
            if len(row["rounds"]) == before:
                row["error"] = reason
        system.stop()


async def visit(plan: Plan, system: Peer, clients: int, batch: int, rows: dict[str, Row]) -> None:
    """Run one round of the three phases, after a sync so that it does not write dirty pages of the previous round."""
    await system.fresh()
    await asyncio.to_thread(os.sync)
    data = texts(batch)
    for queue, operations in (("first", OPERATIONS[:2]), ("second", OPERATIONS[2:])):
        await system.create(queue)
        users = await system.connect(queue, clients)
        try:
            for operation in operations:
                waiting = None
                if operation == "pop+ack":
                    least = LEAST_CALLS * clients * batch
                    await fill(users, data, least - sum(user.pushed for user in users))
                    waiting = sum(user.pushed for user in users)
                load = Load(users, operation, data, most=waiting)
                measured = await load.run(plan.window, system)
                rows[operation]["rounds"].append(rounded(measured))
        finally:
            await close_all(users)
        await system.drop(queue)


def rounded(measured: Measured) -> Row:
    return {name: value if value is None else round(value, 3) for name, value in asdict(measured).items()}


def settle(row: Row) -> Row:
    """Add the medians of the rounds to the row."""
    for name in NUMBERS:
        values = [one[name] for one in row["rounds"] if one[name] is not None]
        row["median" if name == "per_s" else name] = round(median(values), 3) if values else None
    if "error" in row:
        row["median"] = None
    return row
