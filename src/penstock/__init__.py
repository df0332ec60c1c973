"""Penstock: a message queue that starts as a SQLite file inside your program and grows with it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    AccessDenied,
    BatchTooLarge,
    CannotOpen,
    Conflict,
    CorruptRecord,
    Damaged,
    DiskFull,
    Forbidden,
    InvalidInput,
    InvalidName,
    LeaseLost,
    LogFailed,
    NotADatabase,
    NotFound,
    OffsetBeyondEnd,
    OffsetTrimmed,
    PayloadTooLarge,
    PenstockError,
    PositionMovesBack,
    QueueExists,
    QueueFull,
    QueueNotEmpty,
    RateLimited,
    ReadOnly,
    SchemaTooNew,
    ServerFault,
    StoreBusy,
    StoreClosed,
    StoreError,
    StreamExists,
    StreamInUse,
    TryLater,
    Unauthorized,
    UnknownConsumer,
    UnknownMessage,
    UnknownQueue,
    UnknownStream,
    Unreachable,
    WrongType,
)

if TYPE_CHECKING:
    from penstock import aio as aio
    from penstock._sync.client.client import Client, connect
    from penstock._sync.client.message import LeasedMessage
    from penstock._sync.client.queue import Queue
    from penstock._sync.client.transaction import Transaction
    from penstock._sync.client.worker import Worker
    from penstock.client.types import NewMessage, Page, PeekedMessage, Receipt, Redriven, Stats
    from penstock.lite import DeadMessage, LiteQueue, Message
    from penstock.model import QueueInfo, QueueOptions, State

__all__ = [
    "AccessDenied",
    "BatchTooLarge",
    "CannotOpen",
    "Client",
    "Conflict",
    "CorruptRecord",
    "Damaged",
    "DeadMessage",
    "DiskFull",
    "Forbidden",
    "InvalidInput",
    "InvalidName",
    "LeaseLost",
    "LeasedMessage",
    "LiteQueue",
    "LogFailed",
    "Message",
    "NewMessage",
    "NotADatabase",
    "NotFound",
    "OffsetBeyondEnd",
    "OffsetTrimmed",
    "Page",
    "PayloadTooLarge",
    "PeekedMessage",
    "PenstockError",
    "PositionMovesBack",
    "Queue",
    "QueueExists",
    "QueueFull",
    "QueueInfo",
    "QueueNotEmpty",
    "QueueOptions",
    "RateLimited",
    "ReadOnly",
    "Receipt",
    "Redriven",
    "SchemaTooNew",
    "ServerFault",
    "State",
    "Stats",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StreamExists",
    "StreamInUse",
    "Transaction",
    "TryLater",
    "Unauthorized",
    "UnknownConsumer",
    "UnknownMessage",
    "UnknownQueue",
    "UnknownStream",
    "Unreachable",
    "Worker",
    "WrongType",
    "connect",
]

# Loaded when first asked for: a command that only talks to a server starts without SQLite and asyncio.
_LATE = {
    "Client": "penstock._sync.client.client",
    "DeadMessage": "penstock.lite",
    "LeasedMessage": "penstock._sync.client.message",
    "LiteQueue": "penstock.lite",
    "Message": "penstock.lite",
    "NewMessage": "penstock.client.types",
    "Page": "penstock.client.types",
    "PeekedMessage": "penstock.client.types",
    "Queue": "penstock._sync.client.queue",
    "QueueInfo": "penstock.model",
    "QueueOptions": "penstock.model",
    "Receipt": "penstock.client.types",
    "Redriven": "penstock.client.types",
    "State": "penstock.model",
    "Stats": "penstock.client.types",
    "Transaction": "penstock._sync.client.transaction",
    "Worker": "penstock._sync.client.worker",
    "connect": "penstock._sync.client.client",
}


def __getattr__(name: str) -> Any:
    if name == "aio":
        return import_module("penstock.aio")
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LATE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
