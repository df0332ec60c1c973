"""Every public exception. Each has a stable `code` and, where possible, a hint of what to do.

PenstockError
├── InvalidInput            a value that can never be accepted (also a ValueError)
│   ├── WrongType           (also a TypeError)
│   ├── InvalidName
│   ├── PayloadTooLarge
│   ├── BatchTooLarge
│   └── OffsetBeyondEnd
├── NotFound                (also a LookupError)
│   ├── UnknownQueue
│   ├── UnknownMessage
│   ├── UnknownStream
│   └── UnknownConsumer
├── Conflict
│   ├── QueueExists
│   ├── QueueNotEmpty
│   ├── LeaseLost
│   ├── StreamExists
│   ├── StreamInUse
│   ├── PositionMovesBack
│   ├── TargetNotEmpty      of a migration to another store
│   ├── SourceChanged
│   └── MoveDiffers
├── OffsetTrimmed           the records were removed by retention
├── MissingExtra            an optional dependency is not installed (also an ImportError)
├── TryLater                carries `retry_after_ms`
│   ├── QueueFull
│   └── RateLimited
├── StoreError              the file or database itself
│   ├── StoreBusy
│   ├── StoreUnreachable    no connection to the database (also a ConnectionError)
│   ├── StoreClosed
│   ├── CannotOpen
│   ├── NotADatabase
│   ├── SchemaTooNew
│   ├── ReadOnly
│   ├── DiskFull
│   ├── LogFailed           a write failed; the log must be opened again
│   ├── InvariantBroken     a check that protects stored data failed; nothing was written
│   └── Damaged
│       └── CorruptRecord   carries its position, never its bytes
├── Unsupported             an operation that this kind of store does not have
├── AccessDenied            only over HTTP
│   ├── Unauthorized        no credential, or an unknown one
│   └── Forbidden           a credential without the right
├── Unreachable             no response from the server (also a ConnectionError)
└── ServerFault             an invalid response
"""

from __future__ import annotations

from typing import Any


class PenstockError(Exception):
    """The base of all errors. With `maybe_done`, an attempt whose response was lost may have succeeded."""

    code = "error"
    maybe_done = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{message} ({self.hint})" if self.hint else message

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is unpickled by calling its class with `args`, but these constructors take others.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[PenstockError], args: tuple[Any, ...], data: dict[str, Any]) -> PenstockError:
    error = kind.__new__(kind, *args)
    error.args = args  # OSError sets them in its constructor, not in __new__.
    error.__dict__.update(data)
    return error


class InvalidInput(PenstockError, ValueError):
    """A value that can never be accepted; `field` names it."""

    code = "invalid_value"

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field


class WrongType(InvalidInput, TypeError):
    code = "wrong_type"


class InvalidName(InvalidInput):
    code = "invalid_name"


class LeaseTokenRequired(InvalidInput):
    code = "lease_token_required"

    def __init__(self, queue: str, message_id: int | str) -> None:
        super().__init__(
            f"queue {queue!r} settles message {message_id} only with its lease token",
            field="token",
            hint="send the token that came with the message, or turn off require_lease_token",
        )


class PayloadTooLarge(InvalidInput):
    code = "payload_too_large"


class BatchTooLarge(InvalidInput):
    code = "batch_too_large"


class OffsetBeyondEnd(InvalidInput):
    """The offset is past the end of the stream; the next record gets `next_offset`."""

    code = "offset_beyond_end"

    def __init__(self, stream: str, offset: int, next_offset: int) -> None:
        super().__init__(
            f"stream {stream!r} ends before offset {next_offset}, and {offset} was requested",
            field="offset",
            hint=f"start at {next_offset} at the latest",
        )
        self.stream = stream
        self.offset = offset
        self.next_offset = next_offset


class NotFound(PenstockError, LookupError):
    code = "not_found"


class UnknownQueue(NotFound):
    code = "unknown_queue"

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue {queue!r} does not exist", hint="create it first")
        self.queue = queue


