# Made by tools/unasync.py from the asynchronous twin: change that.
"""Message operations for all APIs. Each checks its arguments, submits a command to the store and wakes waiters.

Queue operations are in `penstock.broker._sync.admin`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.broker._sync.admin import Administration
from penstock.broker.caller_transaction_threads import push_on
from penstock.broker.dead_letters import without_origin
from penstock.core.commands import (
    Ack,
    Command,
    Extend,
    Lease,
    Leased,
    Nack,
    Push,
    Release,
    Settled,
    SettledAll,
    SettleItem,
    Take,
    Transact,
)
from penstock.core.ids import DLQ_SUFFIX, check_new_queue_name, check_queue_name, check_scope
from penstock.core.limits import Limits, check_key, check_message, check_range
from penstock.core.model import (
    DELAY_MS_MAX,
    ERROR_TEXT_MAX,
    LEASE_MS_MAX,
    TRACEBACK_MAX,
    Clock,
    Delivery,
    PushItem,
    PushReceipt,
    QueueOptions,
    State,
    system_clock,
)
from penstock.core.redact import without_secrets
from penstock.errors import BatchTooLarge, InvalidInput, PenstockError, StoreUnreachable, TryLater, UnknownQueue
from penstock.group_commit.threads import ThreadCommitter
from penstock.store.interface import Store

# Pause between attempts of a poll while the database is unavailable.
AWAY_MS = 500


class Broker(Administration):
    def __init__(self, store: Store, *, clock: Clock = system_clock, limits: Limits | None = None) -> None:
        super().__init__(store, ThreadCommitter(store, self._undo), clock, limits or Limits())
        # Set by the server's background job: the reason why pushes are rejected for now.
        self.pressure: str | None = None
        # Number of waiting polls.
        self.polls = 0
        # Number of leases released because their client disconnected.
        self.given_back = 0

    def push(
        self,
        queue: str,
        messages: Sequence[PushItem],
        *,
        create: QueueOptions | None = None,
        global_keys: bool = False,
        request_key: str | None = None,
    ) -> list[PushReceipt]:
        """Push messages into a queue durably."""
        command = self.push_command(queue, messages, create=create, global_keys=global_keys)
        if request_key is not None:
            check_key(request_key)
        command.request_key = request_key
        if self.pressure is not None:
            self._check_pressure()
        pushed = self._commit(command)
        self._waiters.wake(queue, len(messages))
        if self.events.has_listeners:
            self.events.publish(queue, "pushed", count=len(messages))
        return pushed.receipts

    def push_on(self, connection: Any, queue: str, messages: Sequence[PushItem]) -> list[PushReceipt]:
        """Push in the caller's own transaction. Waiting polls notice its commit like that of another process."""
        command = self.push_command(queue, messages)
        self._check_pressure()
        return push_on(self.store, connection, command)

    def _check_pressure(self) -> None:
        if self.pressure is not None:
            raise TryLater(self.pressure, retry_after_ms=2_000, hint="a long-running reader keeps it from shrinking")

    def push_command(
        self,
        queue: str,
        messages: Sequence[PushItem],
        *,
        create: QueueOptions | None = None,
        global_keys: bool = False,
    ) -> Push:
        check_new_queue_name(queue)
        limits = self.limits
        if len(messages) > limits.batch_messages:
            raise BatchTooLarge(
                f"{len(messages)} messages in one batch",
                hint=f"at most {limits.batch_messages}: push in parts",
            )
        size = 0
        for message in messages:
            size += len(message.payload)
            if message.headers is not None:
                message.headers = without_origin(message.headers)
            check_message(message, limits.payload_bytes)
        if size > limits.batch_bytes:
            raise BatchTooLarge(f"{size} bytes in one batch", hint=f"at most {limits.batch_bytes}: push in parts")
        return Push(queue=queue, messages=messages, create=create, global_keys=global_keys)

    def lease(
        self,
        queue: str | None = None,
        *,
        scope: str | None = None,
        limit: int = 1,
        lease_ms: int | None = None,
        worker: str | None = None,
        wait_ms: int = 0,
        on_wait: Callable[[], None] | None = None,
        await_queue: bool = False,
    ) -> list[Delivery]:
        """Lease messages to a consumer; with `wait_ms`, wait for the first.

        `on_wait` is called once there is nothing and the waiting begins; it may raise. With `await_queue`, a missing
        queue is waited for as an empty one is, and not created.
        """
        if lease_ms is not None:
            check_range("lease_ms", lease_ms, 1, LEASE_MS_MAX)
        check_range("limit", limit, 1, self.limits.batch_messages)
        if scope is not None:
            topic = scope + "/"
            command = Lease(scope=check_scope(scope), limit=limit, lease_ms=lease_ms, worker=worker)
        elif queue is not None:
            topic = queue
            command = Lease(queue=check_queue_name(queue), limit=limit, lease_ms=lease_ms, worker=worker)
        else:
            raise InvalidInput("lease from a queue or from a scope", field="queue")
        if worker is None:
            return self._wait_for(topic, command, wait_ms, on_wait, await_queue)
        registration = self.worker_registry.register(worker, topic)
        try:
            return self._wait_for(topic, command, wait_ms, on_wait, await_queue)
        finally:
            self.worker_registry.unregister(registration)

    def take(self, queue: str, *, limit: int = 1, wait_ms: int = 0) -> list[Delivery]:
        """Lease and acknowledge in one step (at most once): if the response is lost, so are the messages."""
        check_range("limit", limit, 1, self.limits.batch_messages)
        return self._wait_for(queue, Take(queue=check_queue_name(queue), limit=limit), wait_ms)

    def _wait_for(
        self,
        topic: str,
        command: Command[Leased],
        wait_ms: int,
        on_wait: Callable[[], None] | None = None,
        await_queue: bool = False,
    ) -> list[Delivery]:
        # The store's clock may be changed, and a test's may stand still, so timeouts use the monotonic clock.
        deadline = time.monotonic() + wait_ms / 1000 if wait_ms else 0
        has_waited = False
        while True:
            ticket = self._waiters.ticket(topic) if wait_ms else None
            try:
                leased = self._commit(command)
            except BaseException as error:
                if await_queue and isinstance(error, UnknownQueue):
                    leased = Leased([])
                elif not (has_waited and _found_nothing(command, error)):
                    # It may have been woken for a message that the next waiter must get now.
                    self._waiters.wake_next(topic)
                    raise
                else:
                    leased = Leased([], wake_at=self._clock() + AWAY_MS)
            finally:
                if ticket is not None:
                    self._waiters.finish_check(ticket)
            if leased.messages:
                self._waiters.wake_next(topic)
                for name in {message.queue for message in leased.messages}:
                    # ThreadWaiters for its dead letters must check again when these leases expire.
                    self._waiters.wake_one(name + DLQ_SUFFIX)
                if self.events.has_listeners:
                    self.events.publish(leased.messages[0].queue, "leased", count=len(leased.messages))
                return leased.messages
            if leased.more:
                continue
            schedule_check = None if leased.wake_at is None else max(leased.wake_at - self._clock(), 1) / 1000
            left = deadline - time.monotonic()
            if ticket is None or left <= 0 or self._waiters.closed:
                self._waiters.schedule_check(topic, schedule_check)
                return leased.messages
            if on_wait is not None:
                try:
                    on_wait()
                except BaseException:
                    self._waiters.wake_next(topic)
                    raise
                on_wait = None
            has_waited = True
            self._waiters.wait(ticket, left, schedule_check)

    def ack(self, queue: str, items: Sequence[SettleItem]) -> list[Settled]:
        """Acknowledge messages as done; they are archived or deleted."""
        outcome = self._commit(self.ack_command(queue, items))
        self._acked(queue, len(items))
        return outcome.results

    def _acked(self, queue: str, count: int) -> None:
        # An ack may free a slot in a queue with an in-flight limit.
        self._waiters.wake(queue, count)
        if self.events.has_listeners:
            self.events.publish(queue, "acked", count=count)

    def nack(self, queue: str, items: Sequence[SettleItem]) -> SettledAll:
        """Report failures; messages are retried after a delay, or dead-lettered when no attempts are left."""
        outcome = self._commit(self.nack_command(queue, items))
        self._nacked(queue, outcome)
        if State.DEAD in outcome.states:
            self._try_to_forward(queue)
        return outcome

    def _try_to_forward(self, queue: str) -> None:
        with suppress(PenstockError):  # The nack is committed; the next sweep forwards the dead letters.
            self.forward_dead(queue.removesuffix(DLQ_SUFFIX))

    def _nacked(self, queue: str, outcome: SettledAll) -> None:
        dead = outcome.states.count(State.DEAD)
        self._waiters.wake(queue, len(outcome.results))
        if dead:
            self._waiters.wake(queue + DLQ_SUFFIX, dead)
        self.events.publish(queue, "nacked", count=len(outcome.results), dead=dead)

    def extend(self, queue: str, items: Sequence[SettleItem], *, lease_ms: int | None = None) -> SettledAll:
        """Extend leases to `lease_ms` from now."""
        if lease_ms is not None:
            check_range("lease_ms", lease_ms, 1, LEASE_MS_MAX)
        self._check_items(queue, items)
        outcome = self._commit(Extend(queue=queue, items=items, lease_ms=lease_ms))
        # The lease may now end sooner than waiters expect.
        self._waiters.wake(queue, 1)
        return outcome

    def release(self, queue: str, items: Sequence[SettleItem]) -> list[Settled]:
        """Release leases of unstarted messages without using up an attempt."""
        self._check_items(queue, items)
        outcome = self._commit(Release(queue=queue, items=items))
        self._waiters.wake(queue, len(items))
        return outcome.results

    def give_back(self, messages: Sequence[Delivery]) -> None:
        """Release undelivered leases in the background. Taken messages are lost (at most once)."""
        by_queue: dict[str, list[SettleItem]] = {}
        for message in messages:
            if message.token:
                by_queue.setdefault(message.queue, []).append(SettleItem(message.id, message.token))
        for queue, items in by_queue.items():
            self._committer.post(Release(queue=queue, items=items), partial(self._given_back, queue))

    def _given_back(self, queue: str, outcome: SettledAll) -> None:
        count = outcome.results.count(Settled.OK)
        self.given_back += count
        self._waiters.wake(queue, count)

    def _undo(self, command: Command[Any], outcome: Any) -> None:
        """Release the leases of a command whose caller was cancelled."""
        if isinstance(outcome, Leased):
            self.give_back(outcome.messages)

    def ack_command(self, queue: str, items: Sequence[SettleItem]) -> Ack:
        self._check_items(queue, items)
        return Ack(queue=queue, items=items)

    def nack_command(self, queue: str, items: Sequence[SettleItem]) -> Nack:
        self._check_items(queue, items)
        for item in items:
            if item.delay_ms is not None:
                check_range("delay_ms", item.delay_ms, 0, DELAY_MS_MAX)
            if item.error is not None:
                item.error = item.error[:ERROR_TEXT_MAX]
            if item.traceback is not None:
                # Keep the end of the traceback, which has the error and the innermost call.
                item.traceback = without_secrets(item.traceback)[-TRACEBACK_MAX:]
        return Nack(queue=queue, items=items)

    def _check_items(self, queue: str, items: Sequence[SettleItem]) -> None:
        check_queue_name(queue)
        if len(items) > self.limits.batch_messages:
            raise BatchTooLarge(f"{len(items)} items in one batch", hint=f"at most {self.limits.batch_messages}")

    def transact(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Execute all commands in one transaction."""
        if len(commands) > self.limits.batch_messages:
            raise BatchTooLarge(f"{len(commands)} commands in one transaction")
        if any(isinstance(command, Push) for command in commands):
            self._check_pressure()
        done = self._commit(Transact(commands=commands))
        for command, outcome in zip(commands, done.outcomes, strict=True):
            if isinstance(command, Push):
                self._waiters.wake(command.queue, len(command.messages))
                self.events.publish(command.queue, "pushed", count=len(command.messages))
            elif isinstance(command, Nack):
                self._nacked(command.queue, outcome)
                if State.DEAD in outcome.states:
                    self._try_to_forward(command.queue)
            elif isinstance(command, Ack):
                self._acked(command.queue, len(command.items))
        return done.outcomes

    @property
    def closing(self) -> bool:
        return self._waiters.closed

    @property
    def committer(self) -> ThreadCommitter:
        return self._committer

    def stop_waiting(self) -> None:
        """End all waiting polls now, without messages."""
        self._waiters.close()
        self.events.close()

    def close(self) -> None:
        """End all waits, finish accepted commands and close the store."""
        self.stop_waiting()
        self._committer.close()
        self.store.close()


def _found_nothing(command: Command[Leased], error: BaseException) -> bool:
    """Return True if a poll may treat an unreachable database as an empty queue: a lease that was committed after all
    expires by itself, but taken messages would be lost."""
    return isinstance(error, StoreUnreachable) and not (command.durable and error.maybe_done)
