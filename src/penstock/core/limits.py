"""Limits on the size of a push, and validation of its messages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from msgspec import Struct

from penstock.core.model import BATCH_MAX, DELAY_MS_MAX, HEADERS_BYTES_MAX, KEY_LENGTH_MAX, PRIORITY_MAX, PushItem
from penstock.errors import BatchTooLarge, InvalidInput, PayloadTooLarge, WrongType

T = TypeVar("T")
WAIT_SECONDS_MAX = 3600.0
# How often a waiter looks for writes of other processes, where nothing reports them.
POLL_SECONDS = 0.01


class Limits(Struct, frozen=True, kw_only=True):
    payload_bytes: int = 512 << 10
    batch_bytes: int = 64 << 20
    batch_messages: int = BATCH_MAX
    page: int = 1_000
    steps: int = 1_500
    """Steps in a time window; a day has 1,440 minutes."""


def check_message(message: PushItem, payload_bytes_max: int) -> None:
    if len(message.payload) > payload_bytes_max:
        raise PayloadTooLarge(
            f"payload has {len(message.payload)} bytes, the limit is {payload_bytes_max}",
            field="payload",
            hint="store large data elsewhere and push a reference to it",
        )
    if message.priority:
        check_range("priority", message.priority, -PRIORITY_MAX, PRIORITY_MAX)
    if message.delay_ms is not None:
        check_range("delay_ms", message.delay_ms, 0, DELAY_MS_MAX)
    if message.ttl_ms is not None:
        check_range("ttl_ms", message.ttl_ms, 1, DELAY_MS_MAX)
    if message.key is not None:
        check_key(message.key)
    if message.headers is not None:
        check_headers(message.headers)


def check_key(key: str) -> None:
    if not isinstance(key, str):
        raise WrongType(f"key: expected str, got {type(key).__name__}", field="key")
    if not (0 < len(key) <= KEY_LENGTH_MAX and key.isprintable()):
        raise InvalidInput(
            f"invalid idempotency key {key[:80]!r}",
            field="key",
            hint=f"use 1 to {KEY_LENGTH_MAX} printable characters",
        )


def check_headers(headers: dict[str, str]) -> None:
    if not isinstance(headers, dict):
        raise WrongType(f"headers: expected a dict of str, got {type(headers).__name__}", field="headers")
    size = 0
    for header in headers.items():
        for text in header:
            check_text("headers", text)
            size += len(text)
    if size > HEADERS_BYTES_MAX:
        raise InvalidInput(f"headers have {size} characters, the limit is {HEADERS_BYTES_MAX}", field="headers")


def check_text(field: str, text: str) -> None:
    if not isinstance(text, str):
        raise WrongType(f"{field}: expected str, got {type(text).__name__}", field=field)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{field}: {text[:80]!r} is not valid Unicode text", field=field) from None


def check_flag(field: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise WrongType(f"{field}: expected bool, got {value!r:.80}", field=field)


def check_many(field: str, values: Iterable[T], most: int) -> list[T]:
    """Return the values as a list. Reads at most one more than the limit, so an endless iterable is safe."""
    if isinstance(values, str | bytes | bytearray | dict) or not isinstance(values, Iterable):
        raise WrongType(f"{field}: expected a list, got {type(values).__name__}", field=field)
    some = list(islice(values, most + 1))
    if len(some) > most:
        raise BatchTooLarge(f"more than {most} {field} in one call", field=field, hint="split them over several calls")
    return some


def check_range(field: str, value: int, low: int, high: int) -> None:
    if type(value) is not int:
        raise WrongType(f"{field}: expected int, got {type(value).__name__}", field=field)
    if not low <= value <= high:
        raise InvalidInput(f"{field} is {value}, must be from {low} to {high}", field=field)
