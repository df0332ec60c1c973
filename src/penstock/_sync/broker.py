"""The verbs, once for all faces. Each checks its arguments, becomes a command, and wakes whoever waited for it.

Made by tools/unasync.py from the asynchronous twin: change that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from penstock.commands import (
    Ack,
    AddKey,
    Beaten,
    CatchUp,
    CatchUpJournal,
    Command,
    Configure,
    Configured,
    Drop,
    Extend,
    ForgetJournal,
    Lease,
    Leased,
    Nack,
    Pause,
    Purge,
    Push,
    Redrive,
    Redriven,
    Release,
    Remove,
    RemoveKey,
    SetSecret,
    Settled,
    SettledAll,
    SettleItem,
    Sweep,
    Swept,
    Take,
    Transact,
)
from penstock.thread_committer import ThreadCommitter
from penstock.errors import BatchTooLarge, InvalidInput, StoreUnreachable, TryLater, UnknownQueue
from penstock.events import Events
from penstock.identity import DLQ_SUFFIX, check_new_queue_name, check_queue_name, check_scope
from penstock.limits import Limits, check_key, check_message, check_range
from penstock.model import (
    DELAY_MS_MAX,
    ERROR_TEXT_MAX,
    LEASE_MS_MAX,
    ApiKey,
    Clock,
    Latencies,
    LeasedMessage,
    Message,
    NewMessage,
    QueueInfo,
    QueueOptions,
    QueueStats,
    Receipt,
    RollUp,
    State,
    Window,
    Worker,
    system_clock,
)
from penstock.roster import Roster
from penstock.store.protocol import Progress, Store
from penstock.thread_wakeups import ThreadWakeups

T = TypeVar("T")
ALL_STATES = tuple(State)
AWAY_MS = 500
"""Between looks of a poll at a database that went away while it waited."""


class Broker:
    def __init__(self, store: Store, *, clock: Clock = system_clock, limits: Limits | None = None) -> None:
        self.store = store
        self.limits = limits or Limits()
        self._clock = clock
        self._committer = ThreadCommitter(store, self._undo)
        self._wakeups = ThreadWakeups(store.version)
        self._commit = self._committer.submit
        self.events = Events()
        self.roster = Roster()
        self.pressure: str | None = None
        """Set by whoever watches the store: why pushes are refused for now."""
        self.polls = 0
        """Polls that wait now."""
        self.given_back = 0
        """Leases given back because their client had gone."""

    def push(
        self,
        queue: str,
        messages: Sequence[NewMessage],
        *,
        create: QueueOptions | None = None,
        global_keys: bool = False,
        request_key: str | None = None,
    ) -> list[Receipt]:
        """Put messages into a queue; answered when they are on disk."""
        command = self.push_command(queue, messages, create=create, global_keys=global_keys)
        if request_key is not None:
            check_key(request_key)
        command.request_key = request_key
        if self.pressure is not None:
            self._check_pressure()
        pushed = self._commit(command)
        self._wakeups.wake(queue, len(messages))
        if self.events.listened:
            self.events.publish(queue, "pushed", count=len(messages))
        return pushed.receipts

    def _check_pressure(self) -> None:
        if self.pressure is not None:
            raise TryLater(self.pressure, retry_after_ms=2_000, hint="a long-running reader keeps it from shrinking")

    def push_command(
        self,
        queue: str,
        messages: Sequence[NewMessage],
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
    ) -> list[LeasedMessage]:
        """Hand messages to one consumer for a time; with `wait_ms`, wait for the first to come.

        `on_wait` is called once there is nothing and the waiting begins.
        """
        if lease_ms is not None:
            check_range("lease_ms", lease_ms, 1, LEASE_MS_MAX)
        check_range("limit", limit, 1, self.limits.batch_messages)
        if scope is not None:
            interest = scope + "/"
            command = Lease(scope=check_scope(scope), limit=limit, lease_ms=lease_ms, worker=worker)
        elif queue is not None:
            interest = queue
            command = Lease(queue=check_queue_name(queue), limit=limit, lease_ms=lease_ms, worker=worker)
        else:
            raise InvalidInput("lease from a queue or from a scope", field="queue")
        if worker is None:
            return self._wait_for(interest, command, wait_ms, on_wait)
        seat = self.roster.sit(worker, interest)
        try:
            return self._wait_for(interest, command, wait_ms, on_wait)
        finally:
            self.roster.rise(seat)

    def take(self, queue: str, *, limit: int = 1, wait_ms: int = 0) -> list[LeasedMessage]:
        """Lease and finish in one step: whoever loses the answer loses the messages."""
        check_range("limit", limit, 1, self.limits.batch_messages)
        return self._wait_for(queue, Take(queue=check_queue_name(queue), limit=limit), wait_ms)

    def _wait_for(
        self,
        interest: str,
        command: Command[Leased],
        wait_ms: int,
        on_wait: Callable[[], None] | None = None,
    ) -> list[LeasedMessage]:
        # The clock on the wall may be set, and a test's may stand still: patience is measured by another.
        deadline = time.monotonic() + wait_ms / 1000 if wait_ms else 0
        has_waited = False
        while True:
            ticket = self._wakeups.ticket(interest) if wait_ms else None
            try:
                leased = self._commit(command)
            except BaseException as error:
                if not (has_waited and _found_nothing(command, error)):
                    # It may have been woken for a message that it now leaves to the next.
                    self._wakeups.pass_on(interest)
                    raise
                leased = Leased([], wake_at=self._clock() + AWAY_MS)
            finally:
                if ticket is not None:
                    self._wakeups.looked(ticket)
            if leased.messages:
                self._wakeups.pass_on(interest)
                for name in {message.queue for message in leased.messages}:
                    # Whoever waits for its dead letters learns when these leases lapse.
                    self._wakeups.wake_one(name + DLQ_SUFFIX)
                if self.events.listened:
                    self.events.publish(leased.messages[0].queue, "leased", count=len(leased.messages))
                return leased.messages
            if leased.more:
                continue
            look_in = None if leased.wake_at is None else max(leased.wake_at - self._clock(), 1) / 1000
            left = deadline - time.monotonic()
            if ticket is None or left <= 0 or self._wakeups.closed:
                self._wakeups.look_in(interest, look_in)
                return leased.messages
            if on_wait is not None:
                on_wait()
                on_wait = None
            has_waited = True
            self._wakeups.wait(ticket, left, look_in)

    def ack(self, queue: str, items: Sequence[SettleItem]) -> list[Settled]:
        """Done: archived or deleted."""
        outcome = self._commit(self.ack_command(queue, items))
        self._acked(queue, len(items))
        return outcome.results

    def _acked(self, queue: str, count: int) -> None:
        # An ack may open a place in a queue that limits how many are in flight.
        self._wakeups.wake(queue, count)
        if self.events.listened:
            self.events.publish(queue, "acked", count=count)

    def nack(self, queue: str, items: Sequence[SettleItem]) -> SettledAll:
        """Failed: tried again after a delay, or dead when no attempts are left."""
        outcome = self._commit(self.nack_command(queue, items))
        self._nacked(queue, outcome)
        return outcome

    def _nacked(self, queue: str, outcome: SettledAll) -> None:
        dead = outcome.states.count(State.DEAD)
        self._wakeups.wake(queue, len(outcome.results))
        if dead:
            self._wakeups.wake(queue + DLQ_SUFFIX, dead)
        self.events.publish(queue, "nacked", count=len(outcome.results), dead=dead)

    def extend(self, queue: str, items: Sequence[SettleItem], *, lease_ms: int | None = None) -> SettledAll:
        """Keep leases for `lease_ms` from now."""
        if lease_ms is not None:
            check_range("lease_ms", lease_ms, 1, LEASE_MS_MAX)
        self._check_items(queue, items)
        outcome = self._commit(Extend(queue=queue, items=items, lease_ms=lease_ms))
        # It may end sooner than those who wait for its end have been told.
        self._wakeups.wake(queue, 1)
        return outcome

    def release(self, queue: str, items: Sequence[SettleItem]) -> list[Settled]:
        """Give back leases that were not begun: no attempt is used up."""
        self._check_items(queue, items)
        outcome = self._commit(Release(queue=queue, items=items))
        self._wakeups.wake(queue, len(items))
        return outcome.results

    def give_back(self, messages: Sequence[LeasedMessage]) -> None:
        """Leases that never reached their consumer, without waiting for it. What was taken is gone: at most once."""
        by_queue: dict[str, list[SettleItem]] = {}
        for message in messages:
            if message.token:
                by_queue.setdefault(message.queue, []).append(SettleItem(message.id, message.token))
        for queue, items in by_queue.items():
            self._committer.post(Release(queue=queue, items=items), partial(self._given_back, queue))

    def _given_back(self, queue: str, outcome: SettledAll) -> None:
        count = outcome.results.count(Settled.OK)
        self.given_back += count
        self._wakeups.wake(queue, count)

    def _undo(self, command: Command[Any], outcome: Any) -> None:
        """The command was carried out, but whoever asked has gone meanwhile."""
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
        return Nack(queue=queue, items=items)

    def _check_items(self, queue: str, items: Sequence[SettleItem]) -> None:
        check_queue_name(queue)
        if len(items) > self.limits.batch_messages:
            raise BatchTooLarge(f"{len(items)} items in one batch", hint=f"at most {self.limits.batch_messages}")

    def transact(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """All of these commands or none."""
        if len(commands) > self.limits.batch_messages:
            raise BatchTooLarge(f"{len(commands)} commands in one transaction")
        if any(isinstance(command, Push) for command in commands):
            self._check_pressure()
        done = self._commit(Transact(commands=commands))
        for command, outcome in zip(commands, done.outcomes, strict=True):
            if isinstance(command, Push):
                self._wakeups.wake(command.queue, len(command.messages))
                self.events.publish(command.queue, "pushed", count=len(command.messages))
            elif isinstance(command, Nack):
                self._nacked(command.queue, outcome)
            elif isinstance(command, Ack):
                self._acked(command.queue, len(command.items))
        return done.outcomes

    def peek(
        self, queue: str, *, state: State = State.READY, limit: int = 1, after: str | None = None
    ) -> tuple[list[Message], str | None]:
        """Look at messages without leasing them, and get a cursor for the next page."""
        check_range("limit", limit, 1, self.limits.page)
        self._catch_up(queue)
        return self._committer.call(lambda: self.store.peek(queue, state=state, limit=limit, after=after))

    def get(self, queue: str, message_id: int) -> Message | None:
        self._catch_up(queue)
        return self._committer.call(lambda: self.store.get(queue, message_id))

    def locate(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        """The queue and id of messages by their UUIDs or global keys."""
        if len(names) > self.limits.batch_messages:
            raise BatchTooLarge(f"{len(names)} names in one batch", hint=f"at most {self.limits.batch_messages}")
        return self._committer.call(lambda: self.store.locate(names))

    def held(self, queue: str, uuids: Sequence[str]) -> set[str]:
        """Those of these messages that are in a queue, and not done."""
        check_queue_name(queue)
        if len(uuids) > self.limits.batch_messages:
            raise BatchTooLarge(f"{len(uuids)} UUIDs in one batch", hint=f"at most {self.limits.batch_messages}")
        return self._committer.call(lambda: self.store.held(queue, uuids))

    def stats(self, queue: str) -> QueueStats:
        self._catch_up(queue)
        return self._committer.call(lambda: self.store.stats(queue))

    def find_queue(self, queue: str) -> QueueInfo | None:
        check_queue_name(queue)
        return self._committer.call(lambda: self.store.find_queue(queue))

    def list_queues(self, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[QueueInfo]:
        check_range("limit", limit, 1, self.limits.page)
        return self._committer.call(lambda: self.store.list_queues(prefix=prefix, after=after, limit=limit))

    def roll_ups(
        self, window: Window, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> list[RollUp]:
        """Queues with what happened to them in each step of a window."""
        self._check_window(window, limit)
        look = partial(self.store.roll_ups, window, prefix=prefix, after=after, limit=limit)
        return self._committer.call(look, long=True)

    def latencies(
        self, window: Window, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> list[Latencies]:
        """Queues with how long their messages took."""
        self._check_window(window, limit)
        look = partial(self.store.latencies, window, prefix=prefix, after=after, limit=limit)
        return self._committer.call(look, long=True)

    def _check_window(self, window: Window, limit: int) -> None:
        check_range("limit", limit, 1, self.limits.page)
        check_range("steps", len(window.starts), 1, self.limits.steps)

    def export(self, queue: str) -> Generator[Message, None, None]:
        return self.store.export(check_queue_name(queue))

    def _catch_up(self, queue: str) -> None:
        check_queue_name(queue)
        while (self._commit(CatchUp(queue=queue))).more:
            pass

    def remove(self, queue: str, ids: Sequence[int]) -> int:
        if len(ids) > self.limits.batch_messages:
            raise BatchTooLarge(f"{len(ids)} ids in one batch", hint=f"at most {self.limits.batch_messages}")
        removed = (self._commit(Remove(queue=check_queue_name(queue), ids=ids))).removed
        # Among them may have been leases that filled a queue's limit.
        self._wakeups.wake(queue, removed)
        self.events.publish(queue, "removed", count=removed)
        return removed

    def purge(self, queue: str, states: Sequence[State] = (State.READY, State.SCHEDULED)) -> int:
        """Remove all messages in these states; those that arrive meanwhile stay."""
        self._catch_up(queue)
        removed = 0
        up_to_id: int | None = None
        while True:
            step = self._commit(Purge(queue=queue, states=states, up_to_id=up_to_id))
            removed += step.removed
            up_to_id = step.up_to_id
            if not step.more:
                self._wakeups.wake(queue, 1)
                self.events.publish(queue, "purged", count=removed)
                return removed

    def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[int] | None = None,
        error_contains: str | None = None,
        died_before: int | None = None,
        rate_per_s: float | None = None,
        dry_run: bool = False,
        by: str | None = None,
    ) -> Redriven:
        """Put dead letters back into their queue; those that die meanwhile stay. `by` is for the journal."""
        self._catch_up(queue)
        if rate_per_s is not None and not 0 < rate_per_s <= 1e6:
            raise InvalidInput("rate_per_s is above 0 and at most 1000000", field="rate_per_s")
        if died_before is None:
            # The clock may have been set back since they died.
            newest, _ = self._committer.call(lambda: self.store.peek(queue, state=State.DEAD))
            died_before = max([self._clock(), *(message.finished_at or 0 for message in newest)])
        total = Redriven(0, 0)
        command = Redrive(
            queue=queue,
            ids=ids,
            error_contains=error_contains,
            died_before=died_before,
            dry_run=dry_run,
            by=by,
        )
        if rate_per_s is not None:
            command.limit = max(1, min(1_000, int(rate_per_s / 10)))
        while True:
            step = self._commit(command)
            total.matched += step.matched
            total.moved += step.moved
            self._wakeups.wake(queue, step.moved)
            command.after = step.after
            if step.after is None or self._wakeups.closed:
                self.events.publish(queue, "redriven", count=total.moved)
                return total
            if rate_per_s is not None and step.moved:
                self._wakeups.sleep(step.moved / rate_per_s)

    def sweep(self, *, days_kept: int = 30) -> Swept:
        """One bounded step of what time moves, in all queues. `days_kept`: for how long roll-ups stay."""
        return self._commit(Sweep(minutes_kept=days_kept * 24 * 60))

    def beat(self) -> Beaten:
        """Tell who works here, and take those off the list who have been silent for too long."""
        return self._commit(self.roster.beat())

    def leave(self) -> Beaten:
        """Tell that nobody works here any more."""
        return self._commit(self.roster.leave())

    def workers(self, *, after: str | None = None, limit: int = 100) -> list[Worker]:
        """Servers and consumers, each with what it holds."""
        check_range("limit", limit, 1, self.limits.page)
        return self._committer.call(lambda: self.store.workers(after=after, limit=limit))

    def configure(
        self,
        queue: str,
        changes: dict[str, Any] | None = None,
        *,
        create: QueueOptions | None = None,
        exact: bool = False,
    ) -> Configured:
        """Change a queue's options; with `create`, make it when it is missing."""
        check_new_queue_name(queue)
        if create is not None:
            create.changed(changes or {})
        configured = self._commit(Configure(queue=queue, changes=changes or {}, create=create, exact=exact))
        self._wakeups.wake(queue, 1)
        return configured

    def pause(self, queue: str, *, paused: bool = True) -> QueueInfo:
        """Pausing stops leases, not pushes."""
        configured = self._commit(Pause(queue=check_queue_name(queue), paused=paused))
        if not paused:
            self._wakeups.wake(queue, max(1, configured.info.ready))
        self.events.publish(queue, "paused" if paused else "resumed")
        return configured.info

    def drop(self, queue: str, *, force: bool = False) -> int:
        """Remove a queue; with `force`, also what it holds."""
        if self.find_queue(queue) is None:
            raise UnknownQueue(queue)
        removed = self.purge(queue, ALL_STATES) if force else 0
        removed += (self._commit(Drop(queue=queue, force=force))).removed
        # Whoever waits for it is told that there is nothing to wait for.
        self._wakeups.wake(queue, 1)
        self._wakeups.wake_one(queue + DLQ_SUFFIX)
        self.events.publish(queue, "dropped")
        return removed

    def add_key(self, queue: str, *, id: str, name: str, hash: bytes, rights: Sequence[str]) -> ApiKey:
        command = AddKey(queue=check_queue_name(queue), id=id, name=name, hash=hash, rights=rights)
        return self._commit(command)

    def remove_key(self, queue: str, key_id: str) -> bool:
        return (self._commit(RemoveKey(queue=check_queue_name(queue), id=key_id))).removed > 0

    def find_key(self, key_id: str) -> ApiKey | None:
        return self._committer.call(lambda: self.store.find_key(key_id))

    def list_keys(self, queue: str) -> list[ApiKey]:
        check_queue_name(queue)
        return self._committer.call(lambda: self.store.list_keys(queue))

    def set_secret(self, queue: str, secret: str | None) -> None:
        """From now on take only messages signed with this secret; None takes any."""
        self._commit(SetSecret(queue=check_queue_name(queue), secret=secret))

    def find_secret(self, queue: str) -> str | None:
        return self._committer.call(lambda: self.store.find_secret(queue))

    @property
    def closing(self) -> bool:
        return self._wakeups.closed

    @property
    def committer(self) -> ThreadCommitter:
        return self._committer

    def catch_up_journal(self) -> None:
        self._committer.submit(CatchUpJournal())

    def forget_journal(self, command: ForgetJournal) -> None:
        """The log has it now."""
        self._commit(command)

    def read(self, look: Callable[[], T]) -> T:
        """Run something long that reads the store where it holds nobody up."""
        return self._committer.call(look, long=True)

    def stop_waiting(self) -> None:
        """Every poll that waits ends now, empty."""
        self._wakeups.close()
        self.events.close()

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        self._committer.call(lambda: self.store.backup(target, progress), long=True)

    def compact(self) -> None:
        self._committer.call(self.store.compact, long=True)

    def close(self) -> None:
        """End all waiting, finish what was accepted, close the store."""
        self.stop_waiting()
        self._committer.close()
        self.store.close()


def _found_nothing(command: Command[Leased], error: BaseException) -> bool:
    """Whether a database that went away while a poll waited is no more than an empty queue to it: a lease that was kept
    all the same comes back by itself, what was taken does not."""
    return isinstance(error, StoreUnreachable) and not (command.durable and error.maybe_done)
