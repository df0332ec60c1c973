"""The sizes of the default run and of the quick run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .limits import RawFile, RawSqlite
from .systems import Diskcache, Huey, Litequeue, Penstock, PersistQueue, System

SYSTEMS: list[type[System]] = [Penstock, Litequeue, PersistQueue, Huey, Diskcache, RawFile, RawSqlite]
SECTIONS = ("throughput", "backlog", "state", "memory")


@dataclass(frozen=True)
class Plan:
    sections: tuple[str, ...] = SECTIONS
    systems: tuple[type[System], ...] = tuple(SYSTEMS)
    rounds: int = 5
    round_s: float = 0.5
    batches: tuple[int, ...] = (1, 10, 100)
    threads: tuple[int, ...] = (1, 8)
    small: int = 1_000
    backlogs: tuple[int, ...] = (1_000, 100_000, 1_000_000, 5_000_000)
    peer_backlogs: tuple[int, ...] = (1_000, 100_000)
    beside: int = 1_000_000
    pops: int = 200
    memory_messages: int = 1_000_000
    free_bytes: int = 8 * 10**9


DEFAULT = Plan()
QUICK = replace(
    DEFAULT,
    rounds=2,
    round_s=0.1,
    backlogs=(1_000, 20_000, 100_000, 400_000),
    peer_backlogs=(1_000, 20_000),
    beside=50_000,
    pops=100,
    memory_messages=200_000,
    free_bytes=10**9,
)


def choose(plan: Plan, only: list[str]) -> Plan:
    """Keep only the named sections and systems; without names of a kind, keep all of that kind."""
    sections = tuple(name for name in plan.sections if name in only)
    systems = tuple(system for system in plan.systems if system.key in only)
    return replace(plan, sections=sections or plan.sections, systems=systems or plan.systems)