class UnknownMessage(NotFound):
    code = "unknown_message"

    def __init__(self, queue: str, message_id: int | str) -> None:
        super().__init__(f"message {message_id} does not exist in queue {queue!r}")
        self.queue = queue
        self.message_id = message_id


class UnknownStream(NotFound):
    code = "unknown_stream"

    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {stream!r} does not exist", hint="create it first")
        self.stream = stream


class UnknownConsumer(NotFound):
    code = "unknown_consumer"

    def __init__(self, stream: str, consumer: str) -> None:
        super().__init__(f"stream {stream!r} has no consumer {consumer!r}")
        self.stream = stream
        self.consumer = consumer


class Conflict(PenstockError):
    code = "conflict"


class QueueExists(Conflict):
    code = "queue_exists"

    def __init__(self, queue: str, differing: list[str]) -> None:
        super().__init__(
            f"queue {queue!r} exists with other options: {', '.join(differing)}",
            hint="change its options instead of creating it",
        )
        self.queue = queue
        self.differing = differing


class KeyTaken(Conflict):
    """A key that must be unique across queues belongs to a message of another queue."""

    code = "key_taken"

    def __init__(self, queue: str, key: str) -> None:
        super().__init__(
            f"key {key!r} belongs to a message of another queue; nothing was pushed to {queue!r}",
            hint="use a key that no message of another queue has",
        )


class QueueNotEmpty(Conflict):
    code = "queue_not_empty"

    def __init__(self, queue: str, messages: int) -> None:
        super().__init__(f"queue {queue!r} still holds {messages} messages", hint="purge it, or use force")
        self.queue = queue
        self.messages = messages


class LeaseLost(Conflict):
    """The lease has expired, or the message was settled already; nothing was changed."""

    code = "lease_lost"

    def __init__(self, message_id: int | str) -> None:
        super().__init__(
            f"the lease on message {message_id} is no longer yours",
            hint="another consumer may have the message; use a longer lease, or extend it earlier",
        )
        self.message_id = message_id


class StreamExists(Conflict):
    code = "stream_exists"

    def __init__(self, stream: str, differing: list[str]) -> None:
        super().__init__(
            f"stream {stream!r} exists with other options: {', '.join(differing)}",
            hint="change its options instead of creating it",
        )
        self.stream = stream
        self.differing = differing


class StreamInUse(Conflict):
    code = "stream_in_use"

    def __init__(self, stream: str, consumers: list[str]) -> None:
        super().__init__(
            f"stream {stream!r} has consumers: {', '.join(consumers[:5])}{' …' if len(consumers) > 5 else ''}",
            hint="forget them, or use force",
        )
        self.stream = stream
        self.consumers = consumers


class PositionMovesBack(Conflict):
    code = "position_moves_back"

    def __init__(self, stream: str, consumer: str, offset: int, committed: int) -> None:
        super().__init__(
            f"consumer {consumer!r} of stream {stream!r} is at {committed} already, and {offset} is before that",
            hint="a position moves back only with force",
        )
        self.stream = stream
        self.consumer = consumer
        self.offset = offset
        self.committed = committed


class TargetNotEmpty(Conflict):
    code = "target_not_empty"

    def __init__(self, target: str) -> None:
        super().__init__(
            f"{target} is not empty, and not an unfinished migration from this store",
            hint="migrate to a new file, or to an empty schema (?schema=…)",
        )
        self.target = target


class SourceChanged(Conflict):
    """The source of a migration was used between two attempts."""

    code = "source_changed"

    def __init__(self, source: str) -> None:
        super().__init__(
            f"{source} was used since the migration began",
            hint="delete the target's file or drop its schema, and migrate again while nothing uses the source",
        )
        self.source = source


class MoveDiffers(Conflict):
    """Source and target differ after a migration; the target cannot be opened."""

    code = "move_differs"

    def __init__(self, source: str, target: str, what: str) -> None:
        super().__init__(
            f"{source} and {target} differ in {what}",
            hint="delete the target's file or drop its schema, and migrate again while nothing uses the source",
        )
        self.what = what


