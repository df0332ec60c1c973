"""LiteQueue: a durable queue inside your program. Bytes in, bytes out, one SQLite file.

Times are in seconds here. Threads, processes and a Penstock server may share one file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

from penstock._sync.broker import Broker, Limits
from penstock.commands import Settled, SettleItem
from penstock.errors import InvalidInput, LeaseLost, UnknownQueue, WrongType
from penstock.model import ATTEMPTS_MAX, Clock, LeasedMessage, NewMessage, QueueOptions, State, system_clock
from penstock.model import Message as StoredMessage
from penstock.store.sqlite import Durability, SqliteStore

DEFAULT_OPTIONS = QueueOptions(lease_ms=60_000, max_attempts=6)
MAX_BYTES = 16 << 20
Seconds = int | float


@dataclass(slots=True)
class Message:
    """What `pop` hands out. `id` is a time-ordered UUID, `created_at` is in whole seconds."""

    id: str
    data: bytes
    queue_name: str
    retry_count: int
    created_at: int
    lease: SettleItem | None = field(default=None, repr=False, compare=False)
    """What proves that this message is ours to settle; None for one that was only looked at."""


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
    """The last error, or that the lease expired."""


class LiteQueue:
    """
    >>> with LiteQueue(":memory:") as queue:
    ...     _ = queue.put(b"hello")
    ...     with queue.process() as message:
    ...         print(message.data)
    b'hello'

    A queue is made by its first `put`, for `max_retries` deliveries beyond the first (default 5). Given explicitly,
    `max_retries` also changes a queue that exists. `durability="relaxed"` survives a crash of the program, but not of
    the machine: the last commits may be lost, the file stays whole.
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
    ) -> None:
        if durability not in ("full", "relaxed"):
            raise InvalidInput(f"durability is 'full' or 'relaxed', not {durability!r}", field="durability")
        self._options, self._changes = DEFAULT_OPTIONS, {}
        if max_retries is not None:
            if type(max_retries) is not int or not 0 <= max_retries < ATTEMPTS_MAX:
                raise InvalidInput(f"max_retries is an int from 0 to {ATTEMPTS_MAX - 1}", field="max_retries")
            self._changes = {"max_attempts": max_retries + 1}
            self._options = DEFAULT_OPTIONS.changed(self._changes)
        self._known: set[str] = set()
        self._store = SqliteStore(path, clock=clock, durability=durability, busy_ms=busy_ms)
        self._broker = Broker(
            self._store,
            clock=clock,
            limits=Limits(payload_bytes=max_bytes, batch_bytes=max(64 << 20, max_bytes)),
        )

    def put(
        self,
        data: bytes,
        qname: str = "default",
        delay: Seconds = 0,
        *,
        priority: int = 0,
        ttl: Seconds | None = None,
        key: str | None = None,
        conn: sqlite3.Connection | None = None,
    ) -> str:
        """Add a message; answered when it is on disk. A repeated `key` returns the first message's id instead.

        With `conn`, a connection of yours to the same file, the message becomes part of your own transaction.
        """
        message = _new_message(data, delay, priority, ttl, key)
        if conn is not None:
            command = self._broker.push_command(qname, [message], create=self._options)
            id_: str = self._store.apply_on(conn, [command])[0].receipts[0].uuid
            return id_
        return self._push(qname, [message])[0]

    def put_many(self, data: Iterable[bytes], qname: str = "default", delay: Seconds = 0) -> list[str]:
        """Add messages, all or none, in one commit."""
        if isinstance(data, bytes | bytearray | str):
            raise WrongType("put_many takes many messages; use put for one", field="data")
        return self._push(qname, [_new_message(each, delay, 0, None, None) for each in data])

    def _push(self, qname: str, messages: Sequence[NewMessage]) -> list[str]:
        if self._changes and qname not in self._known:
            self._broker.configure(qname, self._changes, create=self._options)
            self._known.add(qname)
        return [receipt.uuid for receipt in self._broker.push(qname, messages, create=self._options)]

    def pop(self, qname: str = "default", timeout: Seconds = 60, *, wait: Seconds = 0) -> Message | None:
        """Lease the next message for `timeout` seconds; None when there is none, after waiting up to `wait`."""
        messages = self.pop_many(1, qname, timeout, wait=wait)
        return messages[0] if messages else None

    def pop_many(
        self, limit: int, qname: str = "default", timeout: Seconds = 60, *, wait: Seconds = 0
    ) -> list[Message]:
        """Lease up to `limit` messages in one commit."""
        lease_ms = _ms("timeout", timeout)
        try:
            leased = self._broker.lease(qname, limit=limit, lease_ms=lease_ms)
            if not leased and wait:
                leased = self._broker.lease(qname, limit=limit, lease_ms=lease_ms, wait_ms=_ms("wait", wait))
        except UnknownQueue:
            if not wait:
                return []
            self._broker.configure(qname, create=self._options)
            return self.pop_many(limit, qname, timeout, wait=wait)
        return [_message(each) for each in leased]

    def peek(self, qname: str = "default") -> Message | None:
        """The message that `pop` would hand out now, left where it is."""
        try:
            found, _ = self._broker.peek(qname)
        except UnknownQueue:
            return None
        if not found:
            return None
        stored = found[0]
        return Message(stored.uuid, stored.payload, stored.queue, stored.attempts, stored.created_at // 1000)

    def ack(self, message: Message) -> None:
        """Done: the message is gone for good. LeaseLost when it is no longer yours."""
        self._require(message, self._broker.ack(message.queue_name, [_lease(message)])[0])

    def ack_many(self, messages: Sequence[Message]) -> list[Message]:
        """Ack in one commit for each queue; answers those whose lease was lost."""
        lost: list[Message] = []
        for qname, group in _by_queue(messages):
            results = self._broker.ack(qname, [_lease(message) for message in group])
            lost += [m for m, result in zip(group, results, strict=True) if result is not Settled.OK]
        return lost

    def nack(self, message: Message, delay: Seconds | None = None, error: str | None = None) -> None:
        """Failed: comes back after `delay` (default: exponential back-off), or goes to the DLQ."""
        results = self._nack(message.queue_name, [message], delay, error)
        self._require(message, results[0])

    def nack_many(
        self, messages: Sequence[Message], delay: Seconds | None = None, error: str | None = None
    ) -> list[Message]:
        lost: list[Message] = []
        for qname, group in _by_queue(messages):
            results = self._nack(qname, group, delay, error)
            lost += [m for m, result in zip(group, results, strict=True) if result is not Settled.OK]
        return lost

    def _nack(self, qname: str, messages: Sequence[Message], delay: Seconds | None, error: str | None) -> list[Settled]:
        delay_ms = None if delay is None else _ms("delay", delay)
        items = [SettleItem(_lease(m).id, _lease(m).token, delay_ms, error) for m in messages]
        return self._broker.nack(qname, items).results

    def extend(self, message: Message, timeout: Seconds = 60) -> None:
        """Keep the message for `timeout` seconds from now."""
        outcome = self._broker.extend(message.queue_name, [_lease(message)], lease_ms=_ms("timeout", timeout))
        self._require(message, outcome.results[0])

    @contextmanager
    def process(self, qname: str = "default", timeout: Seconds = 60, *, wait: Seconds = 0) -> Iterator[Message | None]:
        """Pop for the length of a `with` block: a clean exit acks, an exception counts a retry and goes on up."""
        message = self.pop(qname, timeout, wait=wait)
        if message is None:
            yield None
            return
        try:
            yield message
        except BaseException as error:
            # The block's own error matters more than a lease lost meanwhile.
            self._nack(qname, [message], None, f"{type(error).__name__}: {error}")
            raise
        self.ack(message)

    def qsize(self, qname: str = "default") -> int:
        """Messages still to be handed out: ready or delayed. Those in a worker's hands are not counted."""
        try:
            info = self._broker.stats(qname).info
        except UnknownQueue:
            return 0
        return info.ready + info.scheduled

    def clear(self, qname: str = "default") -> int:
        """Remove all messages still to be handed out; answers how many."""
        try:
            return self._broker.purge(qname)
        except UnknownQueue:
            return 0

    def dlq(self, qname: str = "default", limit: int = 100) -> list[DeadMessage]:
        """Dead letters, newest first."""
        try:
            found, _ = self._broker.peek(qname, state=State.DEAD, limit=limit)
        except UnknownQueue:
            return []
        return [_dead(each) for each in found]

    def redrive(self, qname: str = "default", *, reason_contains: str | None = None) -> int:
        """Give dead letters a new life in their queue; answers how many."""
        try:
            return self._broker.redrive(qname, error_contains=reason_contains).moved
        except UnknownQueue:
            return 0

    def close(self) -> None:
        """Safe to call again."""
        self._broker.close()

    def __enter__(self) -> LiteQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def _require(message: Message, result: Settled) -> None:
        if result is not Settled.OK:
            raise LeaseLost(message.id)


def _new_message(data: bytes, delay: Seconds, priority: int, ttl: Seconds | None, key: str | None) -> NewMessage:
    if type(data) is not bytes:
        raise WrongType(
            f"data is bytes, not {type(data).__name__}",
            field="data",
            hint="encode it first, for example as JSON",
        )
    return NewMessage(
        payload=data,
        priority=priority,
        delay_ms=_ms("delay", delay) if delay else None,
        ttl_ms=None if ttl is None else _ms("ttl", ttl),
        key=key,
    )


def _ms(field: str, seconds: Seconds) -> int:
    if type(seconds) is int:
        return seconds * 1000
    if type(seconds) is not float:
        raise WrongType(f"{field} is a number of seconds, not {type(seconds).__name__}", field=field)
    if not abs(seconds) < 1e12:
        raise InvalidInput(f"{field} is {seconds}, which is no time", field=field)
    return round(seconds * 1000)


def _message(leased: LeasedMessage) -> Message:
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
        raise WrongType(f"a Message from pop, not {type(message).__name__}", field="message")
    if message.lease is None:
        raise InvalidInput("this message was only looked at; pop it to settle it", field="message")
    return message.lease


def _by_queue(messages: Sequence[Message]) -> Iterable[tuple[str, list[Message]]]:
    groups: dict[str, list[Message]] = {}
    for message in messages:
        groups.setdefault(message.queue_name, []).append(message)
    return groups.items()
