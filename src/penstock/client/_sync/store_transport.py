# Made by tools/unasync.py from the asynchronous twin: change that.
"""The client's operations directly on a store. Concurrent calls already share a commit, so nothing is batched here."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from penstock.broker._sync.broker import Broker
from penstock.client._sync.retry import Retry
from penstock.client.stop import StopSignal
from penstock.client.types import Page, Receipt, Redriven
from penstock.core.commands import Command, Settled, SettleItem
from penstock.core.model import Delivery, PushItem, QueueInfo, QueueOptions, State, StoredMessage, system_clock
from penstock.errors import StoreClosed, StoreError, TryLater, UnknownQueue
from penstock.wire.queue_views import stats_view
from penstock.wire.queues import Stats

if TYPE_CHECKING:
    from penstock.client._sync.store_streams import StoreStreams
    from penstock.store.factory import Durability

STOP_LOOK_SECONDS = 0.2


class StoreTransport:
    kind: Literal["store"] = "store"

    def __init__(self, broker: Broker, where: str, retry_for: float, durability: Durability) -> None:
        self.broker = broker
        self.where = where
        self._retry_for = retry_for
        self._durability = durability
        self._sends_heartbeats = self._closed = False

    @cached_property
    def streams(self) -> StoreStreams:
        from penstock.client._sync.store_streams import StoreStreams

        if self._closed:
            raise StoreClosed("the client is closed")
        return StoreStreams(self.where, self._retry_for, self._durability)

    def push(self, queue: str, messages: Sequence[PushItem]) -> list[Receipt]:
        retry: Retry | None = None
        while True:
            try:
                receipts = self.broker.push(queue, messages)
                return [Receipt(receipt.id, receipt.duplicate) for receipt in receipts]
            except TryLater as error:
                retry = retry or Retry(self._retry_for)
                retry.wait(error)

    def push_on(self, conn: Any, queue: str, messages: Sequence[PushItem]) -> list[Receipt]:
        # No retries if the queue is full: the caller's transaction would stay open meanwhile.
        receipts = self.broker.push_on(conn, queue, messages)
        return [Receipt(receipt.id, receipt.duplicate) for receipt in receipts]

    def lease(
        self,
        queue: str,
        limit: int,
        lease_ms: int | None,
        wait_seconds: float,
        stop: StopSignal | None,
        worker: str | None = None,
    ) -> list[Delivery]:
        if not wait_seconds and worker is None:
            return self.broker.lease(queue, limit=limit, lease_ms=lease_ms)
        deadline = time.monotonic() + wait_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            patience = left if stop is None else min(left, STOP_LOOK_SECONDS)
            if worker is not None:
                patience = min(patience, self.broker.worker_registry.heartbeat_ms / 1000)
            messages = self.broker.lease(
                queue, limit=limit, lease_ms=lease_ms, wait_ms=round(patience * 1000), worker=worker
            )
            if worker is not None:
                self._send_due_heartbeat()
            if messages or left <= patience or (stop is not None and stop.is_set):
                return messages

    def _send_due_heartbeat(self) -> None:
        """Register this process and its consumers as workers, as no server sends heartbeats for them."""
        worker_registry = self.broker.worker_registry
        if worker_registry.due():
            self._sends_heartbeats = True
            worker_registry.host, worker_registry.pid = socket.gethostname(), os.getpid()
            with suppress(StoreError):
                self.broker.beat()

    def settle(
        self,
        verb: str,
        queue: str,
        items: Sequence[SettleItem],
        *,
        lease_ms: int | None = None,
        retry_for: float | None = None,
        surely: bool = False,
    ) -> list[Settled]:
        if verb == "ack":
            return self.broker.ack(queue, items)
        if verb == "nack":
            return (self.broker.nack(queue, items)).results
        if verb == "release":
            return self.broker.release(queue, items)
        return (self.broker.extend(queue, items, lease_ms=lease_ms)).results

    def settle_one(self, verb: str, queue: str, item: SettleItem) -> Settled:
        if verb == "ack":
            return (self.broker.ack(queue, [item]))[0]
        return (self.settle(verb, queue, [item]))[0]

    def transact(
        self,
        home: str,
        acks: dict[str, list[SettleItem]],
        nacks: dict[str, list[SettleItem]],
        pushes: dict[str, list[PushItem]],
    ) -> list[Receipt]:
        commands: list[Command[Any]] = [
            *(self.broker.ack_command(queue, items) for queue, items in acks.items()),
            *(self.broker.nack_command(queue, items) for queue, items in nacks.items()),
            *(self.broker.push_command(queue, messages) for queue, messages in pushes.items()),
        ]
        if home not in {*acks, *nacks, *pushes}:
            self.info(home)  # Raises UnknownQueue even if the transaction is empty.
        retry = Retry(self._retry_for)
        while True:
            try:
                outcomes = self.broker.transact(commands)
                break
            except TryLater as error:
                retry.wait(error)
        receipts = [receipt for outcome in outcomes for receipt in getattr(outcome, "receipts", ())]
        return [Receipt(receipt.id, receipt.duplicate) for receipt in receipts]

    def peek(self, queue: str, state: State, limit: int, after: str | None) -> Page[StoredMessage]:
        found, following = self.broker.peek(queue, state=state, limit=limit, after=after)
        return Page(found, following)

    def get(self, queue: str, message_id: int) -> StoredMessage | None:
        return self.broker.get(queue, message_id)

    def remove(self, queue: str, message_id: int) -> bool:
        return self.broker.remove(queue, [message_id]) > 0

    def info(self, queue: str, *, patient: bool = False) -> QueueInfo:
        found = self.broker.find_queue(queue)
        if found is None:
            raise UnknownQueue(queue)
        return found

    def stats(self, queue: str) -> Stats:
        return stats_view(self.broker.stats(queue))

    def queues(self, prefix: str, limit: int, after: str | None) -> Page[QueueInfo]:
        found = self.broker.list_queues(prefix=prefix, after=after, limit=limit)
        return Page(found, found[-1].name if len(found) == limit else None)

    def create(self, queue: str, options: dict[str, Any]) -> None:
        self.broker.configure(queue, options, create=QueueOptions(), exact=True)

    def configure(self, queue: str, changes: dict[str, Any]) -> QueueInfo:
        return (self.broker.configure(queue, changes)).info

    def drop(self, queue: str, force: bool) -> int:
        return self.broker.drop(queue, force=force)

    def pause(self, queue: str, paused: bool) -> None:
        self.broker.pause(queue, paused=paused)

    def purge(self, queue: str, dead: bool) -> int:
        return self.broker.purge(queue, (State.DEAD,) if dead else (State.READY, State.SCHEDULED))

    def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[int] | None,
        error_contains: str | None,
        older_than_ms: int | None,
        rate_per_s: float | None,
        dry_run: bool,
    ) -> Redriven:
        done = self.broker.redrive(
            queue,
            ids=ids,
            error_contains=error_contains,
            died_before=None if older_than_ms is None else system_clock() - older_than_ms,
            rate_per_s=rate_per_s,
            dry_run=dry_run,
        )
        return Redriven(done.matched, done.moved)

    def close(self) -> None:
        self._closed = True
        if "streams" in vars(self):
            self.streams.close()
        if self._sends_heartbeats:
            self._sends_heartbeats = False
            with suppress(StoreError):
                self.broker.leave()
        self.broker.close()
