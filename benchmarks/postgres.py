"""Penstock on PostgreSQL beside the two usual table layouts, on one server, in one run.

Every system has fsync on. Cells: full cycles (push, pop, ack) a second; and a long churn, without a transaction held
open meanwhile and with one, whose last tenth is compared with its first. Progress goes to stderr, the table to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import psycopg
import uvloop

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.pg.systems import SYSTEMS, Client  # noqa: E402
from tests.postgres import Cluster  # noqa: E402

PAYLOAD = b"x" * 200
CELLS = ((1, 1), (16, 1), (100, 1), (4, 100))
"""Clients and batch."""
TENTHS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(SYSTEMS), help="one system; may be repeated")
    parser.add_argument("--section", action="append", choices=["cycles", "churn", "held"])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=200_000, help="of each churn")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cluster = Cluster(synced=True)
    try:
        results = uvloop.run(run(options, cluster.url))
    finally:
        cluster.remove()
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


async def run(options: argparse.Namespace, url: str) -> dict[str, dict[str, Any]]:
    names = options.only or list(SYSTEMS)
    sections = options.section or ["cycles", "churn", "held"]
    results: dict[str, dict[str, Any]] = {name: {} for name in names}
    if "cycles" in sections:
        for clients, batch in CELLS:
            # The systems take turns, so that a slow moment of the machine hurts all alike.
            rates: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(options.rounds):
                for name in names:
                    rates[name].append(await cycles(name, url, clients, batch, options.seconds))
            for name in names:
                results[name][f"{clients} x b{batch}"] = round(statistics.median(rates[name]))
                print(f"{name}: {clients} x b{batch}: {results[name]}", file=sys.stderr)
    for section in ("churn", "held"):
        for name in names if section in sections else ():
            with held_transaction(url) if section == "held" else contextlib.nullcontext():
                first, last = await churn(name, url, options.messages)
            results[name][f"{section} first tenth"] = round(first)
            results[name][f"{section} last tenth"] = round(last)
            print(f"{name}: {section}: {first:.0f} -> {last:.0f}", file=sys.stderr)
    return results


@contextlib.contextmanager
def held_transaction(url: str) -> Iterator[None]:
    """One that has written, and sees the database as it was: nothing dead since can be cleaned away."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT txid_current(), count(*) FROM pg_class")
        yield
        connection.rollback()


async def cycles(name: str, url: str, clients: int, batch: int, seconds: float) -> float:
    system = SYSTEMS[name]()
    members = await system.open(url, clients)
    try:
        begun = perf_counter()
        done = await asyncio.gather(*(work(member, batch, begun + seconds) for member in members))
        return sum(done) / (perf_counter() - begun)
    finally:
        await system.close()


async def work(client: Client, batch: int, until: float) -> int:
    payloads = [PAYLOAD] * batch
    done = 0
    while perf_counter() < until:
        done += await cycle(client, payloads)
    return done


async def cycle(client: Client, payloads: list[bytes]) -> int:
    await client.push(payloads)
    popped = await client.pop(len(payloads))
    if popped:
        await client.ack(popped)
    return len(popped)


async def churn(name: str, url: str, messages: int) -> tuple[float, float]:
    """Messages through the queue by four clients a hundred at a time: the rate of the first and of the last tenth."""
    system = SYSTEMS[name]()
    members = await system.open(url, 4)
    rates = []
    payloads = [PAYLOAD] * 100

    async def share(member: Client, count: int) -> None:
        done = 0
        while done < count:
            done += await cycle(member, payloads)

    try:
        for _ in range(TENTHS):
            begun = perf_counter()
            await asyncio.gather(*(share(member, messages // TENTHS // len(members)) for member in members))
            rates.append(messages / TENTHS / (perf_counter() - begun))
    finally:
        await system.close()
    return rates[0], rates[-1]


def table(results: dict[str, dict[str, Any]]) -> str:
    columns = list(next(iter(results.values())))
    lines = ["| messages a second | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name, cells in results.items():
        lines.append(f"| {name} | " + " | ".join(f"{cells[column]:,}" for column in columns) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