class OffsetTrimmed(PenstockError):
    """The record was removed by retention; `first_offset` is the first one that exists."""

    code = "offset_trimmed"

    def __init__(self, stream: str, offset: int, first_offset: int) -> None:
        super().__init__(
            f"offset {offset} of stream {stream!r} is no longer kept", hint=f"the first kept is {first_offset}"
        )
        self.stream = stream
        self.offset = offset
        self.first_offset = first_offset


class MissingExtra(PenstockError, ImportError):
    """An optional dependency is not installed."""

    code = "missing_extra"

    def __init__(self, extra: str) -> None:
        super().__init__(f"this needs penstock-mq[{extra}]", hint=f"pip install 'penstock-mq[{extra}]'")
        self.extra = extra


class TryLater(PenstockError):
    """The request is valid but cannot be served now; retry after `retry_after_ms`."""

    code = "try_later"

    def __init__(self, message: str, *, retry_after_ms: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_ms = retry_after_ms


class QueueFull(TryLater):
    code = "queue_full"


class RateLimited(TryLater):
    code = "rate_limited"


class StoreError(PenstockError):
    """The file or database failed; nothing of the request was stored."""

    code = "store_error"


class StoreBusy(StoreError):
    code = "store_busy"


class StoreUnreachable(StoreError, ConnectionError):
    """There is no connection to the database, or it was lost. With `maybe_done`, the commit may have succeeded."""

    code = "store_unreachable"

    def __init__(self, message: str, *, maybe_done: bool, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.maybe_done = maybe_done


class StoreClosed(StoreError):
    code = "store_closed"


class CannotOpen(StoreError):
    code = "cannot_open"


class NotADatabase(StoreError):
    code = "not_a_database"


class SchemaTooNew(StoreError):
    code = "schema_too_new"


class ReadOnly(StoreError):
    code = "read_only"


class DiskFull(StoreError):
    code = "disk_full"


class LogFailed(StoreError):
    """A write failed and the state on disk is unknown: nothing more is written until the log is opened again."""

    code = "log_failed"


class Damaged(StoreError):
    code = "damaged"


class InvariantBroken(StoreError):
    """A check that protects stored data has failed: a fault in Penstock. The write did not happen."""

    code = "invariant_broken"

    def __init__(self, text: str) -> None:
        super().__init__(text, hint="nothing of it was written; please report this as a bug")


class CorruptRecord(Damaged):
    """A record is damaged or missing. Its bytes are never returned."""

    code = "corrupt_record"

    def __init__(self, stream: str, offset: int, segment: str, position: int | None) -> None:
        where = f"byte {position} of {segment}" if position is not None else f"{segment}, where it is missing"
        super().__init__(
            f"record {offset} of stream {stream!r} is damaged: {where}",
            hint="run `penstock stream check`; records before and after it can be read",
        )
        self.stream = stream
        self.offset = offset
        self.segment = segment
        self.position = position


class Unsupported(PenstockError):
    """The operation does not exist for this kind of store."""

    code = "unsupported"


class AccessDenied(PenstockError):
    code = "access_denied"


class Unauthorized(AccessDenied):
    code = "unauthorized"


class Forbidden(AccessDenied):
    code = "forbidden"


class Unreachable(PenstockError, ConnectionError):
    """The server did not respond. With `maybe_done`, it may still have executed the request."""

    code = "unreachable"

    def __init__(self, message: str, *, maybe_done: bool, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.maybe_done = maybe_done


class ServerFault(PenstockError):
    """The server failed internally, or something else responds at its address."""

    code = "server_fault"

    def __init__(self, message: str, *, status: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class DeadLetter(Exception):
    """Raised in a worker to dead-letter the message now, even if attempts are left."""


class Discard(Exception):
    """Raised in a worker to delete the message now, without a dead letter."""
