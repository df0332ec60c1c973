"""Sorts a batch so that commands of one kind and queue are adjacent, and a store can execute them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.core.commands import Ack, Command, Lease, Push

T = TypeVar("T")

# Acks first, as they make room for pushes; leases last, as they may take what was pushed.
RANKS: dict[type[Command[Any]], int] = {Ack: 0, Push: 1, Lease: 2}


def group_compatible(batch: Sequence[T], command_of: Callable[[T], Command[Any]]) -> Sequence[T]:
    """Return the batch with acks, pushes and leases grouped by kind and queue.

    Their callers are all still waiting, so the order between kinds is free; commands of one kind keep theirs. Any other
    command stays between those that came before it and those that came after.
    """
    if len(batch) < 3:
        return batch
    kinds = {(type(command), getattr(command, "queue", None)) for command in map(command_of, batch)}
    if len(kinds) == 1:
        return batch
    section = 0
    keys = []
    for number, each in enumerate(batch):
        command = command_of(each)
        rank = RANKS.get(type(command))
        if rank is None:
            section += 1
            keys.append((section, 0, "", number))
            section += 1
        else:
            keys.append((section, rank, command.queue or "", number))  # type: ignore[attr-defined]
    keys.sort()
    return [batch[key[3]] for key in keys]
