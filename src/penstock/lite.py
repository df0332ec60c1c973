"""LiteQueue: a durable queue in one SQLite file, inside your program. Payloads are bytes.

Times are in seconds. Threads, processes and a Penstock server may share one file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.broker._sync.broker import Broker
from penstock.broker.caller_transaction_threads import driver_connection
from penstock.client.failures import describe, format_traceback
from penstock.core.commands import Command, Configure, Settled, SettleItem
from penstock.core.ids import DLQ_SUFFIX, check_queue_name
from penstock.core.limits import Limits, check_many
from penstock.core.model import (
    ATTEMPTS_MAX,
    BATCH_MAX,
    DELAY_MS_MAX,
    LEASE_MS_MAX,
    PRIORITY_MAX,
    Clock,
    Delivery,
    PushItem,
    PushReceipt,
    QueueOptions,
    State,
    system_clock,
)
from penstock.core.model import StoredMessage as StoredMessage
from penstock.errors import InvalidInput, LeaseLost, PenstockError, UnknownQueue, WrongType
from penstock.store.sqlite import Durability, SqliteStore

DEFAULT_OPTIONS = QueueOptions(lease_ms=60_000, max_attempts=6)
MAX_BYTES = 16 << 20
# SQLite allows rows of up to a billion bytes.
BLOB_BYTES_MAX = 1_000_000_000 - (1 << 20)
BUSY_MS_MAX = 3_600_000
Seconds = int | float
OK = Settled.OK


@dataclass(slots=True)
class Message:
    """A message returned by `pop`. `id` is a time-ordered UUID, `created_at` is in whole seconds."""

    id: str
    data: bytes
    queue_name: str
    retry_count: int
    created_at: int
    lease: SettleItem | None = field(default=None, repr=False, compare=False)
    """The lease token, for settling the message; None if it was only peeked at."""


@dataclass(slots=True)
class DeadMessage:
    """A message that used up its attempts."""

    id: str
    data: bytes
    queue_name: str
    retry_count: int
    created_at: int
    failed_at: int
    reason: str
    """The last error, or a text that the lease expired."""


class LiteQueue:
    """
    >>> with LiteQueue(":memory:") as queue:
    ...     _ = queue.put(b"hello")
    ...     with queue.process() as message:
    ...         print(message.data)
    b'hello'

    The first `put` creates a queue, with `max_retries` deliveries after the first (default 5). Given explicitly,
    `max_retries` also changes an existing queue. `durability="relaxed"` survives a crash of the program; a crash of the
    machine may lose the last commits, but does not corrupt the file. `journal=True` records all events in a folder
    beside the file, `False` ends that, and None leaves it as it is.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        max_retries: int | None = None,
        *,
        durability: Durability = "full",
        max_bytes: int = MAX_BYTES,
        clock: Clock = system_clock,
        busy_ms: int = 30_000,
        journal: bool | None = None,
    ) -> None:
        if durability not in ("full", "relaxed"):
            raise InvalidInput(f"durability must be 'full' or 'relaxed', got {durability!r}", field="durability")
        self._options, self._changes = DEFAULT_OPTIONS, {}
        _check_int("max_bytes", max_bytes, 1, BLOB_BYTES_MAX)
        _check_int("busy_ms", busy_ms, 0, BUSY_MS_MAX)
        if not callable(clock):
            raise WrongType("clock: expected a function that returns milliseconds since 1970", field="clock")
        if journal is not None and type(journal) is not bool:
            raise WrongType(f"journal: expected bool or None, got {type(journal).__name__}", field="journal")
        if max_retries is not None:
            _check_int("max_retries", max_retries, 0, ATTEMPTS_MAX - 1)
            self._changes = {"max_attempts": max_retries + 1}
            self._options = DEFAULT_OPTIONS.changed(self._changes)
        self._known: set[str] = set()
        self._store = SqliteStore(path, clock=clock, durability=durability, busy_ms=busy_ms, journal=journal)
        self._opened_with = (_absolute(path), max_retries, durability, max_bytes, clock, busy_ms, journal)
        self._broker = Broker(
            self._store,
            clock=clock,
            limits=Limits(payload_bytes=max_bytes, batch_bytes=max(64 << 20, max_bytes)),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the settings; a spawned process opens the file itself."""
        if self._opened_with[0] == ":memory:":
            raise TypeError("cannot pickle a queue in memory: no other process can open it")
        return _reopen, self._opened_with

    def put(
        self,
        data: bytes,
        qname: str = "default",
        delay: Seconds = 0,
        *,
        priority: int = 0,
        ttl: Seconds | None = None,
        key: str | None = None,
        conn: Any = None,
    ) -> str:
        """Add a message and return its id once it is durable. A duplicate `key` returns the id of the first message.

        With `conn`, your own connection to the same file (from sqlite3, SQLAlchemy or Django), the message is part of
        your transaction: it can be popped after your commit, and a rollback removes it.
        """
        plain = type(delay) is type(priority) is int and delay == priority == 0 and ttl is None and key is None
        if plain and type(data) is bytes:
            message = PushItem(payload=data)
        else:
            message = _new_message(data, delay, priority, ttl, key)
        if conn is None:
            return self._push(qname, (message,))[0].uuid
        commands: list[Command[Any]] = [self._broker.push_command(qname, [message], create=self._options)]
        if self._changes and qname not in self._known:
            commands.insert(0, Configure(queue=qname, changes=self._changes, create=self._options))
        id_: str = self._store.apply_on(driver_connection(conn), commands)[-1].receipts[0].uuid
        return id_

    def put_many(self, data: Iterable[bytes], qname: str = "default", delay: Seconds = 0) -> list[str]:
        """Add messages, all or none, in one commit."""
        some = check_many("data", data, BATCH_MAX)
        receipts = self._push(qname, [_new_message(each, delay, 0, None, None) for each in some])
        return [receipt.uuid for receipt in receipts]

    def _push(self, qname: str, messages: Sequence[PushItem]) -> list[PushReceipt]:
        if self._changes:
            self._change(qname, create=self._options)
        return self._broker.push(qname, messages, create=self._options)

    def _change(self, qname: str, *, create: QueueOptions | None) -> None:
        """Apply an explicit `max_retries` to a queue, once."""
        if self._changes and check_queue_name(qname) not in self._known:
            self._broker.configure(qname, self._changes, create=create)
            self._known.add(qname)

    def pop(self, qname: str = "default", timeout: Seconds = 60, *, wait: Seconds = 0) -> Message | None:
        """Lease the next message for `timeout` seconds, waiting up to `wait` seconds; None if there is none."""
        leased = self._lease(1, qname, timeout, wait)
        return _message(leased[0]) if leased else None

    def pop_many(
        self, limit: int, qname: str = "default", timeout: Seconds = 60, *, wait: Seconds = 0
    ) -> list[Message]:
        """Lease up to `limit` messages in one commit."""
        return [_message(each) for each in self._lease(limit, qname, timeout, wait)]

    def _lease(self, limit: int, qname: str, timeout: Seconds, wait: Seconds) -> list[Delivery]:
        lease_ms, wait_ms = _ms("timeout", timeout, 1, LEASE_MS_MAX), _ms("wait", wait)
        try:
            if self._changes and not check_queue_name(qname).endswith(DLQ_SUFFIX):
                self._change(qname, create=None)
            return self._broker.lease(qname, limit=limit, lease_ms=lease_ms, wait_ms=wait_ms)
        except UnknownQueue:
            if not wait:
                return []
            self._broker.configure(qname, create=self._options)
            return self._lease(limit, qname, timeout, wait)

    def peek(self, qname: str = "default") -> Message | None:
        """Return the message that `pop` would return now, without leasing it."""
        try:
            found, _ = self._broker.peek(qname)
        except UnknownQueue:
            return None
        if not found:
            return None
        stored = found[0]
        retry_count = stored.attempts - (stored.state is State.DEAD)
        return Message(stored.uuid, stored.payload, stored.queue, retry_count, stored.created_at // 1000)

    def ack(self, message: Message) -> None:
        """Acknowledge a message, which deletes it. Raises LeaseLost if the lease is over."""
        lease = _lease(message)
        try:
            (result,) = self._broker.ack(message.queue_name, (lease,))
        except UnknownQueue:
            result = Settled.UNKNOWN
        if result is not OK:
            raise LeaseLost(message.id)

    def ack_many(self, messages: Iterable[Message]) -> list[Message]:
        """Ack messages in one commit per queue; return those whose lease was lost."""
        return self._settle(messages, self._broker.ack)

    def nack(self, message: Message, delay: Seconds | None = None, error: str | None = None) -> None:
        """Report failure: retry after `delay` seconds (default: exponential backoff), or dead-letter the message."""
        if self.nack_many([message], delay, error):
            raise LeaseLost(message.id)

    def nack_many(
        self, messages: Iterable[Message], delay: Seconds | None = None, error: str | None = None
    ) -> list[Message]:
        """Nack messages in one commit per queue; return those whose lease was lost."""
        delay_ms = None if delay is None else _ms("delay", delay)
        if error is not None:
            _check_text("error", error)
            error = error.encode("utf-8", "backslashreplace").decode()
        return self._nack(messages, delay_ms, error)

    def _nack(
        self, messages: Iterable[Message], delay_ms: int | None, error: str | None, traceback: str | None = None
    ) -> list[Message]:
        def nack(qname: str, leases: Sequence[SettleItem]) -> list[Settled]:
            items = [SettleItem(lease.id, lease.token, delay_ms, error, traceback) for lease in leases]
            return self._broker.nack(qname, items).results

        return self._settle(messages, nack)

    def extend(self, message: Message, timeout: Seconds = 60) -> None:
        """Extend the lease to `timeout` seconds from now."""
        lease_ms = _ms("timeout", timeout, 1, LEASE_MS_MAX)

        def extend(qname: str, leases: Sequence[SettleItem]) -> list[Settled]:
            return self._broker.extend(qname, leases, lease_ms=lease_ms).results

        if self._settle([message], extend):
            raise LeaseLost(message.id)

    def _settle(
        self, messages: Iterable[Message], settle: Callable[[str, Sequence[SettleItem]], list[Settled]]
    ) -> list[Message]:
        lost: list[Message] = []
        for qname, group in _by_queue(messages).items():
            try:
                results = settle(qname, [lease for _, lease in group])
            except UnknownQueue:
                results = [Settled.UNKNOWN] * len(group)
            lost += [m for (m, _), result in zip(group, results, strict=True) if result is not OK]
        return lost

    @contextmanager
    def process(self, qname: str = "default", timeout: Seconds = 60, *, wait: Seconds = 0) -> Iterator[Message | None]:
        """Pop a message for a `with` block: a clean exit acks it, an exception nacks it and propagates."""
        message = self.pop(qname, timeout, wait=wait)
        if message is None:
            yield None
            return
        try:
            yield message
        except BaseException as error:
            # The block's own error matters more than a failed nack: the lease expires by itself.
            try:
                self._nack([message], None, describe(error), format_traceback(error))
            except PenstockError as trouble:
                error.add_note(f"the message could not be nacked: {trouble}")
            raise
        self.ack(message)

    def qsize(self, qname: str = "default") -> int:
        """Return the number of ready and delayed messages; leased ones are not counted."""
        try:
            info = self._broker.stats(qname).info
        except UnknownQueue:
            return 0
        return info.ready + info.scheduled

    def clear(self, qname: str = "default") -> int:
        """Delete all ready and delayed messages; return how many."""
        try:
            return self._broker.purge(qname)
        except UnknownQueue:
            return 0

    def dlq(self, qname: str = "default", limit: int = 100) -> list[DeadMessage]:
        """Return dead letters, newest first."""
        try:
            found, after = self._broker.peek(qname, state=State.DEAD, limit=limit)
            while after is not None and len(found) < limit:
                # A page is shorter if payloads are large.
                more, after = self._broker.peek(qname, state=State.DEAD, limit=limit - len(found), after=after)
                found += more
        except UnknownQueue:
            return []
        return [_dead(each) for each in found]

    def redrive(self, qname: str = "default", *, reason_contains: str | None = None) -> int:
        """Move dead letters back into their queue; return how many."""
        if reason_contains is not None:
            _check_text("reason_contains", reason_contains)
        try:
            return self._broker.redrive(qname, error_contains=reason_contains).moved
        except UnknownQueue:
            return 0

    def close(self) -> None:
        """Close the queue. Safe to call again."""
        self._broker.close()

    def __enter__(self) -> LiteQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _new_message(data: bytes, delay: Seconds, priority: int, ttl: Seconds | None, key: str | None) -> PushItem:
    if type(data) is not bytes:
        raise WrongType(
            f"data: expected bytes, got {type(data).__name__}",
            field="data",
            hint="encode it first, for example as JSON",
        )
    _check_int("priority", priority, -PRIORITY_MAX, PRIORITY_MAX)
    if key is not None:
        _check_text("key", key)
        if key.encode("utf-8", "replace").decode() != key:
            raise InvalidInput("key is not valid Unicode text", field="key")
    return PushItem(
        payload=data,
        priority=priority,
        delay_ms=_ms("delay", delay) or None,
        ttl_ms=None if ttl is None else _ms("ttl", ttl, 1),
        key=key,
    )


def _ms(field: str, seconds: Seconds, low_ms: int = 0, high_ms: int = DELAY_MS_MAX) -> int:
    if type(seconds) not in (int, float):
        raise WrongType(f"{field}: expected a number of seconds, got {type(seconds).__name__}", field=field)
    if not low_ms <= seconds * 1000 <= high_ms:
        raise InvalidInput(f"{field} is {low_ms / 1000:g} to {high_ms // 1000} seconds", field=field)
    return round(seconds * 1000)


def _check_int(field: str, value: int, low: int, high: int) -> None:
    if type(value) is not int:
        raise WrongType(f"{field}: expected int, got {type(value).__name__}", field=field)
    if not low <= value <= high:
        raise InvalidInput(f"{field} must be {low} to {high}, got {value}", field=field)


def _check_text(field: str, text: str) -> None:
    if not isinstance(text, str):
        raise WrongType(f"{field}: expected str, got {type(text).__name__}", field=field)


def _absolute(path: str | os.PathLike[str]) -> str:
    return ":memory:" if os.fspath(path) == ":memory:" else str(Path(path).absolute())


def _reopen(
    path: str,
    max_retries: int | None,
    durability: Durability,
    max_bytes: int,
    clock: Clock,
    busy_ms: int,
    journal: bool | None,
) -> LiteQueue:
    return LiteQueue(
        path, max_retries, durability=durability, max_bytes=max_bytes, clock=clock, busy_ms=busy_ms, journal=journal
    )


def _message(leased: Delivery) -> Message:
    return Message(
        leased.uuid,
        leased.payload,
        leased.queue,
        leased.attempts - 1,
        leased.created_at // 1000,
        SettleItem(leased.id, leased.token),
    )


def _dead(stored: StoredMessage) -> DeadMessage:
    last_error = stored.errors[0].error if stored.errors else ""
    assert stored.finished_at is not None
    return DeadMessage(
        stored.uuid,
        stored.payload,
        stored.queue,
        stored.attempts - 1,
        stored.created_at // 1000,
        stored.finished_at // 1000,
        last_error or f"{stored.reason} {stored.attempts} times",
    )


def _lease(message: Message) -> SettleItem:
    if not isinstance(message, Message):
        raise WrongType(f"expected a Message from pop, got {type(message).__name__}", field="message")
    if message.lease is None:
        raise InvalidInput("the message was peeked at, not leased; pop it to settle it", field="message")
    return message.lease


def _by_queue(messages: Iterable[Message]) -> dict[str, list[tuple[Message, SettleItem]]]:
    if not isinstance(messages, Iterable):
        raise WrongType(f"messages: expected a list from pop_many, got {type(messages).__name__}", field="messages")
    groups: dict[str, list[tuple[Message, SettleItem]]] = {}
    for message in messages:
        lease = _lease(message)
        groups.setdefault(message.queue_name, []).append((message, lease))
    return groups
