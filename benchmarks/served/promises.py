"""Measures Penstock against its own targets: rates, latencies, memory, and the effect of a backlog.

Every result is a row with `value`, `target` and `met`; `met` is None if there is no target, or if a smaller run cannot
check it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from random import uniform
from statistics import median
from time import perf_counter
from typing import Any

from lib.scenarios import say
from peers import Client, Peer, PenstockHttp, PenstockSdk
from peers.base import close_all
from peers.lean_http import Connection

from .cells import texts
from .load import Load, Measured, fill, spread
from .plan import DEFAULT, Plan
from .profile import profile

Row = dict[str, Any]
RATE_LEAST = 10_000
POP_MS_MOST = 10
LONG_POLL_MS_MOST = 20
IDLE_MB_MOST = 100
FLAT_RATIO_MOST = 1.5
CALLERS = 64
SDK_ROUNDS = 3
SETTLE_S = 2.0
IDLE_WAIT_MS = 60_000


async def promises(plan: Plan, root: Path, cores: set[int] | None) -> tuple[list[Row], list[Row]]:
    """Return the rows, and the profile of the server under single messages. If a part fails, the others still run."""
    if why := PenstockHttp.missing():
        say(f"promises: skipped, {why}")
        return [], []
    server, rows, samples = PenstockHttp(root, cores), [], []
    try:
        rows += await _guarded("cycles over HTTP", _rates(plan, server))
        samples = await _guarded("the profile", profile(plan.profile_s, server, CALLERS))
        if why := PenstockSdk.missing():
            say(f"promises: no SDK figure, {why}")
        else:
            rows += await _guarded("cycles through the SDK", _sdk(plan, PenstockSdk(root, cores)))
        rows += await _guarded("long polls", _waiting(plan, server))
    finally:
        server.stop()
    rows += await _guarded("flatness", _flatness(plan, PenstockHttp(root, cores), PenstockHttp(root, cores)))
    return rows, [one for one in samples if "share" in one]


async def _guarded(name: str, part: Coroutine[Any, Any, list[Row]]) -> list[Row]:
    say(f"promises: {name}")
    try:
        return await part
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}"
        say(f"  {reason}")
        return [row(name, None, "", "to be measured", False, reason)]


def row(name: str, value: float | None, unit: str, target: str = "", met: bool | None = None, note: str = "") -> Row:
    rounded = None if value is None else round(value, 2)
    return {"name": name, "value": rounded, "unit": unit, "target": target, "met": met, "note": note}


def rate_row(name: str, measured: Measured, judged: bool) -> Row:
    note = (
        f"p50 {measured.p50_ms:.1f} ms, p99 {measured.p99_ms:.1f} ms a cycle; "
        f"server {measured.server_cpu:.2f} cores ({measured.server_cpu / measured.per_s * 1e6:.0f} µs a message), "
        f"generator {measured.generator_cpu:.2f}"
    )
    target, met = (f"> {RATE_LEAST:,}", measured.per_s > RATE_LEAST) if judged else ("", None)
    return row(name, measured.per_s, "msg/s", target, met, note)


async def cycles(
    plan: Plan, server: Peer, clients: int, batch: int, *, rounds: int = 1, pace_s: float | None = None
) -> Measured:
    """Return the median round by messages per second."""
    found: list[Measured] = []
    for _ in range(rounds):
        await server.fresh()
        await server.create("cycle")
        users = await server.connect("cycle", clients)
        try:
            found.append(await Load(users, "cycle", texts(batch), pace_s=pace_s).run(plan.promise_window, server))
        finally:
            await close_all(users)
    return sorted(found, key=lambda measured: measured.per_s)[len(found) // 2]


async def _rates(plan: Plan, server: Peer) -> list[Row]:
    tens = {clients: await cycles(plan, server, clients, 10, rounds=plan.promise_rounds) for clients in (8, CALLERS)}
    clients = max(tens, key=lambda count: tens[count].per_s)
    best = tens[clients]
    single = await cycles(plan, server, CALLERS, 1, rounds=plan.promise_rounds)
    rows = [rate_row(f"cycles over HTTP, batch 10, {clients} clients", best, True)]
    rows += [rate_row(f"the same, {count} clients", tens[count], False) for count in tens if count != clients]
    rows.append(rate_row(f"cycles over HTTP, batch 1, {CALLERS} clients", single, False))
    for per_s, batch, judged in ((RATE_LEAST, 10, True), (best.per_s, 10, False), (single.per_s, 1, False)):
        pace_s = CALLERS * batch / (per_s / 2)
        found = [await cycles(plan, server, CALLERS, batch, pace_s=pace_s) for _ in range(plan.promise_rounds)]
        rows.append(_pop_row(f"immediate pop p99 at half of {per_s:,.0f} msg/s, batch {batch}", found, judged))
    return rows


def _pop_row(name: str, found: list[Measured], judged: bool) -> Row:
    """Return the row of a pop's p99 at a paced load; only the load at half the target rate is checked."""
    found.sort(key=lambda measured: measured.pop_p99_ms or 0)
    middle = found[len(found) // 2]
    p99 = middle.pop_p99_ms
    note = (
        f"paced; p50 {middle.pop_p50_ms:.1f} ms; server {middle.server_cpu:.2f} cores; "
        f"p99 of {len(found)} rounds from {found[0].pop_p99_ms:.1f} to {found[-1].pop_p99_ms:.1f} ms"
    )
    if not judged:
        return row(name, p99, "ms", note=note)
    return row(name, p99, "ms", f"< {POP_MS_MOST}", p99 is not None and p99 < POP_MS_MOST, note)


async def _sdk(plan: Plan, server: Peer) -> list[Row]:
    """Measure the SDK in many rounds: client and server alternate on a core, so its current speed matters most."""
    try:
        found = [await cycles(plan, server, CALLERS, 1) for _ in range(SDK_ROUNDS * plan.promise_rounds)]
    finally:
        server.stop()
    found.sort(key=lambda measured: measured.per_s)
    shown = rate_row(f"cycles through the SDK, single messages, {CALLERS} callers", found[len(found) // 2], True)
    shown["note"] += f"; {len(found)} rounds from {found[0].per_s:,.0f} to {found[-1].per_s:,.0f}"
    return [shown]


async def _waiting(plan: Plan, server: PenstockHttp) -> list[Row]:
    """Measure the response time of long polls, and the memory of a thousand idle ones."""
    await server.fresh()
    await server.create("busy")
    await server.create("idle")
    alone = await _answers_ms(plan, server)
    before = server.rss_bytes()
    idle = [await Connection.open(server.port) for _ in range(plan.idle_polls)]
    target = b"/queues/idle/poll?wait_ms=%d" % IDLE_WAIT_MS
    polls = [connection.request(b"POST", target) for connection in idle]
    await asyncio.sleep(SETTLE_S)
    grown_mb = (server.rss_bytes() - before) / 1e6
    ended = sum(poll.done() for poll in polls)
    beside = await _answers_ms(plan, server)
    for poll, connection in zip(polls, idle, strict=True):
        poll.cancel()
        connection.close()
    enough = plan.idle_polls >= DEFAULT.idle_polls and not ended
    note = f"{grown_mb * 1000 / plan.idle_polls:.0f} KB each; {before / 1e6:.0f} MB before"
    note += f"; {ended} ended early" if ended else ""
    return [
        _answer_row("long poll answered after the push, p99", alone),
        _answer_row(f"the same beside {plan.idle_polls:,} idle long polls, p99", beside),
        row(
            f"memory of {plan.idle_polls:,} idle long polls",
            grown_mb,
            "MB",
            f"< {IDLE_MB_MOST}",
            grown_mb < IDLE_MB_MOST if enough else None,
            note,
        ),
    ]


def _answer_row(name: str, answers_ms: list[float]) -> Row:
    p50, p99 = spread(answers_ms)
    met = p99 is not None and p99 < LONG_POLL_MS_MOST
    note = f"from sending the push to the poll's answer, {len(answers_ms)} times; p50 {p50:.1f} ms"
    return row(name, p99, "ms", f"< {LONG_POLL_MS_MOST}", met, note)


async def _answers_ms(plan: Plan, server: PenstockHttp) -> list[float]:
    users = await server.connect("busy", 2)
    producer, consumer = users
    data, found = texts(1), []
    for _ in range(plan.long_polls):
        polling = asyncio.create_task(consumer.pop(1, wait_ms=20_000))  # type: ignore[call-arg]
        await asyncio.sleep(uniform(0.005, 0.015))
        begun = perf_counter()
        pushing = asyncio.create_task(producer.push(data))
        popped = await polling
        found.append((perf_counter() - begun) * 1000)
        await pushing
        await consumer.ack(popped)
    await close_all(users)
    return found


async def _flatness(plan: Plan, small: PenstockHttp, big: PenstockHttp) -> list[Row]:
    """Compare cycles over a small and a large backlog; the two servers take turns, and cycles keep the backlog."""
    found: dict[Peer, list[Measured]] = {small: [], big: []}
    users: dict[Peer, list[Client]] = {}
    try:
        for server, count in ((small, plan.small), (big, plan.big)):
            await server.fresh()
            await server.create("flat")
            fillers = await server.connect("flat", 4)
            await fill(fillers, texts(1_000), count)
            await close_all(fillers)
        for server in found:
            # Connects only now, because a server closes connections that are idle while the other one is filled.
            users[server] = await server.connect("flat", 8)
        for _ in range(max(plan.promise_rounds, 2)):
            for server in found:
                load = Load(users[server], "cycle", texts(10))
                found[server].append(await load.run(plan.promise_window, server))
        for clients in users.values():
            await close_all(clients)
    finally:
        small.stop()
        big.stop()
    rates = {server: median(one.per_s for one in rounds) for server, rounds in found.items()}
    pops = {server: median(one.pop_p50_ms or 0 for one in rounds) for server, rounds in found.items()}
    ratio = rates[small] / rates[big]
    note = (
        f"{rates[small]:,.0f} and {rates[big]:,.0f} msg/s at batch 10, 8 clients; "
        f"pop p50 {pops[small]:.2f} and {pops[big]:.2f} ms"
    )
    met = ratio <= FLAT_RATIO_MOST if plan.big >= DEFAULT.big else None
    name = f"rate with {plan.small:,} waiting / with {plan.big:,} waiting"
    return [row(name, ratio, "×", f"≤ {FLAT_RATIO_MOST}", met, note)]
