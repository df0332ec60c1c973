"""The four scenarios. Within each, the systems take turns round by round, in rotating order.

Each scenario returns plain rows for the report. If a system fails in a cell, its row has an `error` instead of a
median, and the run continues.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, TypeVar

from .clock import WAITING_SMALL, Cell, Operation, fill, folder_in, payloads, phase, round_per_s, step_of
from .files import Backlog
from .latency import Queue, pop_costs
from .plan import Plan
from .systems import Durability, Penstock, System

Row = dict[str, Any]
Turn = TypeVar("Turn")
SLOW_ROUNDS = 8
DURABILITIES: tuple[Durability, ...] = ("full", "relaxed")
OPERATIONS: tuple[Operation, ...] = ("push", "pop+ack", "cycle")
MEMORY_SCRIPT = Path(__file__).parent / "memory.py"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def turns(subjects: list[Turn], rounds: int) -> Iterator[Turn]:
    """Yield every subject once per round, in rotating order."""
    for number in range(rounds):
        shift = number % len(subjects) if subjects else 0
        yield from subjects[shift:] + subjects[:shift]


def attempt(row: Row, seconds: float, measure: Callable[[], float]) -> None:
    """Add a round to the row, unless the row has failed or a single call takes as long as many rounds."""
    if "error" in row or "slow" in row:
        return
    begun = monotonic()
    try:
        row["rounds"].append(round(measure(), 1))
        if monotonic() - begun > SLOW_ROUNDS * seconds:
            row["slow"] = True
    except Exception as problem:
        row["error"] = f"{type(problem).__name__}: {problem}"
        say(f"  {row['system']}: {row['error']}")


def settle(rows: list[Row]) -> list[Row]:
    for row in rows:
        row["median"] = None if "error" in row else round(median(row["rounds"]), 1)
    return rows


def throughput(plan: Plan, root: Path) -> list[Row]:
    rows: list[Row] = []
    cells = [
        Cell(operation, batch, threads, durability)
        for durability, threads, operation, batch in product(DURABILITIES, plan.threads, OPERATIONS, plan.batches)
    ]
    for number, cell in enumerate(cells, 1):
        say(f"throughput {number}/{len(cells)}: {cell}")
        rows += settle(_throughput_cell(plan, root, cell))
    return rows


def _throughput_cell(plan: Plan, root: Path, cell: Cell) -> list[Row]:
    rows = {system: {"system": system.key, **vars(cell), "unit": "msg/s", "rounds": []} for system in plan.systems}
    for system in turns(list(plan.systems), plan.rounds):
        attempt(rows[system], plan.round_s, partial(round_per_s, system, root, cell, plan.round_s))
    return list(rows.values())


def backlog(plan: Plan, files: Backlog) -> list[Row]:
    subjects = list(_backlog_subjects(plan, files))
    rows: list[Row] = []
    try:
        for batch in plan.batches:
            say(f"backlog: pop+ack of {batch}")
            fresh = [_backlog_row(handle, waiting, batch) for handle, waiting in subjects]
            paired = list(zip(subjects, fresh, strict=True))
            for (handle, _), row in turns(paired, plan.rounds):
                attempt(row, plan.round_s, partial(_pop_at, handle, batch, plan.round_s))
            rows += settle(fresh)
    finally:
        for handle, _ in subjects:
            handle.close()
    return rows


def _backlog_subjects(plan: Plan, files: Backlog) -> Iterator[tuple[System, int]]:
    for system in plan.systems:
        if system.kind == "limit":
            continue
        ours = system is Penstock
        for waiting in plan.backlogs if ours else plan.peer_backlogs:
            say(f"backlog: {system.label} with {waiting:,} waiting")
            yield system(files.waiting(system, waiting), "full"), waiting


def _backlog_row(handle: System, waiting: int, batch: int) -> Row:
    return {
        "system": handle.key,
        "operation": "pop+ack",
        "batch": batch,
        "threads": 1,
        "durability": "full",
        "backlog": waiting,
        "unit": "msg/s",
        "rounds": [],
    }


def _pop_at(handle: System, batch: int, seconds: float) -> float:
    step = step_of(handle, "pop+ack", payloads(batch))
    refill = payloads(100)
    moved, spent = 0, 0.0
    os.sync()
    while spent < seconds:
        count, took = phase([step], seconds - spent, cap=WAITING_SMALL // 2)
        if not count:
            raise RuntimeError("no message moved")
        moved, spent = moved + count, spent + took
        handle.tidy()
        fill(handle, count, refill)
    return moved / spent


def state(plan: Plan, files: Backlog) -> list[Row]:
    """Measure the time of a pop with a small backlog, a large one, and a large one plus many other messages."""
    big = plan.backlogs[-1]
    crowded = f"{big:,} waiting, {plan.beside:,} each delayed, leased, dead"
    queues = [
        Queue(f"{plan.small:,} waiting", plan.small, files.waiting(Penstock, plan.small)),
        Queue(f"{big:,} waiting", big, files.waiting(Penstock, big)),
        Queue(crowded, big, files.crowded(big, plan.beside)),
    ]
    rows: list[Row] = []
    for durability, count in product(DURABILITIES, (1, 10)):
        say(f"state: pop of {count}, {durability}")
        rows += pop_costs(queues, durability, count, plan)
    return rows


def memory(plan: Plan, root: Path) -> Row:
    say(f"memory: a fresh process pushes {plan.memory_messages:,}")
    with folder_in(root) as folder:
        command = [sys.executable, str(MEMORY_SCRIPT), str(folder / "queue.db"), str(plan.memory_messages)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    row: Row = json.loads(answer)
    return row
