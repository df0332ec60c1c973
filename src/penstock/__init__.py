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
    DeadLetter,
    Discard,
    DiskFull,
    Forbidden,
    InvalidInput,
    InvalidName,
    InvariantBroken,
    KeyTaken,
    LeaseLost,
    LeaseTokenRequired,
    LogFailed,
    MissingExtra,
    MoveDiffers,
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
    SourceChanged,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreUnreachable,
    StreamExists,
    StreamInUse,
    TargetNotEmpty,
    TryLater,
    Unauthorized,
    UnknownConsumer,
    UnknownMessage,
    UnknownQueue,
    UnknownStream,
    Unreachable,
    Unsupported,
    WrongType,
)

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock import aio as aio
    from penstock.client._sync.client import Client, connect
    from penstock.client._sync.message import LeasedMessage
    from penstock.client._sync.queue import Queue
    from penstock.client._sync.stream import Stream
    from penstock.client._sync.transaction import Transaction
    from penstock.client._sync.worker import Worker
    from penstock.client.stream_types import Record, Records
    from penstock.client.types import NewMessage, Page, PeekedMessage, Receipt, Redriven
    from penstock.core.model import QueueInfo, QueueOptions, State
    from penstock.lite import DeadMessage, LiteQueue, Message
    from penstock.log.model import Consumer, StreamInfo, StreamOptions
    from penstock.wire.queues import Stats
    from penstock.wire.streams import Appended

__all__ = [
    "AccessDenied",
    "Appended",
    "BatchTooLarge",
    "CannotOpen",
    "Client",
    "Conflict",
    "Consumer",
    "CorruptRecord",
    "Damaged",
    "DeadLetter",
    "DeadMessage",
    "Discard",
    "DiskFull",
    "Forbidden",
    "InvalidInput",
    "InvalidName",
    "InvariantBroken",
    "KeyTaken",
    "LeaseLost",
    "LeaseTokenRequired",
    "LeasedMessage",
    "LiteQueue",
    "LogFailed",
    "Message",
    "MissingExtra",
    "MoveDiffers",
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
    "Record",
    "Records",
    "Redriven",
    "SchemaTooNew",
    "ServerFault",
    "SourceChanged",
    "State",
    "Stats",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreUnreachable",
    "Stream",
    "StreamExists",
    "StreamInUse",
    "StreamInfo",
    "StreamOptions",
    "TargetNotEmpty",
    "Transaction",
    "TryLater",
    "Unauthorized",
    "UnknownConsumer",
    "UnknownMessage",
    "UnknownQueue",
    "UnknownStream",
    "Unreachable",
    "Unsupported",
    "Worker",
    "WrongType",
    "connect",
]

# Imported on first use: a command that only talks to a server starts without SQLite and asyncio.
_LATE = {
    "Appended": "penstock.wire.streams",
    "Client": "penstock.client._sync.client",
    "Consumer": "penstock.log.model",
    "DeadMessage": "penstock.lite",
    "LeasedMessage": "penstock.client._sync.message",
    "LiteQueue": "penstock.lite",
    "Message": "penstock.lite",
    "NewMessage": "penstock.client.types",
    "Page": "penstock.client.types",
    "PeekedMessage": "penstock.client.types",
    "Queue": "penstock.client._sync.queue",
    "QueueInfo": "penstock.core.model",
    "QueueOptions": "penstock.core.model",
    "Receipt": "penstock.client.types",
    "Record": "penstock.client.stream_types",
    "Records": "penstock.client.stream_types",
    "Redriven": "penstock.client.types",
    "State": "penstock.core.model",
    "Stats": "penstock.wire.queues",
    "Stream": "penstock.client._sync.stream",
    "StreamInfo": "penstock.log.model",
    "StreamOptions": "penstock.log.model",
    "Transaction": "penstock.client._sync.transaction",
    "Worker": "penstock.client._sync.worker",
    "connect": "penstock.client._sync.client",
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
