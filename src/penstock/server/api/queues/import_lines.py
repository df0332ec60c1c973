"""Converts lines of an export back to messages."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.model import Content, PushItem, system_clock
from penstock.server.api.queues.mapping import without_transaction_id
from penstock.server.signatures import SIGNATURE_NAME, check_signature
from penstock.wire import payloads
from penstock.wire.queues import ImportedMessage


def imported(line: ImportedMessage) -> PushItem:
    now = system_clock()
    payload, content = payloads.read(line.payload, line.encoding)
    if line.content != "json" and line.encoding is None:
        payload, content = payloads.read_text(payload), Content(line.content)
    return PushItem(
        payload=payload,
        content=content,
        priority=line.priority,
        delay_ms=None if line.available_at is None else max(0, line.available_at - now),
        ttl_ms=None if line.expires_at is None else max(1, line.expires_at - now),
        key=line.idempotency_key or (f"import:{line.uuid}" if line.uuid else None),
        headers=without_transaction_id(line.headers),
    )


def check_imported(secret: str | None, messages: Sequence[PushItem]) -> None:
    """Reject unsigned messages for a queue with a secret. Old signatures are valid, because exports are kept."""
    if secret is not None:
        for message in messages:
            check_signature(secret, message.payload, (message.headers or {}).get(SIGNATURE_NAME), window_ms=None)
