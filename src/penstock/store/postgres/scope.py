"""Leases from all queues of a namespace or task, reading only queues that may hold messages."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from penstock.core.commands import Lease, Leased
from penstock.core.model import Delivery
from penstock.postgres.pipeline import ints
from penstock.store.postgres.busy_queues import forget_idle, has_messages
from penstock.store.postgres.lease import allowed, lease_share, read_heads, why_not, write_leases
from penstock.store.postgres.queues import PostgresQueue
from penstock.store.postgres.transaction import LEASE, WHOLE, PostgresTransaction
from penstock.store.postgres.transitions import advance, check_far_leases, wakes

Age = tuple[int, int]


def lease_scope(tx: PostgresTransaction, command: Lease, scope: str) -> Leased:
    """Lease by queue priority, then from the queue whose next message is oldest."""
    tx.write_counters()
    names, idle = has_messages(
        tx, [(name, id_) for name, id_ in tx.fetch("lease.busy_in_scope", scope + "/", scope + "0")]
    )
    leased = _lease_from(tx, command, names) if names else Leased([])
    forget_idle(tx, idle)
    return leased


def _lease_from(tx: PostgresTransaction, command: Lease, names: list[str]) -> Leased:
    # Read without the lease locks first, so that idle queues never cause a wait.
    tx.enter_also(dict.fromkeys(names, WHOLE))
    check_far_leases(tx, [queue for name in names if (queue := tx.find(name)) is not None])
    open_queues: list[PostgresQueue] = []
    times: list[int] = []
    more = False
    for name in names:
        queue = tx.find(name)
        if queue is None:
            continue
        blocked = why_not(tx, queue, advance(tx, queue).more)
        if blocked is None:
            open_queues.append(queue)
            continue
        more |= blocked.more
        times += [] if blocked.wake_at is None else [blocked.wake_at]
    if more:
        return Leased([], more=True)
    order = _shares(tx, open_queues, command.limit)
    if not order:
        times += [at for at in wakes(tx, open_queues).values() if at is not None]
        return Leased([], wake_at=min(times, default=None))
    messages = _lease_shares(tx, order, command)
    # Another consumer may have taken them since they were read; then there may be others.
    return Leased(messages, more=not messages)


def _shares(tx: PostgresTransaction, queues: Iterable[PostgresQueue], limit: int) -> list[str]:
    """Return the queue of each of the next messages."""
    by_rank: dict[int, list[PostgresQueue]] = {}
    for queue in queues:
        by_rank.setdefault(-queue.options.priority, []).append(queue)
    order: list[str] = []
    for rank in sorted(by_rank):
        order += _oldest(tx, by_rank[rank], limit - len(order))
        if len(order) >= limit:
            break
    return order


def _oldest(tx: PostgresTransaction, queues: list[PostgresQueue], limit: int) -> list[str]:
    """Merge the heads of queues of one priority by age."""
    wanted = {queue.id: allowed(queue, limit) for queue in queues}
    wanted = {queue_id: count for queue_id, count in wanted.items() if count}
    found: dict[int, list[tuple[int, int, int]]] = {}
    tx.write_counters()
    for queue_id, *head in tx.fetch("lease.heads", ints(wanted), ints(wanted.values())):
        found.setdefault(queue_id, []).append(tuple(head))
    heads: list[tuple[list[Age], str]] = []
    for queue in queues:
        ages = [(at, message_id) for _, at, message_id in sorted(found.get(queue.id, []))[: wanted.get(queue.id, 0)]]
        if ages:
            heads.append((ages, queue.name))
    heap = [(ages[0], number, 0) for number, (ages, _) in enumerate(heads)]
    heapq.heapify(heap)
    order: list[str] = []
    while heap and len(order) < limit:
        _, number, taken = heap[0]
        ages, name = heads[number]
        order.append(name)
        if taken + 1 < len(ages):
            heapq.heapreplace(heap, (ages[taken + 1], number, taken + 1))
        else:
            heapq.heappop(heap)
    return order


def _lease_shares(tx: PostgresTransaction, order: list[str], command: Lease) -> list[Delivery]:
    tx.enter_also(dict.fromkeys(order, WHOLE | LEASE))
    shares: dict[str, list[Delivery]] = {}
    all_heads = []
    for name in dict.fromkeys(order):
        queue = tx.find(name)
        if queue is None or tx.room.is_full:
            continue
        mine = Lease(queue=name, limit=order.count(name), lease_ms=command.lease_ms, worker=command.worker)
        heads = read_heads(tx, queue, mine.limit)
        shares[name] = lease_share(tx, heads, mine)[::-1]
        all_heads.append(heads)
    write_leases(tx, all_heads)
    return [shares[name].pop() for name in order if shares.get(name)]
