"""The cells: one axis grows at a time, and the others keep their base value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

BATCHES = (10, 100)
RATIO_MAX = 1.3
# Axes that have no target: the bytes themselves cost time.
WITHOUT_TARGET = ("payload_bytes",)


@dataclass(frozen=True)
class Cell:
    clients: int = 8
    queues: int = 1
    payload_bytes: int = 200
    backlog: int = 1_000


@dataclass(frozen=True)
class Plan:
    axes: dict[str, tuple[int, ...]]
    seconds: float
    rounds: int

    def cells(self) -> list[Cell]:
        """All cells, each once: the base belongs to several axes."""
        found = [cell_of(axis, value) for axis, values in self.axes.items() for value in values]
        return list(dict.fromkeys(found))


def cell_of(axis: str, value: int) -> Cell:
    changed: dict[str, Any] = {axis: value}
    return replace(Cell(), **changed)


DEFAULT = Plan(
    {
        "clients": (1, 8, 64),
        "queues": (1, 100, 10_000),
        "payload_bytes": (100, 1_000, 10_000, 100_000),
        "backlog": (1_000, 100_000, 5_000_000),
    },
    seconds=2,
    rounds=3,
)
QUICK = Plan(
    {
        "clients": (1, 8, 64),
        "queues": (1, 100, 1_000),
        "payload_bytes": (100, 1_000, 10_000),
        "backlog": (1_000, 100_000),
    },
    seconds=1,
    rounds=1,
)
