"""Runs clients for minutes without faults, and checks that memory, open files and latency stay flat."""

from __future__ import annotations

import random
import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from msgspec import Struct

from tests.crash.workers import now_ms
from tests.proof.checker import DRAIN, Verdict
from tests.proof.clients import LEASE_MS, PLACES, prepare
from tests.proof.fault_run import settle, start_clients
from tests.proof.faults import Faults
from tests.proof.history import History, Recorder
from tests.proof.world import WORLDS, World

WINDOW_SECONDS = 5
# The server remembers requests and append keys for 15 minutes. Afterwards as many expire as are added.
SETTLED_SECONDS = 16 * 60
GROWTH_MAX = 1.15
GROWTH_MIB_MAX = 12
FILES_MORE_MAX = 8
LATENCY_GROWTH_MAX, LATENCY_MORE_MS_MAX = 2.0, 5.0


class Sample(Struct):
    at: float
    """The time in seconds since 1970."""
    memory_mib: float
    """The resident memory of all servers together."""
    files: int
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    calls_per_s: float = 0.0


@dataclass
class Soak:
    store: str
    verdict: Verdict
    samples: list[Sample]
    seconds: float
    violations: list[str] = field(default_factory=list)


def run(store: str, seed: int, folder: Path, seconds: float) -> Soak:
    chance = random.Random(seed)
    world: World = WORLDS[store](folder / "world", chance, faulty=False)
    recorder = Recorder(History(store, seed, LEASE_MS, dict(PLACES)))
    samples: list[Sample] = []
    try:
        prepare(world.servers[0].url)
        stop = threading.Event()
        clients = start_clients(world, recorder, chance, stop)
        begun = time.monotonic()
        while time.monotonic() < begun + seconds:
            time.sleep(min(WINDOW_SECONDS, seconds / 8))
            samples.append(_sample(world))
        verdict = settle(world, Faults(world, recorder, chance), clients, stop)
    finally:
        world.close()
    _add_latencies(samples, recorder.history)
    return Soak(store, verdict, samples, seconds, verdict.violations + judge(samples))


def _sample(world: World) -> Sample:
    servers = [psutil.Process(server.pid) for server in world.servers]
    return Sample(
        now_ms() / 1000,
        sum(server.memory_info().rss for server in servers) / 2**20,
        sum(server.num_fds() for server in servers),
    )


def _add_latencies(samples: list[Sample], history: History) -> None:
    # A lease may wait for messages, so its duration does not show how fast the server is.
    ops = [op for op in history.ops if op.outcome == "ok" and op.client != DRAIN and op.verb != "lease"]
    ops.sort(key=lambda op: op.ended)
    at, since = 0, ops[0].ended / 1000 if ops else 0.0
    for sample in samples:
        took = []
        while at < len(ops) and ops[at].ended <= sample.at * 1000:
            took.append(ops[at].ended - ops[at].began)
            at += 1
        if took:
            took.sort()
            sample.p50_ms, sample.p99_ms = took[len(took) // 2], took[len(took) * 99 // 100]
            sample.calls_per_s = round(len(took) / max(0.001, sample.at - since), 1)
        since = sample.at


def judge(samples: list[Sample]) -> list[str]:
    """Compare the last quarter of the samples with the second, when everything has been loaded.

    In a long run, compare it with the first quarter after `SETTLED_SECONDS`.
    """
    quarter = len(samples) // 4
    if not quarter:
        return ["too few samples to judge"]
    settled = [sample for sample in samples if sample.at - samples[0].at >= SETTLED_SECONDS]
    if len(settled) >= quarter:
        samples, quarter = settled, len(settled) // 4
        early, late = samples[:quarter], samples[-quarter:]
    else:
        early, late = samples[quarter : 2 * quarter], samples[-quarter:]

    def both(name: str) -> tuple[float, float]:
        return tuple(statistics.median(getattr(sample, name) for sample in part) for part in (early, late))  # type: ignore[return-value]

    violations = []
    before, after = both("memory_mib")
    if after > before * GROWTH_MAX and after > before + GROWTH_MIB_MAX:
        violations.append(f"memory grew from {before:.0f} to {after:.0f} MiB")
    before, after = both("files")
    if after > before + FILES_MORE_MAX:
        violations.append(f"open files grew from {before:.0f} to {after:.0f}")
    before, after = both("p50_ms")
    if after > before * LATENCY_GROWTH_MAX and after > before + LATENCY_MORE_MS_MAX:
        violations.append(f"latency grew from {before:.0f} to {after:.0f} ms")
    return violations
