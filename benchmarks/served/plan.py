"""The sizes of the default run and of the quick run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from peers import PEERS, Peer

from .load import Window

SECTIONS = ("compare", "workers", "promises")
WINDOW = Window(seconds=1.5, warm_s=0.3)
PROMISE_WINDOW = Window(seconds=3.0, warm_s=0.5)


@dataclass(frozen=True)
class Plan:
    sections: tuple[str, ...] = SECTIONS
    systems: tuple[type[Peer], ...] = tuple(PEERS)
    rounds: int = 3
    window: Window = WINDOW
    clients: tuple[int, ...] = (1, 8, 64)
    batches: tuple[int, ...] = (1, 100)
    workers: tuple[int, ...] = (1, 8)
    waiting: int = 60_000  # backlog for the workers
    promise_window: Window = PROMISE_WINDOW
    promise_rounds: int = 3
    long_polls: int = 300
    idle_polls: int = 1_000
    small: int = 1_000
    big: int = 1_000_000
    profile_s: int = 4


DEFAULT = Plan()
QUICK = replace(
    DEFAULT,
    rounds=1,
    window=Window(seconds=0.7, warm_s=0.15),
    waiting=20_000,
    promise_window=Window(seconds=1.0, warm_s=0.2),
    promise_rounds=1,
    long_polls=100,
    big=100_000,
    profile_s=2,
)


def choose(plan: Plan, only: list[str]) -> Plan:
    """Keep only the named sections and systems; without names of a kind, keep all of that kind."""
    sections = tuple(name for name in plan.sections if name in only)
    systems = tuple(system for system in plan.systems if system.key in only)
    return replace(plan, sections=sections or plan.sections, systems=systems or plan.systems)
