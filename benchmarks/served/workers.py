"""Measures worker loops: messages per second that workers with their own connections handle one by one.

The messages are pushed before the clock starts. A window of the steady state is counted, as for the other operations;
it ends early if the backlog is too small for it.
"""

from __future__ import annotations

import asyncio
import os
from time import perf_counter
from typing import Any

from lib.scenarios import say, turns
from peers import Peer
from peers.base import Worker, close_all

from .cells import rounded, settle, texts
from .load import Load, Measured, Meter, Window, fill
from .plan import Plan

Row = dict[str, Any]
OPERATION = "worker loop"
FILLERS = 8
FILL_BATCH = 100
# A system that syncs each message separately takes long to fill, but also acks slowly, so fewer messages are enough.
MOST_FILL_S = 15.0
MOST_VISIT_S = 90
# The window ends before the last messages, which one worker may hold while the others find none.
COUNTED_SHARE = 0.9


class WorkerLoad(Load):
    """Run every worker until the window is over."""

    def __init__(self, workers: list[Worker], waiting: int) -> None:
        super().__init__([], "pop+ack", [])
        self.workers, self.waiting = workers, waiting

    def moved(self) -> int:
        return sum(worker.count() for worker in self.workers)

    async def run(self, window: Window, peer: Peer) -> Measured:
        tasks = [asyncio.create_task(self._work(worker)) for worker in self.workers]
        try:
            return await self._window(window, peer)
        finally:
            for worker in self.workers:
                worker.stop()
            await self._end(tasks)

    async def _work(self, worker: Worker) -> None:
        try:
            await worker.run()
        finally:
            self.over.set()

    async def _window(self, window: Window, peer: Peer) -> Measured:
        warm, last = self.waiting // 5, int(self.waiting * COUNTED_SHARE)
        await self._look(perf_counter() + window.warm_s, lambda: self.moved() >= warm)
        meter = Meter(self, peer)
        await self._look(meter.opened + window.seconds, lambda: self.moved() >= last)
        return meter.read(perf_counter())


async def workers(plan: Plan, systems: list[Peer]) -> list[Row]:
    rows: list[Row] = []
    systems = [system for system in systems if system.worker_form]
    for count in plan.workers:
        say(f"worker loop: {count} workers")
        part: dict[str, Row] = {
            system.key: {"system": system.key, "operation": OPERATION, "clients": count, "rounds": []}
            for system in systems
        }
        for system in turns(systems, plan.rounds):
            await _turn(plan, system, part[system.key])
        rows += [settle(row) for row in part.values()]
    return rows


async def _turn(plan: Plan, system: Peer, row: Row) -> None:
    if "error" in row:
        return
    try:
        async with asyncio.timeout(MOST_VISIT_S):
            measured = await visit(plan, system, row["clients"])
        row["rounds"].append(rounded(measured))
        say(f"  {system.label}: {measured.per_s:,.0f}")
        if not system.keeps_running:
            system.stop()
    except Exception as problem:
        row["error"] = f"{type(problem).__name__}: {problem}"
        say(f"  {system.label}: {row['error']}")
        system.stop()


async def visit(plan: Plan, system: Peer, count: int) -> Measured:
    await system.fresh()
    await system.create("work")
    fillers = await system.connect("work", FILLERS)
    try:
        await fill(fillers, texts(FILL_BATCH), plan.waiting, most_s=MOST_FILL_S)
        waiting = sum(filler.pushed for filler in fillers)
    finally:
        await close_all(fillers)
    await asyncio.to_thread(os.sync)
    hired = await system.hire("work", count)
    try:
        return await WorkerLoad(hired, waiting).run(plan.window, system)
    finally:
        await close_all(hired)
        await system.drop("work")
