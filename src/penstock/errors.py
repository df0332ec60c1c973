"""What can go wrong, as a tree. Each error has a stable `code` and, where there is one, a hint on what to do.

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
│   ├── TargetNotEmpty      of a move to another store
│   ├── SourceChanged
│   └── MoveDiffers
├── OffsetTrimmed           those records are no longer kept
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
│   └── Damaged
│       └── CorruptRecord   carries its place, never its bytes
├── Unsupported             what this store cannot do
├── AccessDenied            only over HTTP
│   ├── Unauthorized        no credential, or an unknown one
│   └── Forbidden           a credential without that right
├── Unreachable             no answer from the server (also a ConnectionError)
└── ServerFault             an answer that makes no sense
"""

from __future__ import annotations

from typing import Any


class PenstockError(Exception):
    """Anything Penstock refuses or fails at. With `maybe_done`, an attempt whose answer was lost may have done it."""

    code = "error"
    maybe_done = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{message} ({self.hint})" if self.hint else message

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is unpickled by calling its class with `args`, which are not what ours are made from.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[PenstockError], args: tuple[Any, ...], data: dict[str, Any]) -> PenstockError:
    error = kind.__new__(kind, *args)
    error.args = args  # An OSError leaves that to its constructor.
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
            f"queue {queue!r} settles message {message_id} only with the token of its lease",
            field="token",
            hint="send the token that came with the message, or turn off require_lease_token",
        )


class PayloadTooLarge(InvalidInput):
    code = "payload_too_large"


class BatchTooLarge(InvalidInput):
    code = "batch_too_large"


class OffsetBeyondEnd(InvalidInput):
    """Nothing has that offset yet; `next_offset` is the one that the next record gets."""

    code = "offset_beyond_end"

    def __init__(self, stream: str, offset: int, next_offset: int) -> None:
        super().__init__(
            f"stream {stream!r} ends before offset {next_offset}, and {offset} was asked for",
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
        super().__init__(f"there is no queue {queue!r}", hint="create it first")
        self.queue = queue


class UnknownMessage(NotFound):
    code = "unknown_message"

    def __init__(self, queue: str, message_id: int | str) -> None:
        super().__init__(f"there is no message {message_id} in queue {queue!r}")
        self.queue = queue
        self.message_id = message_id


class UnknownStream(NotFound):
    code = "unknown_stream"

    def __init__(self, stream: str) -> None:
        super().__init__(f"there is no stream {stream!r}", hint="create it first")
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
    """A key that all queues share names a message of another queue than the one that was pushed to."""

    code = "key_taken"

    def __init__(self, queue: str, key: str) -> None:
        super().__init__(
            f"{key!r} names a message of another queue; nothing was pushed to {queue!r}",
            hint="use an id that no other queue's message has",
        )


class QueueNotEmpty(Conflict):
    code = "queue_not_empty"

    def __init__(self, queue: str, messages: int) -> None:
        super().__init__(f"queue {queue!r} still holds {messages} messages", hint="purge it, or use force")
        self.queue = queue
        self.messages = messages


class LeaseLost(Conflict):
    """The lease has passed, or the message was settled already; nothing was changed."""

    code = "lease_lost"

    def __init__(self, message_id: int | str) -> None:
        super().__init__(
            f"the lease on message {message_id} is no longer yours",
            hint="the work may have been handed to another consumer; extend the lease earlier, or make it longer",
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
            f"{target} holds something already, which is not an unfinished move from this store",
            hint="move to a new file, or to an empty schema (?schema=…)",
        )
        self.target = target


class SourceChanged(Conflict):
    """Between the attempts of one move."""

    code = "source_changed"

    def __init__(self, source: str) -> None:
        super().__init__(
            f"{source} was used since the move began",
            hint="delete the target's file or drop its schema, and move again with nothing using the source",
        )
        self.source = source


class MoveDiffers(Conflict):
    """The comparison after a move found source and target unlike; the target cannot be opened."""

    code = "move_differs"

    def __init__(self, source: str, target: str, what: str) -> None:
        super().__init__(
            f"{source} and {target} differ in {what}",
            hint="delete the target's file or drop its schema, and move again with nothing using the source",
        )
        self.what = what


class OffsetTrimmed(PenstockError):
    """That record is no longer kept; `first_offset` is the first that is."""

    code = "offset_trimmed"

    def __init__(self, stream: str, offset: int, first_offset: int) -> None:
        super().__init__(
            f"offset {offset} of stream {stream!r} is no longer kept", hint=f"the first kept is {first_offset}"
        )
        self.stream = stream
        self.offset = offset
        self.first_offset = first_offset


class MissingExtra(PenstockError, ImportError):
    """Something that an optional dependency is needed for."""

    code = "missing_extra"

    def __init__(self, extra: str) -> None:
        super().__init__(f"this needs penstock-mq[{extra}]", hint=f"pip install 'penstock-mq[{extra}]'")
        self.extra = extra


class TryLater(PenstockError):
    """Well-formed, but not now: try again after `retry_after_ms`."""

    code = "try_later"

    def __init__(self, message: str, *, retry_after_ms: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_ms = retry_after_ms


class QueueFull(TryLater):
    code = "queue_full"


class RateLimited(TryLater):
    code = "rate_limited"


class StoreError(PenstockError):
    """The file or database did not do what was asked; nothing of the request was kept."""

    code = "store_error"


class StoreBusy(StoreError):
    code = "store_busy"


class StoreUnreachable(StoreError, ConnectionError):
    """No connection to the database, or it was lost. With `maybe_done`, what was asked may have been kept."""

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
    """A write failed in a way that leaves the disk's state unknown: nothing more is written until a new opening."""

    code = "log_failed"


class Damaged(StoreError):
    code = "damaged"


class CorruptRecord(Damaged):
    """A record that is not what was written, or is gone. Its bytes are never handed out."""

    code = "corrupt_record"

    def __init__(self, stream: str, offset: int, segment: str, position: int | None) -> None:
        where = f"byte {position} of {segment}" if position is not None else f"{segment}, where it is missing"
        super().__init__(
            f"record {offset} of stream {stream!r} is damaged: {where}",
            hint="`penstock stream check` tells more; records before and after it can be read",
        )
        self.stream = stream
        self.offset = offset
        self.segment = segment
        self.position = position


class Unsupported(PenstockError):
    """Not with this kind of store."""

    code = "unsupported"


class AccessDenied(PenstockError):
    code = "access_denied"


class Unauthorized(AccessDenied):
    code = "unauthorized"


class Forbidden(AccessDenied):
    code = "forbidden"


class Unreachable(PenstockError, ConnectionError):
    """The server did not answer. With `maybe_done`, it may have done what was asked all the same."""

    code = "unreachable"

    def __init__(self, message: str, *, maybe_done: bool, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.maybe_done = maybe_done


class ServerFault(PenstockError):
    """The server failed in a way it should not, or something else answers at its address."""

    code = "server_fault"

    def __init__(self, message: str, *, status: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class DeadLetter(Exception):
    """Raise this in a worker to fail a message for good: it goes to the dead letters, whatever attempts are left."""


class Discard(Exception):
    """Raise this in a worker to fail a message for good and drop it: it leaves no dead letter."""
