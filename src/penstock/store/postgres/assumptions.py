"""Decides which batches begin with cached queues, which saves the round trip that loads them.

The database verifies what was assumed. If it differs, the batch runs again with loaded queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.core.commands import Command, Push
from penstock.core.model import QueueOptions, decode_options
from penstock.store.postgres.context import KnownQueue, StoreContext
from penstock.store.postgres.transaction import Needs

# SQLSTATE of a wrong assumption.
WRONG = "PS001"
# How often pushes load their queue all the same, to move due messages and expired leases.
CHECK_MS = 1_000


def assumed(context: StoreContext, commands: Sequence[Command[Any]], needs: Needs) -> list[KnownQueue] | None:
    """Return the cached queues that the batch may begin with, or None if it has to load them."""
    if not all(type(command) is Push for command in commands):
        return None
    now = context.now()
    found: dict[str, KnownQueue] = {}
    for name in needs:
        queue = context.known.get(name)
        if queue is None or abs(now - queue.checked_at) >= CHECK_MS or not _takes_pushes(decode_options(queue.options)):
            return None
        found[name] = queue
    return list(found.values()) if all(map(_needs_nothing, commands)) else None


def _takes_pushes(options: QueueOptions) -> bool:
    """Return True if a push depends neither on the number of messages nor on the exact time."""
    return options.max_size is None and options.push_rate is None and not options.delay_ms


def _needs_nothing(command: Any) -> bool:
    if command.request_key is not None:
        return False
    return all(message.key is None and not message.delay_ms for message in command.messages)
