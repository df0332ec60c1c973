"""Converts queues, messages and statistics to the JSON schemas of the queue API."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.model import Delivery, PushReceipt, QueueInfo, QueueStats, StoredMessage
from penstock.wire import payloads
from penstock.wire.queues import MessageView, PolledMessage, PushedMany, QueueView, Stats


def queue_view(info: QueueInfo) -> QueueView:
    return QueueView(
        name=info.name,
        max_attempts=info.options.max_attempts,
        visibility_ms=info.options.lease_ms,
        dlq=_dlq(info),
        options=info.options,
        paused=info.paused,
        created_at=info.created_at,
        ready=info.ready,
        scheduled=info.scheduled,
        leased=info.leased,
        dead=info.dead,
        archived=info.archived,
        totals=info.totals,
    )


def _dlq(info: QueueInfo) -> str | None:
    dlq = info.options.dlq
    return dlq if isinstance(dlq, str) else f"{info.name}.dlq" if dlq else None


def message_view(message: StoredMessage) -> MessageView:
    payload, encoding = payloads.show(message.payload, message.content)
    return MessageView(
        id=message.id,
        uuid=message.uuid,
        queue=message.queue,
        state=message.state,
        payload=payload,
        encoding=encoding,
        content=message.content,
        priority=message.priority,
        attempts=message.attempts,
        created_at=message.created_at,
        available_at=message.available_at,
        expires_at=message.expires_at,
        first_leased_at=message.first_leased_at,
        leased_at=message.leased_at,
        lease_expires_at=message.leased_until,
        worker=message.worker,
        finished_at=message.finished_at,
        reason=message.reason,
        error=message.errors[0].error if message.errors else None,
        errors=message.errors,
        idempotency_key=message.key,
        headers=message.headers,
    )


def export_line(message: StoredMessage) -> bytes:
    """Encode a message as one line. A JSON payload may contain line breaks, but only between tokens."""
    line = msgspec.json.encode(message_view(message))
    return line.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


def stats_view(stats: QueueStats) -> Stats:
    """Return the statistics of a queue; a field with the same name in the model is copied."""
    info = stats.info
    copied = {
        name: getattr(source, name)
        for source in (info, stats)
        for name in Stats.__struct_fields__
        if hasattr(source, name)
    }
    recent = stats.rates["15m"]
    failed = recent["nacked"] + recent["lapsed"]
    ended = failed + recent["acked"]
    return Stats(queue=info.name, dlq=info.dead, error_rate=round(failed / ended, 4) if ended else 0.0, **copied)


def pushed_many(receipts: Sequence[PushReceipt]) -> PushedMany:
    return PushedMany(
        [receipt.id for receipt in receipts],
        [position for position, receipt in enumerate(receipts) if receipt.duplicate],
    )


def polled_message(message: Delivery) -> PolledMessage:
    payload, encoding = payloads.show(message.payload, message.content)
    return PolledMessage(
        id=message.id,
        uuid=message.uuid,
        payload=payload,
        encoding=encoding,
        content=message.content,
        priority=message.priority,
        attempts=message.attempts,
        created_at=message.created_at,
        lease_expires_at=message.leased_until,
        token=message.token,
        idempotency_key=message.key,
        headers=message.headers,
    )
