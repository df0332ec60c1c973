"""Penstock: a message queue that starts as a SQLite file inside your program and grows with it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    BatchTooLarge,
    CannotOpen,
    Conflict,
    Damaged,
    DiskFull,
    InvalidInput,
    InvalidName,
    LeaseLost,
    NotADatabase,
    NotFound,
    PayloadTooLarge,
    PenstockError,
    QueueExists,
    QueueFull,
    QueueNotEmpty,
    RateLimited,
    ReadOnly,
    SchemaTooNew,
    StoreBusy,
    StoreClosed,
    StoreError,
    TryLater,
    UnknownMessage,
    UnknownQueue,
    WrongType,
)

if TYPE_CHECKING:
    from penstock.lite import DeadMessage, LiteQueue, Message

__all__ = [
    "BatchTooLarge",
    "CannotOpen",
    "Conflict",
    "Damaged",
    "DeadMessage",
    "DiskFull",
    "InvalidInput",
    "InvalidName",
    "LeaseLost",
    "LiteQueue",
    "Message",
    "NotADatabase",
    "NotFound",
    "PayloadTooLarge",
    "PenstockError",
    "QueueExists",
    "QueueFull",
    "QueueNotEmpty",
    "RateLimited",
    "ReadOnly",
    "SchemaTooNew",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "TryLater",
    "UnknownMessage",
    "UnknownQueue",
    "WrongType",
]

# Loaded when first asked for: a command that only talks to a server starts without SQLite and asyncio.
_LATE = {"DeadMessage": "penstock.lite", "LiteQueue": "penstock.lite", "Message": "penstock.lite"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LATE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
