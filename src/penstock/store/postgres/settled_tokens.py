"""Remembers for some minutes which tokens settled which messages, so that a repeated request gets the same result."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.commands import Settled, SettleItem
from penstock.core.ids import ID_MAX
from penstock.postgres.pipeline import blobs, ints
from penstock.store.common import SETTLED_MINUTES, settled_since, token_bytes
from penstock.store.postgres.queues import PostgresQueue
from penstock.store.postgres.settlement import EndedLease
from penstock.store.postgres.transaction import PostgresTransaction

# Queue, message and token.
Key = tuple[int, int, bytes]


def remember(tx: PostgresTransaction, queue_id: int, leases: Sequence[EndedLease], hows: Sequence[int]) -> None:
    """Store how the tokens of these leases settled their messages, so that a repeat gets the same result."""
    if leases:
        tx.write(
            "settle.remember",
            tx.now // 60_000,
            ints([queue_id] * len(leases)),
            ints(hows),
            blobs([lease.token for lease in leases]),
            ints(lease.id for lease in leases),
        )


def forget_settled(tx: PostgresTransaction, limit: int) -> bool:
    """Delete old rows about settled tokens. Return True if there may be more.

    Starts after the rows deleted before, whose index entries a long-lived snapshot may still keep.
    """
    context = tx.context
    before = tx.now // 60_000 - SETTLED_MINUTES - 1
    if before == context.settled_from:
        return False
    if before < context.settled_from:
        context.settled_from = 0  # The clock was set back.
    more = len(tx.fetch("settle.forget_settled", context.settled_from, before, limit)) == limit
    if not more:
        context.settled_from = before
    return more


def token_key(queue: PostgresQueue, item: SettleItem) -> Key:
    return queue.id, item.id, b"" if item.token is None else token_bytes(item.token)


def find_settled(
    tx: PostgresTransaction, missing: Sequence[tuple[PostgresQueue, SettleItem]]
) -> tuple[dict[Key, int], dict[tuple[int, int], Settled]]:
    """Return how the tokens of items without a lease settled them in the last minutes, and else why they failed.

    The reason is a lease that has ended, or a message that does not exist.
    """
    why = {(queue.id, item.id): Settled.UNKNOWN for queue, item in missing}
    row_keys: dict[int, tuple[int, int]] = {}
    keys: list[Key] = []
    for queue, item in missing:
        if 0 < item.id <= ID_MAX:
            keys.append(token_key(queue, item))
            for plain in (True, False):
                row_keys[queue.row_key(item.id, plain=plain)] = (queue.id, item.id)
    if not keys:
        return {}, why
    queue_ids, ids, tokens = zip(*keys, strict=True)
    known, recalled = tx.fetch_all(
        ("settle.known", ints(row_keys)),
        ("settle.recall", ints(queue_ids), ints(ids), blobs(tokens), *settled_since(tx.now)),
    )
    for (row_key,) in known:
        why[row_keys[row_key]] = Settled.STALE
    before = {(queue_id, message_id, token): how for queue_id, message_id, token, how in recalled}
    return {} if tx.fenced else before, why
