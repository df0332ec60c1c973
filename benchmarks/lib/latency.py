"""Measures the time of a pop in several queues that take turns pop by pop.

Only the pop is timed. An ack and a push that replaces the popped messages follow it, so that every queue keeps its
size.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter_ns
from typing import Any

from .clock import payloads
from .plan import Plan
from .systems import Durability, Penstock

WARM_UP = 20


@dataclass(frozen=True)
class Queue:
    name: str
    waiting: int
    folder: Path


def pop_costs(queues: list[Queue], durability: Durability, count: int, plan: Plan) -> list[dict[str, Any]]:
    handles = {queue: Penstock(queue.folder, durability) for queue in queues}
    batch = payloads(count)
    rounds: dict[Queue, list[list[float]]] = {queue: [] for queue in queues}
    try:
        _pops(handles, batch, WARM_UP)
        for _ in range(plan.rounds):
            for queue, samples in _pops(handles, batch, plan.pops).items():
                rounds[queue].append(samples)
    finally:
        for handle in handles.values():
            handle.close()
    return [_row(queue, durability, count, samples) for queue, samples in rounds.items()]


def _pops(handles: dict[Queue, Penstock], batch: list[bytes], times: int) -> dict[Queue, list[float]]:
    samples: dict[Queue, list[float]] = {queue: [] for queue in handles}
    order = list(handles.items())
    gc.collect()
    gc.disable()
    try:
        for _ in range(times):
            order.append(order.pop(0))
            for queue, handle in order:
                samples[queue].append(_pop_us(handle, batch))
    finally:
        gc.enable()
    return samples


def _pop_us(handle: Penstock, batch: list[bytes]) -> float:
    queue = handle.queue
    if len(batch) == 1:
        start = perf_counter_ns()
        message = queue.pop()
        took = perf_counter_ns() - start
        messages = [] if message is None else [message]
    else:
        start = perf_counter_ns()
        messages = queue.pop_many(len(batch))
        took = perf_counter_ns() - start
    if len(messages) != len(batch):
        raise RuntimeError(f"popped {len(messages)} of {len(batch)}")
    queue.ack_many(messages)
    handle.push(batch)
    return took / 1000


def _row(queue: Queue, durability: Durability, count: int, rounds: list[list[float]]) -> dict[str, Any]:
    pooled = [sample for samples in rounds for sample in samples]
    return {
        "system": "penstock",
        "operation": "pop",
        "queue": queue.name,
        "waiting": queue.waiting,
        "durability": durability,
        "batch": count,
        "unit": "µs",
        "samples": len(pooled),
        "rounds": [round(median(samples), 1) for samples in rounds],
        "median": round(median(pooled), 1),
        "p99": round(quantiles(pooled, n=100)[98], 1),
    }
