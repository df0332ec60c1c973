"""The order of a batch: alike commands side by side, so that a store can carry them out with few statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.core.commands import Ack, Command, Lease, Push

T = TypeVar("T")

RANKS: dict[type[Command[Any]], int] = {Ack: 0, Push: 1, Lease: 2}
"""Acks make room for pushes, and pushes bring what is leased."""


def arranged(batch: Sequence[T], command_of: Callable[[T], Command[Any]]) -> Sequence[T]:
    """None of those who wait has been answered, so acks, pushes and leases may change places; like ones never do.

    Any other command stays where it is, between what came before it and what came after.
    """
    if len(batch) < 3:
        return batch
    kinds = {(type(command), getattr(command, "queue", None)) for command in map(command_of, batch)}
    if len(kinds) == 1:
        return batch
    stretch = 0
    keys = []
    for number, each in enumerate(batch):
        command = command_of(each)
        rank = RANKS.get(type(command))
        if rank is None:
            stretch += 1
            keys.append((stretch, 0, "", number))
            stretch += 1
        else:
            keys.append((stretch, rank, command.queue or "", number))  # type: ignore[attr-defined]
    keys.sort()
    return [batch[key[3]] for key in keys]
