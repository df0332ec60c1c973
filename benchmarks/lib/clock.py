"""Times one system: the messages per second that it moves in one short round.

A round ends after a fixed time, not a fixed count. Refilling and cleanup happen between the phases of a round and are
not timed, so that a round measures only the operation.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

from .systems import Durability, System

Operation = Literal["push", "pop+ack", "cycle"]
MESSAGE_BYTES = 200
WAITING_SMALL = 1_000
MOST_ELAPSED = 4


@dataclass(frozen=True)
class Cell:
    """One cell of the comparison, which is the same for every system."""

    operation: Operation
    batch: int
    threads: int
    durability: Durability


def payloads(count: int) -> list[bytes]:
    source = random.Random(200)
    return [source.randbytes(MESSAGE_BYTES // 2).hex().encode() for _ in range(count)]


@contextmanager
def folder_in(root: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def round_per_s(system: type[System], root: Path, cell: Cell, seconds: float) -> float:
    """Measure messages per second in a fresh folder with a small backlog."""
    with folder_in(root) as folder:
        count = 1 if system.shared_by_threads else cell.threads
        handles = [system(folder, cell.durability) for _ in range(count)]
        # Otherwise the first fsync of this round would also write the dirty pages of the previous one.
        os.sync()
        try:
            return _measure(handles, cell, seconds)
        finally:
            for handle in handles:
                handle.close()


def _measure(handles: list[System], cell: Cell, seconds: float) -> float:
    batch = payloads(cell.batch)
    refill = max(WAITING_SMALL, 2 * cell.threads * cell.batch)
    fill_batch = payloads(100)
    capped = cell.operation == "cycle" and handles[0].keeps_done
    cap = WAITING_SMALL // cell.threads if capped else None
    moved, spent = 0, 0.0
    # Refilling can take longer than the timed operation; then a shorter sample is accepted.
    abandon = perf_counter() + MOST_ELAPSED * seconds
    while spent < seconds and (not moved or perf_counter() < abandon):
        if cell.operation == "pop+ack":
            fill(handles[0], refill, fill_batch)
        steps = [step_of(handles[index % len(handles)], cell.operation, batch) for index in range(cell.threads)]
        count, took = phase(steps, seconds - spent, cap)
        if not count:
            raise RuntimeError("no message moved")
        moved, spent = moved + count, spent + took
        handles[0].tidy()
    return moved / spent


def step_of(handle: System, operation: Operation, batch: list[bytes]) -> Callable[[], int]:
    if operation == "push":
        return lambda: handle.push(batch)
    if operation == "pop+ack":
        return lambda: handle.pop_ack(len(batch))
    return lambda: handle.cycle(batch)


def fill(handle: System, count: int, batch: list[bytes]) -> None:
    while count > 0:
        count -= handle.push(batch[:count])


def phase(steps: list[Callable[[], int]], seconds: float, cap: int | None = None) -> tuple[int, float]:
    """Run each step in its own thread until the time is over, `cap` messages have moved, or the queue is empty."""
    if len(steps) == 1:
        start = perf_counter()
        moved = _repeat(steps[0], start + seconds, cap)
        return moved, perf_counter() - start
    return _phase_of_threads(steps, seconds, cap)


def _phase_of_threads(steps: list[Callable[[], int]], seconds: float, cap: int | None) -> tuple[int, float]:
    gate = threading.Barrier(len(steps) + 1)
    moved: list[int] = []
    problems: list[Exception] = []

    def run(step: Callable[[], int]) -> None:
        gate.wait()
        try:
            moved.append(_repeat(step, perf_counter() + seconds, cap))
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    gate.wait()
    start = perf_counter()
    for thread in threads:
        thread.join()
    took = perf_counter() - start
    if problems:
        raise problems[0]
    return sum(moved), took


def _repeat(step: Callable[[], int], deadline: float, cap: int | None) -> int:
    moved = 0
    while perf_counter() < deadline and (cap is None or moved < cap):
        count = step()
        if not count:
            break
        moved += count
    return moved
