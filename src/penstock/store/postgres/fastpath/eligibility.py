"""Selects batches for the fast path: plain commands of one kind, for a few cached queues."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.core.commands import Ack, Command, Lease, Push
from penstock.core.ids import ID_MAX
from penstock.store.common import TOKEN_BYTES
from penstock.store.postgres.context import CachedQueue, StoreContext
from penstock.store.postgres.fastpath.calls import AckCall, FastBatch, LeaseCall, PushCall
from penstock.store.postgres.transaction import home

# Queues in one batch, each of which is a call. Beyond that, joined statements cost less.
QUEUES_MAX = 8


def plan(context: StoreContext, commands: Sequence[Command[Any]]) -> FastBatch | None:
    """Return the batch as fast-path calls, or None if it needs a normal transaction."""
    kind = type(commands[0])
    found = PLANS.get(kind)
    if found is None or context.journals:
        return None
    call_type, allows, is_plain = found
    calls: dict[str | None, Any] = {}
    for position, command in enumerate(commands):
        if type(command) is not kind:
            return None
        call = calls.get(command.queue)  # type: ignore[attr-defined]
        if call is None:
            known = context.known.get(home(command.queue or ""))  # type: ignore[attr-defined]
            if known is None or len(calls) == QUEUES_MAX or not allows(context, known):
                return None
            call = calls[command.queue] = call_type(context, known)  # type: ignore[attr-defined]
        if not is_plain(call.known, command):
            return None
        call.positions.append(position)
        call.commands.append(command)
    if kind is Ack and not _has_distinct_ids(commands):
        return None
    return FastBatch(list(calls.values()), len(commands))


def _may_push(context: StoreContext, known: CachedQueue) -> bool:
    options = known.options
    return not options.delay_ms and options.ttl_ms is None and options.max_size is None and options.push_rate is None


def _is_plain_push(known: CachedQueue, command: Push) -> bool:
    if command.request_key is not None or not command.messages:
        return False
    for message in command.messages:
        if message.priority or message.delay_ms or message.ttl_ms is not None or message.key is not None:
            return False
    return True


def _may_lease(context: StoreContext, known: CachedQueue) -> bool:
    options = known.options
    is_blocked = time.monotonic() < context.no_fastpath_until.get(known.id, 0.0)
    is_blocked = is_blocked or context.lease_checks.is_due(known.id, context.now())
    return not options.window_ms and options.max_in_flight is None and not is_blocked


def _is_plain_lease(known: CachedQueue, command: Lease) -> bool:
    return command.queue == known.name


def _may_ack(context: StoreContext, known: CachedQueue) -> bool:
    return known.options.archive_ms == 0


def _is_plain_ack(known: CachedQueue, command: Ack) -> bool:
    for item in command.items:
        if item.token is None or len(item.token) != 2 * TOKEN_BYTES or not 0 < item.id <= ID_MAX:
            return False
    return bool(command.items)


def _has_distinct_ids(commands: Sequence[Any]) -> bool:
    """Return True if no message occurs twice."""
    ids = [item.id for command in commands for item in command.items]
    return len(set(ids)) == len(ids)


# For each kind: its call, a check of the queue, and a check of the command.
PLANS: dict[
    type[Command[Any]],
    tuple[type[Any], Callable[[StoreContext, CachedQueue], bool], Callable[[CachedQueue, Any], bool]],
] = {
    Push: (PushCall, _may_push, _is_plain_push),
    Lease: (LeaseCall, _may_lease, _is_plain_lease),
    Ack: (AckCall, _may_ack, _is_plain_ack),
}
