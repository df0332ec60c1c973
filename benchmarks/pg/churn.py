"""Moves many messages through a queue and measures each tenth, without and with a transaction held open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

import psycopg
from lib.scenarios import say

from .base import System
from .databases import Databases

TENTHS = 10
TURNS = 7
FRESH = "fresh"
CLIENTS, BATCH = 4, 100
Row = dict[str, Any]


async def churn(databases: Databases, systems: list[type[System]], messages: int) -> list[Row]:
    rows: list[Row] = []
    for system in systems:
        for held in (False, True):
            url = databases.create(system.key)
            measured = system(url)
            await measured.prepare()
            with held_transaction(url) if held else contextlib.nullcontext():
                rates = await tenths(measured, messages)
                fresh = system(databases.create(FRESH))
                await fresh.prepare()
                aged_to_fresh = await in_turns(measured, fresh, messages // TENTHS // TURNS)
            databases.drop(FRESH)
            databases.drop(system.key)
            rows.append(
                {
                    "system": system.key,
                    "held": held,
                    "messages": messages,
                    "tenths": [round(each) for each in rates],
                    "last_to_first": rates[-1] / rates[0],
                    "aged_to_fresh": aged_to_fresh,
                }
            )
            shown = f"{rows[-1]['tenths']}, {aged_to_fresh:.2f} of the rate of a new one"
            say(f"churn {system.key}{', held' if held else ''}: {shown}")
    return rows


@contextlib.contextmanager
def held_transaction(url: str) -> Iterator[None]:
    """Hold a transaction open that has an old snapshot, so that VACUUM cannot remove any row that dies meanwhile."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT pg_current_xact_id(), count(*) FROM pg_class")
        yield
        connection.rollback()


async def tenths(measured: System, messages: int) -> list[float]:
    members = await measured.connect(CLIENTS)
    try:
        return [await rate(members, messages // TENTHS) for _ in range(TENTHS)]
    finally:
        await measured.close()


async def in_turns(aged: System, fresh: System, messages: int) -> float:
    """Compare the churned system with a new one in alternation, and return the ratio of their rates.

    The first tenth is no basis for this, because the machine's speed changes within minutes.
    """
    both = [await aged.connect(CLIENTS), await fresh.connect(CLIENTS)]
    try:
        pairs = [[await rate(members, messages) for members in both] for _ in range(TURNS)]
    finally:
        await aged.close()
        await fresh.close()
    return median(old / new for old, new in pairs)


async def rate(members: list[Any], messages: int) -> float:
    async def share(member: Any, count: int) -> None:
        done = 0
        while done < count:
            await member.push(BATCH)
            popped = await member.pop(BATCH)
            await member.ack(popped)
            done += len(popped)

    begun = perf_counter()
    await asyncio.gather(*(share(member, messages // CLIENTS) for member in members))
    return messages / (perf_counter() - begun)
