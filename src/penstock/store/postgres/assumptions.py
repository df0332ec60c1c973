"""Decides which batches begin with cached queues, which saves the round trip that loads them.

The database verifies what was assumed. If it differs, the batch runs again with loaded queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.core.commands import Ack, Command, Push
from penstock.core.model import QueueOptions, decode_options
from penstock.store.postgres.context import KnownQueue, StoreContext
from penstock.store.postgres.recent_leases import RangePart
from penstock.store.postgres.transaction import Needs

# SQLSTATE of a wrong assumption.
WRONG = "PS001"
# How often pushes load their queue all the same, to move due messages and expired leases.
CHECK_MS = 1_000


class Assumptions(NamedTuple):
    queues: list[KnownQueue]
    parts: list[RangePart] | None = None
    """The leases that acks end."""


def assumed(context: StoreContext, commands: Sequence[Command[Any]], needs: Needs) -> Assumptions | None:
    """Return what the batch may begin with, or None if it has to load its queues."""
    kind = type(commands[0])
    if kind not in (Push, Ack) or any(type(command) is not kind for command in commands):
        return None
    known = context.known
    queues = [queue for name in needs if (queue := known.get(name)) is not None and not context.is_doubted(name)]
    if len(queues) < len(needs):
        return None
    return _pushes(context, commands, queues) if kind is Push else _acks(context, commands, queues)


def _pushes(context: StoreContext, commands: Sequence[Any], queues: list[KnownQueue]) -> Assumptions | None:
    now = context.now()
    for queue in queues:
        if abs(now - queue.checked_at) >= CHECK_MS or not _takes_pushes(decode_options(queue.options)):
            return None
    return Assumptions(queues) if all(map(_is_simple, commands)) else None


def _takes_pushes(options: QueueOptions) -> bool:
    """Return True if a push depends neither on the number of messages nor on the exact time."""
    return options.max_size is None and options.push_rate is None and not options.delay_ms


def _is_simple(command: Push) -> bool:
    if command.request_key is not None:
        return False
    return all(message.key is None and not message.delay_ms for message in command.messages)


def _acks(context: StoreContext, commands: Sequence[Any], queues: list[KnownQueue]) -> Assumptions | None:
    if any(decode_options(queue.options).archive_ms != 0 for queue in queues):
        return None
    parts = context.recent_leases.parts(commands, context.now())
    ids = {queue.id for queue in queues}
    # A queue that was dropped and made again has another id.
    return Assumptions(queues, parts) if parts and all(part.queue_id in ids for part in parts) else None
