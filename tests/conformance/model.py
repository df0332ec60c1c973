"""A plain reference model of a store, built from dicts and sorted(), that the real stores are compared with.

As in a store, leases expire and messages become due only during a lease, take, catch-up or sweep.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from penstock.core import commands as c
from penstock.core.ids import DLQ_SUFFIX
from penstock.core.model import Delivery, Failure, PushItem, PushReceipt, State, backoff_ms
from penstock.errors import KeyTaken, LeaseLost, PenstockError, QueueFull, UnknownMessage, UnknownQueue
from penstock.store.common import SETTLED_MINUTES
from tests.conformance.operators import AdminCommands
from tests.conformance.world import UNDONE, Entry, Key, Queue, Settlement


class Model(AdminCommands):
    def __init__(self, clock: Callable[[], int], store_id: int, *, gaps: bool = False) -> None:
        """With `gaps`, ids used by a rolled-back transaction are not reused."""
        super().__init__(clock, store_id)
        self._gaps = gaps
        self._fenced = False
        self._tokens = itertools.count(1)
        self._shared_tokens: dict[str, str] = {}

    def apply(self, commands: Iterable[c.Command[Any]]) -> list[Any]:
        outcomes: list[Any] = []
        for command in commands:
            try:
                outcomes.append(self._whole(command))
            except PenstockError as error:
                outcomes.append(error)
        return outcomes

    def _whole(self, command: c.Command[Any]) -> Any:
        """Execute one command atomically. Expirations that the clock caused stay in effect even if the command
        fails."""
        if isinstance(command, c.Push) and command.queue in self.world.queues:
            self._advance(self.queue(command.queue))
        before = copy.deepcopy(self.world)
        try:
            return getattr(self, "_" + type(command).__name__.lower())(command)
        except PenstockError:
            used, self.world = self.world.last_id, before
            if self._gaps and isinstance(command, c.Transact):
                self.world.last_id = used
            raise

    def _transact(self, command: c.Transact) -> c.TransactOutcome:
        self._fenced = True
        try:
            outcomes = [self._whole(each) for each in command.commands]
        finally:
            self._fenced = False
        for each, outcome in zip(command.commands, outcomes, strict=True):
            if isinstance(outcome, c.SettledAll):
                for item, result in zip(each.items, outcome.results, strict=True):  # type: ignore[attr-defined]
                    if result is c.Settled.STALE:
                        raise LeaseLost(item.id)
                    if result is c.Settled.UNKNOWN:
                        raise UnknownMessage(each.queue, item.id)  # type: ignore[attr-defined]
        return c.TransactOutcome(outcomes)

    # Push

    def _push(self, command: c.Push) -> c.PushOutcome:
        if command.queue not in self.world.queues:
            if command.create is None:
                raise UnknownQueue(command.queue)
            self.world.queues[command.queue] = Queue(command.queue, command.create, self.now)
        queue = self.queue(command.queue)
        space = None if command.global_keys else queue.name
        self._advance(queue)
        before = len(self.of(queue, *UNDONE))
        receipts = [self._push_one(queue, space, new) for new in command.messages]
        fresh = sum(not receipt.duplicate for receipt in receipts)
        size = queue.options.max_size
        if fresh and size is not None and before + fresh > size:
            raise QueueFull("", retry_after_ms=0)
        return c.PushOutcome(receipts)

    def _push_one(self, queue: Queue, space: str | None, new: PushItem) -> PushReceipt:
        now, world, options = self.now, self.world, queue.options
        key = None if new.key is None else world.keys.get((space, new.key))
        if key is not None and key.queue is not None and (key.expires_at > now or self._is_alive(key.id)):
            if space is None and key.queue != queue.name:
                raise KeyTaken(queue.name, new.key or "")
            return PushReceipt(key.id, key.created_at, self.store_id, True)
        delay_ms = options.delay_ms if new.delay_ms is None else new.delay_ms
        ttl_ms = options.ttl_ms if new.ttl_ms is None else new.ttl_ms
        queue.newest_at = max(now, queue.newest_at)
        world.last_id += 1
        world.entries[world.last_id] = Entry(
            id=world.last_id,
            queue=queue.name,
            new=new,
            created_at=now,
            at=now + delay_ms if delay_ms else queue.newest_at,
            state=State.SCHEDULED if delay_ms else State.READY,
            expires_at=None if ttl_ms is None else now + ttl_ms,
        )
        if new.key is not None:
            until = now + options.dedupe_ms
            world.keys[space, new.key] = Key(world.last_id, queue.name, now, until, until)
        queue.totals["pushed"] += 1
        return PushReceipt(world.last_id, now, self.store_id)

    def _move(self, command: c.Move) -> c.Removed:
        source, target = self.queue(command.queue), self.queue(command.target)
        self._advance(source)
        self._advance(target)
        there = {e.id for e in self.of(source, command.state)}
        found = {item.id: item.message for item in command.items if item.id in there}
        self._discard(source, list(found))
        for message in found.values():
            self._push_one(target, target.name, message)
        return c.Removed(len(found))

    def _is_alive(self, message_id: int) -> bool:
        entry = self.world.entries.get(message_id)
        return entry is not None and entry.state is not State.ARCHIVED

    # Lease and take

    def _lease(self, command: c.Lease) -> c.Leased:
        # Messages leased together from one queue share a token.
        self._shared_tokens = {}
        if command.scope is not None:
            return self._lease_scope(command, command.scope)
        assert command.queue is not None
        if command.queue.endswith(DLQ_SUFFIX):
            return self._lease_dead(command, self.home(command.queue))
        queue = self.queue(command.queue)
        heads, wake_at = self._heads(queue)
        found = [self._hand_out(queue, e, command) for e in heads[: command.limit]]
        return c.Leased(found, wake_at=None if found else wake_at)

    def _heads(self, queue: Queue) -> tuple[list[Entry], int | None]:
        """Return the messages that can be leased now, in order, and the time at which to check again."""
        self._advance(queue)
        if queue.paused:
            return [], None
        opens_at = self._newest_at(queue) + queue.options.window_ms
        if queue.options.window_ms and opens_at > self.now:
            return [], opens_at
        heads = self.of(queue, State.READY)
        if queue.options.max_in_flight is not None:
            heads = heads[: max(0, queue.options.max_in_flight - len(self.of(queue, State.LEASED)))]
        return heads, self._wake_at(queue)

    def _newest_at(self, queue: Queue) -> int:
        if queue.newest_at <= self.now:
            return queue.newest_at
        entries = [e for e in self.world.entries.values() if e.queue == queue.name]
        newest = max(entries, key=lambda e: e.id, default=None)
        return newest.created_at if newest is not None and newest.created_at <= self.now else 0

    def _lease_scope(self, command: c.Lease, scope: str) -> c.Leased:
        heads: dict[str, list[Entry]] = {}
        wakes: list[int] = []
        for queue in self.world.queues.values():
            if queue.name.startswith(scope + "/"):
                heads[queue.name], wake_at = self._heads(queue)
                wakes += [] if wake_at is None else [wake_at]
        found: list[Delivery] = []
        while len(found) < command.limit and any(heads.values()):
            names = [name for name, entries in heads.items() if entries]
            name = min(names, key=lambda n: (-self.queue(n).options.priority, heads[n][0].at, heads[n][0].id))
            found.append(self._hand_out(self.queue(name), heads[name].pop(0), command))
        return c.Leased(found, wake_at=None if found else min(wakes, default=None))

    def _lease_dead(self, command: c.Lease, queue: Queue) -> c.Leased:
        self._advance(queue)
        longest_dead_first = self.of(queue, State.DEAD)[::-1][: command.limit]
        found = [self._hand_out(queue, e, command) for e in longest_dead_first]
        return c.Leased(found, wake_at=None if found else self._wake_at(queue))

    def _hand_out(self, queue: Queue, e: Entry, command: c.Lease) -> Delivery:
        e.from_dead = e.state is State.DEAD
        e.attempts += not e.from_dead
        lease_ms = queue.options.lease_ms if command.lease_ms is None else command.lease_ms
        e.state, e.worker = State.LEASED, command.worker
        e.token = self._shared_tokens.setdefault(queue.name, f"{next(self._tokens):032x}")
        e.leased_at, e.leased_until = self.now, self.now + lease_ms
        e.first_leased_at = e.first_leased_at or self.now
        queue.totals["leased"] += 1
        return self._leased(e, queue.name + DLQ_SUFFIX if e.from_dead else queue.name, e.leased_until, e.token)

    def _leased(self, e: Entry, queue: str, until: int, token: str) -> Delivery:
        return Delivery(
            id=e.id,
            uuid_source=self.store_id,
            queue=queue,
            payload=e.new.payload,
            content=e.new.content,
            priority=e.new.priority,
            attempts=e.attempts,
            created_at=e.created_at,
            leased_until=until,
            token=token,
            key=e.new.key,
            headers=e.new.headers,
        )

    def _take(self, command: c.Take) -> c.Leased:
        queue = self.queue(command.queue)
        heads, wake_at = self._heads(queue)
        found = []
        for e in heads[: command.limit]:
            e.attempts += 1
            e.leased_at = self.now
            e.first_leased_at = e.first_leased_at or self.now
            queue.totals["leased"] += 1
            self._finish(queue, e)
            found.append(self._leased(e, queue.name, 0, ""))
        return c.Leased(found, wake_at=None if found else wake_at)

    def _catchup(self, command: c.CatchUp) -> c.Leased:
        queue = self.home(command.queue)
        self._advance(queue)
        return c.Leased([], wake_at=self._wake_at(queue))

    # Settling

    def _settle(
        self, command: Any, act: Callable[[Queue, Entry, c.SettleItem], State | None]
    ) -> tuple[list[c.Settled], list[State | None]]:
        queue = self.home(command.queue)
        results, states = [], []
        for item in command.items:
            e = self.world.entries.get(item.id)
            before = self._settlement(command, queue, item)
            if before is not None:
                result, state = c.Settled.OK, before.state
            elif e is None or e.queue != queue.name or e.state is State.ARCHIVED:
                result, state = c.Settled.UNKNOWN, None
            elif e.state is not State.LEASED or item.token not in (None, e.token) or (e.leased_until or 0) <= self.now:
                result, state = c.Settled.STALE, None
            else:
                token = e.token
                result, state = c.Settled.OK, act(queue, e, item)
                if not isinstance(command, c.Extend):
                    settlement = Settlement(type(command), queue.name, self.now // 60_000, state)
                    self.world.settled[item.id, token] = settlement
            results.append(result)
            states.append(state)
        return results, states

    def _settlement(self, command: Any, queue: Queue, item: c.SettleItem) -> Settlement | None:
        """Return the recent settlement of this message by the same token, queue and verb, if there is one."""
        found = None if item.token is None or self._fenced else self.world.settled.get((item.id, item.token))
        if found is None or (found.verb, found.queue) != (type(command), queue.name):
            return None
        return found if -1 <= self.now // 60_000 - found.minute <= SETTLED_MINUTES else None

    def _ack(self, command: c.Ack) -> c.SettledAll:
        return c.SettledAll(self._settle(command, lambda queue, e, item: self._finish(queue, e))[0])

    def _finish(self, queue: Queue, e: Entry) -> None:
        queue.totals["acked"] += 1
        e.state, e.finished_at, e.failures, e.from_dead = State.ARCHIVED, self.now, [], False
        if queue.options.archive_ms == 0:
            del self.world.entries[e.id]

    def _nack(self, command: c.Nack) -> c.SettledAll:
        return c.SettledAll(*self._settle(command, self._nack_one))

    def _nack_one(self, queue: Queue, e: Entry, item: c.SettleItem) -> State | None:
        if e.from_dead and item.discard:
            self._finish(queue, e)
            return None
        if e.from_dead:
            e.state, e.from_dead = State.DEAD, False
            return State.DEAD
        queue.totals["nacked"] += 1
        e.failures.append(Failure(e.attempts, self.now, item.error or "", item.traceback))
        if item.dead or item.discard or e.attempts >= queue.options.max_attempts:
            self._die(queue, e, "nacked", discard=item.discard)
            return State.DEAD if queue.options.dlq and not item.discard else None
        delay_ms = backoff_ms(queue.options, e.id, e.attempts) if item.delay_ms is None else item.delay_ms
        e.at = self.now + delay_ms if delay_ms else max(self.now, queue.newest_at)
        e.state = State.SCHEDULED if delay_ms else State.READY
        return e.state

    def _extend(self, command: c.Extend) -> c.SettledAll:
        queue = self.home(command.queue)
        until = self.now + (queue.options.lease_ms if command.lease_ms is None else command.lease_ms)

        def extend_one(queue: Queue, e: Entry, item: c.SettleItem) -> None:
            e.leased_until = until

        return c.SettledAll(self._settle(command, extend_one)[0], leased_until=until)

    def _release(self, command: c.Release) -> c.SettledAll:
        def release_one(queue: Queue, e: Entry, item: c.SettleItem) -> None:
            if e.from_dead:
                e.state, e.from_dead = State.DEAD, False
                return
            e.attempts -= 1
            e.state = State.READY
            if e.attempts == 0:
                e.first_leased_at = None

        return c.SettledAll(self._settle(command, release_one)[0])


def without_tokens(messages: list[Delivery]) -> list[Delivery]:
    return [msgspec.structs.replace(message, token="") for message in messages]
