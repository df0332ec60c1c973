"""The state of the model, how it appears to a reader, and the effects of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.core import commands as c
from penstock.core.ids import DLQ_SUFFIX, message_uuid
from penstock.core.model import Failure, PushItem, QueueInfo, QueueOptions, State, StoredMessage, Totals
from penstock.errors import UnknownQueue

UNDONE = (State.READY, State.SCHEDULED, State.LEASED)


@dataclass
class Entry:
    """A message and everything that the model knows about it."""

    id: int
    queue: str
    new: PushItem
    created_at: int
    at: int
    state: State
    expires_at: int | None
    attempts: int = 0
    ttl_left_ms: int | None = None
    first_leased_at: int | None = None
    leased_at: int | None = None
    leased_until: int | None = None
    token: str | None = None
    worker: str | None = None
    from_dead: bool = False
    finished_at: int | None = None
    reason: str | None = None
    failures: list[Failure] = field(default_factory=list)


@dataclass
class Queue:
    name: str
    options: QueueOptions
    created_at: int
    paused: bool = False
    newest_at: int = 0
    totals: Counter[str] = field(default_factory=Counter)


@dataclass
class Key:
    id: int
    # None if the queue was dropped, which frees the key.
    queue: str | None
    created_at: int
    expires_at: int
    check_at: int


@dataclass
class Settlement:
    """The outcome of settling a message with a token, and its minute."""

    verb: type[c.Command[Any]]
    queue: str
    minute: int
    state: State | None


@dataclass
class World:
    """Everything that a command can change."""

    queues: dict[str, Queue] = field(default_factory=dict)
    entries: dict[int, Entry] = field(default_factory=dict)
    keys: dict[tuple[str | None, str], Key] = field(default_factory=dict)
    # Settlements by message id and token.
    settled: dict[tuple[int, str | None], Settlement] = field(default_factory=dict)
    last_id: int = 0


def order(entry: Entry) -> tuple[int, int, int]:
    return -entry.new.priority, entry.at, entry.id


PEEK_ORDER: dict[State, Callable[[Entry], Any]] = {
    State.READY: order,
    State.SCHEDULED: lambda e: (e.at, e.id),
    State.LEASED: lambda e: (e.leased_until, e.id),
    State.DEAD: lambda e: (-(e.finished_at or 0), -e.id),
    State.ARCHIVED: lambda e: (-(e.finished_at or 0), -e.id),
}


class ModelState:
    def __init__(self, clock: Callable[[], int], store_id: int) -> None:
        self.clock = clock
        self.store_id = store_id
        self.world = World()

    @property
    def now(self) -> int:
        return self.clock()

    # Reads

    def queue(self, name: str) -> Queue:
        queue = self.world.queues.get(name)
        if queue is None:
            raise UnknownQueue(name)
        return queue

    def home(self, name: str) -> Queue:
        return self.queue(name.removesuffix(DLQ_SUFFIX))

    def of(self, queue: Queue, *states: State) -> list[Entry]:
        found = [e for e in self.world.entries.values() if e.queue == queue.name and e.state in states]
        return sorted(found, key=PEEK_ORDER[states[0]] if len(states) == 1 else order)

    def peek(self, name: str, state: State) -> list[StoredMessage]:
        """Return messages without tracebacks, which only `get` includes."""
        found = [self.message(e) for e in self.of(self.home(name), state)]
        for message in found:
            message.errors = [msgspec.structs.replace(each, traceback=None) for each in message.errors]
        return found

    def get(self, message_id: int) -> StoredMessage:
        return self.message(self.world.entries[message_id])

    def message(self, e: Entry) -> StoredMessage:
        leased, done = e.state is State.LEASED, e.state in (State.DEAD, State.ARCHIVED)
        return StoredMessage(
            id=e.id,
            uuid=message_uuid(e.id, e.created_at, self.store_id),
            queue=e.queue,
            state=e.state,
            payload=e.new.payload,
            content=e.new.content,
            priority=e.new.priority,
            attempts=e.attempts,
            created_at=e.created_at,
            available_at=e.at,
            expires_at=e.expires_at if e.state in UNDONE else None,
            first_leased_at=e.first_leased_at,
            leased_at=e.leased_at if leased or e.state is State.ARCHIVED else None,
            leased_until=e.leased_until if leased else None,
            worker=e.worker if leased else None,
            finished_at=e.finished_at if done else None,
            reason=e.reason if e.state is State.DEAD else None,
            errors=sorted(e.failures, key=lambda f: f.attempt, reverse=True),
            key=e.new.key,
            headers=e.new.headers,
        )

    def info(self, name: str) -> QueueInfo:
        queue = self.queue(name)
        gauges = {str(state): len(self.of(queue, state)) for state in State}
        return QueueInfo(
            name=name,
            options=queue.options,
            paused=queue.paused,
            created_at=queue.created_at,
            totals=Totals(**queue.totals),
            **gauges,
        )

    # Time

    def _advance(self, queue: Queue) -> c.Swept:
        moved = c.Swept()
        for e in self.of(queue, State.LEASED):
            if e.leased_until is not None and e.leased_until <= self.now:
                moved.lapsed += 1
                self._lapse(queue, e)
        for e in self.of(queue, State.SCHEDULED):
            if e.at <= self.now:
                moved.due += 1
                e.state = State.READY
        for e in self.of(queue, State.READY, State.SCHEDULED):
            if e.expires_at is not None and e.expires_at <= self.now:
                moved.expired += 1
                queue.totals["expired"] += 1
                del self.world.entries[e.id]
        return moved

    def _lapse(self, queue: Queue, e: Entry) -> None:
        if e.from_dead:
            e.state, e.from_dead = State.DEAD, False
            return
        queue.totals["lapsed"] += 1
        e.failures.append(Failure(e.attempts, self.now, "the lease expired"))
        if e.attempts >= queue.options.max_attempts:
            self._die(queue, e, "lapsed")
        else:
            e.state = State.READY

    def _die(self, queue: Queue, e: Entry, reason: str, *, discard: bool = False) -> None:
        queue.totals["dead"] += 1
        if discard or not queue.options.dlq:
            del self.world.entries[e.id]
            return
        e.state, e.reason, e.finished_at = State.DEAD, reason, self.now
        e.ttl_left_ms = None if e.expires_at is None else max(0, e.expires_at - self.now)
        e.expires_at = None

    def _wake_at(self, queue: Queue) -> int | None:
        times = [e.at for e in self.of(queue, State.SCHEDULED)]
        times += [e.leased_until for e in self.of(queue, State.LEASED) if e.leased_until is not None]
        return min(times, default=None)
