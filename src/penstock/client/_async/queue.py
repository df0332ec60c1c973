"""Operations of one queue."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from penstock.client._async.message import LeasedMessage, check_leased
from penstock.client._async.transaction import Transaction
from penstock.client.handler_pace import AHEAD_MAX, HandlerPace
from penstock.client.types import (
    NewMessage,
    Options,
    Page,
    PeekedMessage,
    Receipt,
    Redriven,
    Seconds,
    milliseconds,
    peeked,
)
from penstock.core.commands import Settled, SettleItem
from penstock.core.ids import DLQ_SUFFIX, ID_MAX, check_queue_name
from penstock.core.limits import check_flag, check_many, check_range, check_text
from penstock.core.model import BATCH_MAX, DELAY_MS_MAX, ERROR_TEXT_MAX, LEASE_MS_MAX, QueueInfo, State
from penstock.core.model import PushItem as StoredNewMessage
from penstock.errors import InvalidInput, WrongType
from penstock.wire.queues import Stats

if TYPE_CHECKING:
    from penstock.client._async.client import Client
    from penstock.client._async.worker import Worker

CONSUME_WAIT_SECONDS = 60.0


class Queue:
    """A queue, returned by `client.queue(name)`. Durations are in seconds::

    receipt = await queue.push({"to": "ann"}, delay=60)
    async for message in queue.consume():
        async with message:
            await send(message.payload)
    """

    def __init__(self, client: Client, name: str) -> None:
        self.name = check_queue_name(name)
        self._client = client
        self._transport = client.transport

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    # Pushing

    async def push(
        self,
        payload: Any,
        *,
        priority: int = 0,
        delay: Seconds | None = None,
        ttl: Seconds | None = None,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        conn: Any = None,
    ) -> Receipt:
        """Push a message: a JSON value, or bytes. Returns once it is durable.

        A duplicate `key` adds nothing and returns the id of the first message, with `duplicate` set. With `conn`, your
        own connection to the same file or database, the message is part of your transaction: consumers get it after
        your commit, and a rollback removes it.
        """
        message = NewMessage(payload=payload, priority=priority, delay=delay, ttl=ttl, key=key, headers=headers)
        return (await self._push([message.to_store()], conn))[0]

    async def push_many(self, messages: Iterable[Any], *, conn: Any = None) -> list[Receipt]:
        """Push messages, all or none: payloads, or `NewMessage` for one with its own options. `conn`: see `push`."""
        some = check_many("messages", messages, BATCH_MAX)
        new = [each if isinstance(each, NewMessage) else NewMessage(payload=each) for each in some]
        return await self._push([each.to_store() for each in new], conn) if new else []

    def _push(self, messages: list[StoredNewMessage], conn: Any) -> Awaitable[list[Receipt]]:
        if conn is None:
            return self._transport.push(self.name, messages)
        return self._transport.push_on(conn, self.name, messages)

    # Consuming

    async def lease(self, limit: int = 1, *, lease: Seconds | None = None, wait: Seconds = 0) -> list[LeasedMessage]:
        """Lease up to `limit` messages for `lease` seconds (default: the queue's), waiting up to `wait` for the first.

        Ack, nack, extend or release each of them. Unlike with `consume`, leases are not extended in the background.
        """
        _check_limit(limit, BATCH_MAX)
        lease_ms = None if lease is None else milliseconds("lease", lease, 1, LEASE_MS_MAX)
        wait_ms = milliseconds("wait", wait)
        found = await self._transport.lease(self.name, limit, lease_ms, wait_ms / 1000, None)
        return [LeasedMessage(self._client, each) for each in found]

    async def consume(
        self,
        *,
        batch: int | None = None,
        lease: Seconds | None = None,
        idle: Seconds | None = None,
        keep_alive_for: Seconds = 3600,
    ) -> AsyncIterator[LeasedMessage]:
        """Yield messages as they arrive, forever, or until none has arrived for `idle` seconds.

        Messages are not acked automatically: use each one in a `with` block, or ack or nack it. Until then, and while
        you hold a reference to it, its lease is extended in the background, for `keep_alive_for` seconds at most.

        If your loop is fast, messages are leased ahead, about a tenth of a second of work; those that you have not
        reached after a second go back to the queue. `batch` leases this many at a time instead and keeps them. Leaving
        the loop releases messages that were leased ahead.
        """
        _check_limit(1 if batch is None else batch, BATCH_MAX)
        lease_ms = await self.lease_ms(lease)
        wait = CONSUME_WAIT_SECONDS if idle is None else milliseconds("idle", idle) / 1000
        keep_seconds = milliseconds("keep_alive_for", keep_alive_for, 1) / 1000
        renewer = self._client.lease_renewer
        pace = HandlerPace(lease_ms)
        ahead: deque[LeasedMessage] = deque()
        try:
            while True:
                for each in await self._transport.lease(
                    self.name, batch or 1 + pace.ahead(), lease_ms, wait, None, self._client.worker_name
                ):
                    leased = LeasedMessage(self._client, each)
                    if batch is None:
                        renewer.hold(leased, lease_ms, pace.hold_seconds)
                    else:
                        renewer.keep(leased, lease_ms, keep_seconds)
                    ahead.append(leased)
                    del leased
                if not ahead and idle is not None:
                    return
                while ahead:
                    if not renewer.keep(ahead[0], lease_ms, keep_seconds):
                        ahead.popleft()
                        continue
                    size, began = ahead[0].size, time.monotonic()
                    # Not kept here: a message that the caller drops is no longer renewed.
                    yield ahead.popleft()
                    pace.finished(size, time.monotonic() - began)
        finally:
            left = [message for message in ahead if not message.lost]
            for message in left:
                renewer.end(message)
            if left:
                await self._transport.settle("release", self.name, [message.item() for message in left])

    async def lease_ms(self, lease: Seconds | None) -> int:
        """Return the lease time: the given one, or the queue's."""
        if lease is not None:
            return milliseconds("lease", lease, 1, LEASE_MS_MAX)
        return (await self._transport.info(self.name.removesuffix(DLQ_SUFFIX), patient=True)).options.lease_ms

    async def ack(self, message: LeasedMessage) -> None:
        """Acknowledge a message. Raises LeaseLost if the lease is over."""
        await check_leased(message).ack()

    async def ack_many(self, messages: Iterable[LeasedMessage]) -> list[LeasedMessage]:
        """Ack messages in one request; return those whose lease was lost."""
        return await self._settle_many("ack", messages, LeasedMessage.item)

    async def nack(
        self,
        message: LeasedMessage,
        error: str | BaseException | None = None,
        *,
        delay: Seconds | None = None,
        dead: bool = False,
        discard: bool = False,
    ) -> None:
        """Report failure: retry after `delay` seconds (default: the queue's backoff), or dead-letter the message.

        With `dead`, the message is dead-lettered now, even if attempts are left; with `discard`, it is deleted.
        """
        await check_leased(message).nack(error, delay=delay, dead=dead, discard=discard)

    async def nack_many(
        self,
        messages: Iterable[LeasedMessage],
        error: str | BaseException | None = None,
        *,
        delay: Seconds | None = None,
        dead: bool = False,
        discard: bool = False,
    ) -> list[LeasedMessage]:
        """Nack messages in one request; return those whose lease was lost."""
        return await self._settle_many(
            "nack", messages, lambda message: message.failed_item(error, delay, dead, discard)
        )

    async def release(self, message: LeasedMessage) -> None:
        """Return the message to the queue: it keeps its position, and the delivery does not count as an attempt."""
        await check_leased(message).release()

    async def extend(self, message: LeasedMessage, lease: Seconds | None = None) -> None:
        """Extend the lease to `lease` seconds from now (default: the queue's lease time)."""
        await check_leased(message).extend(lease)

    async def _settle_many(
        self, verb: str, many: Iterable[LeasedMessage], to_item: Callable[[LeasedMessage], SettleItem]
    ) -> list[LeasedMessage]:
        messages = check_many("messages", many, BATCH_MAX)
        for message in map(check_leased, messages):
            if message.queue != self.name:
                raise InvalidInput(
                    f"message {message.id} belongs to queue {message.queue!r}, not {self.name!r}", field="messages"
                )
        items = [to_item(message) for message in messages]
        results = await self._transport.settle(verb, self.name, items, surely=True)
        lost = []
        for message, result in zip(messages, results, strict=True):
            self._client.lease_renewer.end(message)
            if result is not Settled.OK:
                message.lost = True
                lost.append(message)
        return lost

    def transact(self) -> Transaction:
        """Start a transaction: acks, nacks and pushes (to any queue) happen together at the end of a `with` block."""
        return Transaction(self._client, self.name)

    @overload
    def worker(self, handler: Callable[[LeasedMessage], Awaitable[object]], /) -> Worker: ...

    @overload
    def worker(
        self,
        /,
        *,
        concurrency: int = 1,
        lease: Seconds | None = None,
        time_limit: Seconds | None = None,
        grace: Seconds = 30,
        prefetch: int = AHEAD_MAX,
    ) -> Callable[[Callable[[LeasedMessage], Awaitable[object]]], Worker]: ...

    def worker(
        self,
        handler: Callable[[LeasedMessage], Awaitable[object]] | None = None,
        /,
        *,
        concurrency: int = 1,
        lease: Seconds | None = None,
        time_limit: Seconds | None = None,
        grace: Seconds = 30,
        prefetch: int = AHEAD_MAX,
    ) -> Worker | Callable[[Callable[[LeasedMessage], Awaitable[object]]], Worker]:
        """Turn a function into a worker of the queue, with options or as plain `@queue.worker`::

            @queue.worker(concurrency=8, time_limit=30)
            async def send(message):
                await mail(message.payload["to"])

            await send.run()  # until SIGTERM, SIGINT or send.stop()

        Returning acks the message in the background; an exception nacks it with its text and the queue's backoff. If
        handlers are fast, up to `prefetch` messages are leased ahead; 0 leases only what starts at once.
        """

        from penstock.client._async.worker import Worker

        def make(handler: Callable[[LeasedMessage], Awaitable[object]]) -> Worker:
            if not callable(handler):
                raise WrongType(f"handler: expected a function, got {type(handler).__name__}", field="handler")
            return Worker(
                self,
                self._client,
                handler,
                concurrency=concurrency,
                lease=lease,
                time_limit=time_limit,
                grace=grace,
                prefetch=prefetch,
            )

        return make if handler is None else make(handler)

    # Reading

    async def peek(self, limit: int = 1, *, state: str = "ready", after: str | None = None) -> Page[PeekedMessage]:
        """Return messages in the order they would be leased, without leasing them. States: see `penstock.State`."""
        try:
            wanted = State(state)
        except ValueError:
            raise InvalidInput(f"state must be one of {', '.join(State)}, got {state!r}", field="state") from None
        if type(limit) is not int:
            raise WrongType(f"limit: expected int, got {type(limit).__name__}", field="limit")
        if after is not None:
            check_text("after", after)
        found = await self._transport.peek(self.name, wanted, limit, after)
        return Page([peeked(each) for each in found], found.next)

    async def get(self, message_id: int) -> PeekedMessage | None:
        """Return one message, without leasing it."""
        check_range("message_id", message_id, 1, ID_MAX)
        found = await self._transport.get(self.name, message_id)
        return None if found is None else peeked(found)

    async def stats(self) -> Stats:
        return await self._transport.stats(self.name)

    async def info(self) -> QueueInfo:
        """Return the queue's options and counters."""
        return await self._transport.info(self.name)

    # Managing

    async def remove(self, message_id: int) -> bool:
        """Delete one message; return whether it existed."""
        check_range("message_id", message_id, 1, ID_MAX)
        return await self._transport.remove(self.name, message_id)

    async def configure(self, **changes: Unpack[Options]) -> QueueInfo:
        """Change the given options; the others stay as they are."""
        return await self._transport.configure(self.name, dict(changes))

    async def pause(self) -> None:
        """Stop leasing messages; pushes go on."""
        await self._transport.pause(self.name, True)

    async def resume(self) -> None:
        await self._transport.pause(self.name, False)

    async def purge(self) -> int:
        """Delete all ready and scheduled messages; return how many."""
        return await self._transport.purge(self.name, False)

    async def drop(self, *, force: bool = False) -> int:
        """Delete the queue; with `force`, even if it holds messages."""
        check_flag("force", force)
        return await self._transport.drop(self.name, force)

    # Dead letters

    async def dead_letters(self, limit: int = 100, *, after: str | None = None) -> Page[PeekedMessage]:
        """Return dead letters, newest first, with their errors."""
        return await self.peek(limit, state="dead", after=after)

    async def redrive(
        self,
        *,
        ids: Sequence[int] | None = None,
        error_contains: str | None = None,
        older_than: Seconds | None = None,
        rate_per_s: float | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Move dead letters back into their queue: all of them, or those that match."""
        older_than_ms = None if older_than is None else milliseconds("older_than", older_than, 0, DELAY_MS_MAX)
        if error_contains is not None:
            check_text("error_contains", error_contains)
            if len(error_contains) > ERROR_TEXT_MAX:
                raise InvalidInput(
                    f"error_contains must have at most {ERROR_TEXT_MAX} characters", field="error_contains"
                )
        check_flag("dry_run", dry_run)
        if rate_per_s is not None and type(rate_per_s) not in (int, float):
            raise WrongType(f"rate_per_s: expected a number, got {type(rate_per_s).__name__}", field="rate_per_s")
        return await self._transport.redrive(
            self.name,
            ids=None if ids is None else _checked_ids(ids),
            error_contains=error_contains,
            older_than_ms=older_than_ms,
            rate_per_s=rate_per_s,
            dry_run=dry_run,
        )

    async def purge_dead_letters(self) -> int:
        return await self._transport.purge(self.name, True)


def _check_limit(limit: int, highest: int) -> None:
    if type(limit) is not int:
        raise WrongType(f"limit: expected int, got {type(limit).__name__}", field="limit")
    if not 1 <= limit <= highest:
        raise InvalidInput(f"limit must be 1 to {highest}, got {limit}", field="limit")


def _checked_ids(ids: Iterable[int]) -> list[int]:
    some = check_many("ids", ids, BATCH_MAX)
    for each in some:
        check_range("ids", each, 1, ID_MAX)
    return some
