"""Converts messages of requests and of exports to messages to push."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.model import Content, PushItem, system_clock
from penstock.wire import payloads
from penstock.wire.binary_batches import BinaryMessage
from penstock.wire.payloads import TRANSACTION_ID
from penstock.wire.queues import ImportedMessage, PushBody, PushOne
from penstock.wire.signatures import SIGNATURE_NAME, check_signature


def new_message(sent: PushOne | PushBody, secret: str | None, traceparent: str | None = None) -> PushItem:
    assert isinstance(sent.payload, msgspec.Raw)
    payload, content = payloads.read(sent.payload, sent.encoding)
    headers = _stored_headers(payload, sent.headers, sent.signature, secret, traceparent)
    return PushItem(
        payload=payload,
        content=content,
        priority=sent.priority,
        delay_ms=sent.delay_ms,
        ttl_ms=sent.ttl_ms,
        key=sent.idempotency_key,
        headers=headers,
    )


def add_headers(messages: Sequence[BinaryMessage], secret: str | None, traceparent: str | None) -> None:
    """Set the headers to store with the messages of a binary batch."""
    sent_alone = secret is None and traceparent is None
    for message in messages:
        if sent_alone and message.headers is None and message.signature is None:
            continue
        message.headers = _stored_headers(message.payload, message.headers, message.signature, secret, traceparent)


def _stored_headers(
    payload: bytes, headers: dict[str, str] | None, signature: str | None, secret: str | None, traceparent: str | None
) -> dict[str, str] | None:
    """Return the headers to store: those sent, the caller's trace context and the signature, which is checked."""
    headers = without_transaction_id(headers)
    if traceparent is not None and (headers is None or "traceparent" not in headers):
        headers = {**(headers or {}), "traceparent": traceparent}
    if secret is not None:
        check_signature(secret, payload, signature)
    if signature is not None:
        headers = {**(headers or {}), SIGNATURE_NAME: signature}
    return headers


def without_transaction_id(headers: dict[str, str] | None) -> dict[str, str] | None:
    """Remove the tree API's header: a message pushed elsewhere is acknowledged by its UUID."""
    if headers is None or TRANSACTION_ID not in headers:
        return headers
    return {name: value for name, value in headers.items() if name != TRANSACTION_ID} or None


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
