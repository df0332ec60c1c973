"""Many messages through one queue: the rate of each tenth, without and with a transaction held open throughout."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import psycopg
from lib.scenarios import say

from .base import System
from .databases import Databases

TENTHS = 10
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
            databases.drop(system.key)
            rows.append(
                {
                    "system": system.key,
                    "held": held,
                    "messages": messages,
                    "tenths": [round(each) for each in rates],
                    "last_to_first": rates[-1] / rates[0],
                }
            )
            say(f"churn {system.key}{', held' if held else ''}: {rows[-1]['tenths']}")
    return rows


@contextlib.contextmanager
def held_transaction(url: str) -> Iterator[None]:
    """One that has written, and sees the database as it was: nothing dead since can be cleaned away."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT pg_current_xact_id(), count(*) FROM pg_class")
        yield
        connection.rollback()


async def tenths(measured: System, messages: int) -> list[float]:
    members = await measured.connect(CLIENTS)
    rates = []

    async def share(member: Any, count: int) -> None:
        done = 0
        while done < count:
            await member.push(BATCH)
            popped = await member.pop(BATCH)
            await member.ack(popped)
            done += len(popped)

    try:
        for _ in range(TENTHS):
            begun = perf_counter()
            await asyncio.gather(*(share(member, messages // TENTHS // CLIENTS) for member in members))
            rates.append(messages / TENTHS / (perf_counter() - begun))
    finally:
        await measured.close()
    return rates
