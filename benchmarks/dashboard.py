"""Measures the dashboard: its first render, its long tasks at 5,000 events per second, and the cost of twenty pages.

A real browser measures the first two. The twenty pages are simulated without rendering, which costs the server nothing:
each has a WebSocket with digests and requests the data of the overview every four seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from peers.lean_http import Connection
from websockets.asyncio.client import connect

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.async_api import Browser, async_playwright  # noqa: E402

from tests.integration.serving import Process, process  # noqa: E402
from tools import provision  # noqa: E402

EVENTS_PER_S = 5_000
EVENTS_PER_MESSAGE = 3
BATCH = 10
CLIENTS = 8
DASHBOARDS = 20
REFRESH_S = 4.0
RENDERS = 7
OVERVIEW = b"/api/v1/analytics/overview?minutes=60&step_minutes=1"
LONG_TASKS = """
window.long = []
const keep = (list) => long.push(...list.getEntries().map((entry) => entry.duration))
new PerformanceObserver(keep).observe({entryTypes: ['longtask']})
"""
FIRST_RENDER = """() => new Promise((done) => {
  const look = () => document.querySelector('[data-shown]') ? done(performance.now()) : requestAnimationFrame(look)
  look()
})"""
BODIES = json.dumps({"messages": [{"payload": {"n": n, "text": "x" * 180}} for n in range(BATCH)]}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("render", "events", "throughput"))
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        process(Path(folder), "--no-access-log") as server,
    ):
        asyncio.run(measure(server, chosen))


async def measure(server: Process, chosen: Any) -> None:
    await create(server.port)
    if chosen.only in (None, "render", "events"):
        found = json.loads(provision.CHOICE.read_text()).get("browser")
        if found is None:
            sys.exit("no browser found; run `make provision`")
        async with async_playwright() as playwright:
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = await playwright.chromium.launch(executable_path=found["path"], args=arguments)
            if chosen.only in (None, "render"):
                await renders(browser, server.port)
            if chosen.only in (None, "events"):
                await events(browser, server.port, chosen.seconds)
            await browser.close()
    if chosen.only in (None, "throughput"):
        await throughput(server, chosen.seconds, chosen.rounds)


async def create(port: int) -> None:
    connection = await Connection.open(port)
    for client in range(CLIENTS):
        await connection.request(b"POST", b"/queues", json.dumps({"name": f"bench/load/q{client}"}).encode())
    connection.close()


async def renders(browser: Browser, port: int) -> None:
    """Measure the time from the navigation to the first numbers, with an empty cache."""
    shown, painted, sent = [], [], []
    for _ in range(RENDERS):
        context = await browser.new_context()
        page = await context.new_page()
        session = await context.new_cdp_session(page)
        await session.send("Network.enable")
        sizes: list[float] = []
        session.on("Network.loadingFinished", lambda event, sizes=sizes: sizes.append(event["encodedDataLength"]))
        await page.goto(f"http://127.0.0.1:{port}/")
        shown.append(await page.evaluate(FIRST_RENDER))
        painted.append(await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        sent.append(sum(sizes))
        await context.close()
    paint, numbers, size = median(painted), median(shown), median(sent) / 1000
    print(f"first paint {paint:.0f} ms, first numbers {numbers:.0f} ms, {size:.0f} kB sent")


async def events(browser: Browser, port: int, seconds: float) -> None:
    """Count tasks over 50 ms on the main thread at 5,000 events per second."""
    page = await browser.new_page()
    await page.add_init_script(LONG_TASKS)
    for place in ("overview?span=5m", "queues"):
        await page.goto(f"http://127.0.0.1:{port}/#/{place}")
        await page.evaluate("new Promise((done) => setTimeout(done, 2000))")
        await page.evaluate("long.length = 0")
        messages = await loaded(port, seconds, EVENTS_PER_S / EVENTS_PER_MESSAGE / BATCH / CLIENTS)
        long = await page.evaluate("long")
        rate = messages * EVENTS_PER_MESSAGE / seconds
        print(f"{place}: {rate:,.0f} events/s, {len(long)} tasks over 50 ms, longest {max(long, default=0):.0f} ms")
    await page.close()


async def loaded(port: int, seconds: float, cycles_per_s: float | None) -> int:
    """Run load at full speed, or at a rate per client; return the number of messages that went through."""
    done = 0
    end = time.perf_counter() + seconds

    async def work(client: int) -> None:
        nonlocal done
        connection = await Connection.open(port)
        path = b"/queues/bench%%2Fload%%2Fq%d" % client
        begun, cycles = time.perf_counter(), 0
        while time.perf_counter() < end:
            await connection.request(b"POST", path + b"/messages", BODIES)
            got = json.loads(await connection.request(b"POST", path + b"/poll?batch=%d&wait_ms=0" % BATCH))["messages"]
            items = [{"id": each["id"], "token": each["token"]} for each in got]
            await connection.request(b"POST", path + b"/ack", json.dumps({"items": items}).encode())
            done += len(got)
            cycles += 1
            if cycles_per_s is not None:
                await asyncio.sleep(max(0.0, begun + cycles / cycles_per_s - time.perf_counter()))
        connection.close()

    await asyncio.gather(*(work(client) for client in range(CLIENTS)))
    return done


async def throughput(server: Process, seconds: float, rounds: int) -> None:
    """Measure without and with twenty pages in turns, so that changes of the machine's speed affect both."""
    ran = psutil.Process(server.process.pid)
    rates: dict[int, list[float]] = {0: [], DASHBOARDS: []}
    costs: dict[int, list[float]] = {0: [], DASHBOARDS: []}
    await loaded(server.port, 2.0, None)
    for _ in range(rounds):
        for many in rates:
            async with watching(server.port, many):
                before = sum(ran.cpu_times()[:2])
                done = await loaded(server.port, seconds, None)
                costs[many].append((sum(ran.cpu_times()[:2]) - before) / done * 1e6)
                rates[many].append(done / seconds)
    for many in rates:
        rate, cost = median(rates[many]), median(costs[many])
        print(f"{many:>2} dashboards: {rate:,.0f} msg/s, {cost:.0f} µs of the server's CPU time per message")
    print(f"with {DASHBOARDS}: {median(rates[DASHBOARDS]) / median(rates[0]):.1%} of the rate without")


@asynccontextmanager
async def watching(port: int, many: int) -> AsyncIterator[None]:
    watchers = [asyncio.create_task(each(port)) for _ in range(many) for each in (follow, refresh)]
    await asyncio.sleep(1.0)
    yield
    for watcher in watchers:
        watcher.cancel()
    await asyncio.gather(*watchers, return_exceptions=True)


async def follow(port: int) -> None:
    async with connect(f"ws://127.0.0.1:{port}/ws/dashboard?digest=true") as socket:
        async for _ in socket:
            pass


async def refresh(port: int) -> None:
    connection = await Connection.open(port)
    while True:
        await connection.request(b"GET", OVERVIEW)
        await asyncio.sleep(REFRESH_S)


if __name__ == "__main__":
    main()
