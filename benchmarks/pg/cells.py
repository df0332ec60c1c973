"""Compares full cycles (push, pop, ack) per second in every cell of backlog × batch × clients; the systems take turns.

Without a backlog each round has a new database. A backlog is filled once, and its database serves all cells, because a
cycle takes as many messages as it adds. If a system fails in a cell, its row has an `error` instead of a median.
"""

from __future__ import annotations

import asyncio
import os
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any

from lib.scenarios import say, turns

from .base import System
from .databases import Databases
from .plan import Plan

Row = dict[str, Any]
MOST_VISIT_S = 120
WARM_SHARE = 0.2
# The maximum length of a round that waits for a response to every client, relative to its normal length.
LONGEST = 5
FINISH_S = 20.0


async def compare(plan: Plan, databases: Databases, systems: list[type[System]]) -> list[Row]:
    rows: list[Row] = []
    for backlog in plan.backlogs:
        failed = await _fill(plan, databases, systems, backlog) if backlog else {}
        for batch, clients in product(plan.batches, plan.clients):
            say(f"compare: {backlog:,} waiting, batch {batch}, {clients} clients")
            part: dict[str, Row] = {
                system.key: {"system": system.key, "backlog": backlog, "batch": batch, "clients": clients, "rounds": []}
                for system in systems
            }
            for system in turns(systems, plan.rounds):
                row = part[system.key]
                if system.key in failed:
                    row["error"] = failed[system.key]
                if "error" not in row:
                    await _visit(plan, databases, system, row)
            for row in part.values():
                row["median"] = median(row["rounds"]) if row["rounds"] and "error" not in row else None
                say(f"  {row['system']}: {row['median'] or 0:,.0f}")
            rows += part.values()
        for system in systems:
            databases.drop(system.key)
    return rows


async def _fill(plan: Plan, databases: Databases, systems: list[type[System]], backlog: int) -> dict[str, str]:
    failed = {}
    for system in systems:
        say(f"fill {system.key} with {backlog:,}")
        try:
            measured = system(databases.create(system.key))
            await measured.prepare()
            await measured.fill(backlog)
            databases.settle(system.key)
        except Exception as problem:
            failed[system.key] = f"filling: {type(problem).__name__}: {problem}"
            say(f"  {failed[system.key]}")
    return failed


async def _visit(plan: Plan, databases: Databases, system: type[System], row: Row) -> None:
    try:
        async with asyncio.timeout(MOST_VISIT_S):
            if row["backlog"]:
                measured = system(databases.url(system.key))
            else:
                measured = system(databases.create(system.key))
                await measured.prepare()
            await asyncio.to_thread(os.sync)
            members = await measured.connect(row["clients"])
            try:
                row["rounds"].append(await rate(members, row["batch"], plan.seconds, one_by_one=system.loops))
            finally:
                await measured.close()
    except Exception as problem:
        row["error"] = f"{type(problem).__name__}: {problem}"
        say(f"  {system.label}: {row['error']}")


async def rate(members: list[Any], batch: int, seconds: float, *, one_by_one: bool = False) -> float:
    """Measure messages acked per second once the clients are busy. Calls cut by the two ends of the window even out.

    With `one_by_one`, a batch is pushed in one call, and popped and acked in a loop.
    """
    done = [0] * len(members)
    stopping = False

    async def work(number: int, member: Any) -> None:
        count = 1 if one_by_one else batch
        while not stopping:
            await member.push(batch)
            for _ in range(0, batch, count):
                popped = await member.pop(count)
                if popped:
                    await member.ack(popped)
                    done[number] += len(popped)
                if stopping:
                    break

    tasks = [asyncio.create_task(work(number, member)) for number, member in enumerate(members)]
    try:
        await _sleep(tasks, seconds * WARM_SHARE)
        before, begun = sum(done), perf_counter()
        await _sleep(tasks, seconds)
        # If calls take longer than the window, extend it until as many messages were acked as one batch per client.
        least = len(members) * (1 if one_by_one else batch)
        while sum(done) - before < least and perf_counter() - begun < LONGEST * seconds:
            await _sleep(tasks, 0.01)
        return (sum(done) - before) / (perf_counter() - begun)
    finally:
        stopping = True
        await asyncio.wait(tasks, timeout=FINISH_S)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


async def _sleep(tasks: list[asyncio.Task[None]], seconds: float) -> None:
    """Sleep until the time is over or a task has failed."""
    ended, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in ended:
        task.result()
