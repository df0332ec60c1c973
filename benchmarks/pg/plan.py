"""The sizes of the default run and of the quick run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .base import System
from .systems import BY_KEY, SYSTEMS

SECTIONS = ("compare", "server", "fleet", "churn")


@dataclass(frozen=True)
class Plan:
    sections: tuple[str, ...] = SECTIONS
    systems: tuple[type[System], ...] = SYSTEMS
    clients: tuple[int, ...] = (1, 16, 100)
    batches: tuple[int, ...] = (1, 100)
    backlogs: tuple[int, ...] = (0, 1_000_000)
    rounds: int = 3
    seconds: float = 3.0
    served: tuple[tuple[int, int], ...] = ((100, 1), (16, 10), (100, 10), (16, 100))
    """The numbers of clients and batch sizes over HTTP."""
    held_messages: int = 1_000_000
    """The backlog at which memory is measured."""
    polls: int = 1_000
    """The number of long polls at two servers."""
    queues: int = 10_000
    """The number of queues in one namespace."""
    churned: int = 2_000_000


QUICK = Plan(
    clients=(1, 100),
    backlogs=(0, 20_000),
    rounds=1,
    seconds=1.5,
    served=((16, 10), (16, 100)),
    held_messages=50_000,
    polls=200,
    queues=500,
    churned=100_000,
)


def choose(plan: Plan, only: list[str]) -> Plan:
    """Keep only the named sections and systems; without names of a kind, keep all of that kind."""
    sections = tuple(name for name in SECTIONS if name in only) or plan.sections
    systems = tuple(BY_KEY[name] for name in BY_KEY if name in only) or plan.systems
    return replace(plan, sections=sections, systems=systems)
