"""Dead-letter queues: `<queue>.dlq`, and another queue named by the option `dlq`.

A dead letter that moves to another queue is a new message there. Reserved headers store its origin, so that it can be
redriven.
"""

from __future__ import annotations

import msgspec

from penstock.core.commands import MoveItem
from penstock.core.ids import DLQ_SUFFIX
from penstock.core.model import PushItem, QueueInfo, QueueStats, StoredMessage, Totals

ORIGIN = "penstock-origin"
# Header with the queue in which it died, and prefix of the other headers.
ERROR_MAX = 1_000
TRANSACTION_ID = "transaction-id"
# A transaction id of the tree API belongs to the queue it was pushed to; elsewhere the message's UUID is its id.


def info_of_dead_letters(info: QueueInfo) -> QueueInfo:
    """Return `<queue>.dlq` as a queue: its dead letters are what is ready in it."""
    return QueueInfo(
        name=info.name + DLQ_SUFFIX,
        options=info.options.changed({"dlq": False}),
        paused=False,
        created_at=info.created_at,
        ready=info.dead,
        totals=Totals(pushed=info.totals.dead, redriven=info.totals.redriven),
    )


def stats_of_dead_letters(stats: QueueStats) -> QueueStats:
    rates = {
        span: {name: rate["dead"] if name == "pushed" else rate[name] if name == "redriven" else 0.0 for name in rate}
        for span, rate in stats.rates.items()
    }
    latency = {kind: dict.fromkeys(values) for kind, values in stats.latency.items()}
    return msgspec.structs.replace(
        stats,
        info=info_of_dead_letters(stats.info),
        head_age_ms=None,
        oldest_age_ms=None,
        rates=rates,
        latency=latency,
    )


def origin_of(message: StoredMessage) -> str | None:
    """Return the queue in which a forwarded dead letter died."""
    return (message.headers or {}).get(ORIGIN)


def error_of(message: StoredMessage) -> str:
    """Return why a forwarded dead letter died."""
    return (message.headers or {}).get(f"{ORIGIN}-error", "")


def without_origin(headers: dict[str, str] | None) -> dict[str, str] | None:
    if headers is None or not any(name.startswith(ORIGIN) for name in headers):
        return headers
    return {name: value for name, value in headers.items() if not name.startswith(ORIGIN)} or None


def forwarded(message: StoredMessage) -> MoveItem:
    """Return a dead letter as a message for its dead-letter queue."""
    headers = {name: value for name, value in (message.headers or {}).items() if name != TRANSACTION_ID}
    headers |= {
        ORIGIN: message.queue,
        f"{ORIGIN}-id": message.uuid,
        f"{ORIGIN}-attempts": str(message.attempts),
        f"{ORIGIN}-reason": message.reason or "",
        f"{ORIGIN}-error": message.errors[0].error[:ERROR_MAX] if message.errors else "",
    }
    return MoveItem(message.id, _as_new(message, headers))


def back_to_origin(message: StoredMessage) -> MoveItem:
    """Return a forwarded dead letter as a message for the queue in which it died."""
    return MoveItem(message.id, _as_new(message, without_origin(message.headers)))


def _as_new(message: StoredMessage, headers: dict[str, str] | None) -> PushItem:
    # Drop its key, which that queue still remembers: the message would be a duplicate of itself.
    return PushItem(
        payload=message.payload, content=message.content, priority=message.priority, delay_ms=0, headers=headers
    )
