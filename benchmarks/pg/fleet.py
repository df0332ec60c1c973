"""Measures two servers on one database: long polls at both, and a namespace of many queues of which one is busy."""

from __future__ import annotations

import asyncio
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
from lib.scenarios import say
from peers.lean_http import Connection

from .databases import Databases
from .plan import Plan
from .served import Served
from .spread import spread
from .wakes import wakes

Row = dict[str, Any]
POP_MS_MOST = 10
ANSWER_MS_MOST = 100
PUSH_EVERY_S = 0.005
WAIT_MS = 60_000
SETTLE_S = 2.0
LOOKS = 2_000
USED_AT_ONCE = 1_000
POPPED_AT_ONCE = 100
MAKERS = 8
encode = msgspec.json.Encoder().encode


class Polled(msgspec.Struct):
    class Message(msgspec.Struct):
        payload: int

    messages: list[Message]


class Popped(msgspec.Struct):
    class Message(msgspec.Struct):
        transactionId: str

    messages: list[Message]


async def fleet(plan: Plan, databases: Databases, root: Path) -> Row:
    servers = [Served(root, None), Served(root, None)]
    url = databases.create("fleet")
    try:
        for server in servers:
            server.url = url
            await server.fresh()
        rows = {"polls": await polls(servers, plan.polls), "queues": await namespace(servers[0], plan.queues)}
    finally:
        for server in servers:
            server.stop()
        databases.drop("fleet")
    return rows | {"wakes": await wakes(databases, plan.polls)}


async def polls(servers: list[Served], count: int) -> Row:
    """Push to the servers in turn, and measure when a poll at either server returns each message."""
    await servers[0].create("polled")
    target = b"/queues/polled/poll?batch=1&wait_ms=%d" % WAIT_MS
    waiting = [await Connection.open(server.port) for server, _ in zip(cycle(servers), range(count), strict=False)]
    pushing = [await Connection.open(server.port) for server in servers]
    sent_at = [0.0] * count
    answered_at: list[list[float]] = [[] for _ in range(count)]

    async def poll(connection: Connection) -> None:
        answer = await connection.request(b"POST", target)
        now = perf_counter()
        for message in msgspec.json.decode(answer, type=Polled).messages:
            answered_at[message.payload].append(now)

    tasks = [asyncio.create_task(poll(connection)) for connection in waiting]
    await asyncio.sleep(SETTLE_S)
    for number, connection in zip(range(count), cycle(pushing), strict=False):
        sent_at[number] = perf_counter()
        await connection.request(b"POST", b"/queues/polled/messages", encode({"payload": number}))
        await asyncio.sleep(max(0.0, sent_at[number] + PUSH_EVERY_S - perf_counter()))
    await asyncio.wait(tasks, timeout=SETTLE_S)
    for connection in (*waiting, *pushing):
        connection.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    row = spread([(each[0] - sent) * 1000 for sent, each in zip(sent_at, answered_at, strict=True) if each])
    row |= {
        "polls": count,
        "unanswered": sum(not each for each in answered_at),
        "to_two": sum(len(each) > 1 for each in answered_at),
    }
    say(f"{count:,} polls at two servers: p99 {row['p99_ms']} ms, most {row['most_ms']} ms, {row['to_two']} to two")
    return row


async def namespace(server: Served, count: int) -> list[Row]:
    """Measure pops of a namespace after its queues were created, and again right after all were used and emptied."""
    makers = [await Connection.open(server.port) for _ in range(MAKERS)]
    names = iter(range(count))

    async def make(connection: Connection) -> None:
        for number in names:
            queue = {"ns": "many", "task": f"t{number % 100}", "queue": f"q{number}"}
            await connection.request(b"POST", b"/api/v1/configure", encode(queue))

    await asyncio.gather(*map(make, makers))
    rows = [{"when": "one busy, the others never used", **await pops(makers[0], count)}]
    await use_and_empty(makers[0], count)
    rows.append({"when": "right after all were used and emptied", **await pops(makers[0], count)})
    for connection in makers:
        connection.close()
    return rows


async def use_and_empty(connection: Connection, count: int) -> None:
    for first in range(0, count, USED_AT_ONCE):
        items = [
            {"ns": "many", "task": f"t{number % 100}", "queue": f"q{number}", "payload": number}
            for number in range(first, min(count, first + USED_AT_ONCE))
        ]
        await connection.request(b"POST", b"/api/v1/push", encode({"items": items}))
    while popped := await pop(connection, POPPED_AT_ONCE):
        acks = [{"transactionId": each, "status": "completed"} for each in popped]
        await connection.request(b"POST", b"/api/v1/ack/batch", encode({"acknowledgments": acks}))


async def pop(connection: Connection, batch: int) -> list[str]:
    answer = await connection.request(b"GET", b"/api/v1/pop/ns/many?batch=%d" % batch)
    return [each.transactionId for each in msgspec.json.decode(answer, type=Popped).messages] if answer else []


async def pops(connection: Connection, count: int) -> Row:
    """Push and pop single messages, and measure the pops."""
    item = {"ns": "many", "task": "t0", "queue": "q0", "payload": "busy"}
    taken_ms: list[float] = []
    for _ in range(LOOKS):
        await connection.request(b"POST", b"/api/v1/push", encode({"items": [item]}))
        began = perf_counter()
        (message,) = await pop(connection, 1)
        taken_ms.append((perf_counter() - began) * 1000)
        done = {"transactionId": message, "status": "completed"}
        await connection.request(b"POST", b"/api/v1/ack", encode(done))
    row = spread(taken_ms) | {"queues": count, "pops": LOOKS}
    say(f"pops among {count:,} queues: p99 {row['p99_ms']} ms")
    return row
