"""Queue operations for all APIs; message operations are in the broker."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from penstock.broker.dead_letters import (
    back_to_origin,
    error_of,
    forwarded,
    info_of_dead_letters,
    origin_of,
    stats_of_dead_letters,
)
from penstock.broker.events import Events
from penstock.broker.waiters_async import Waiters
from penstock.broker.workers import WorkerRegistry
from penstock.core import commands
from penstock.core.error_groups import is_wanted
from penstock.core.ids import DLQ_SUFFIX, check_new_queue_name, check_queue_name
from penstock.core.limits import Limits, check_range, check_text
from penstock.core.model import (
    ApiKey,
    Clock,
    DeadError,
    Latencies,
    Progress,
    QueueInfo,
    QueueOptions,
    QueueStats,
    RollUp,
    State,
    StoredMessage,
    Window,
    WorkerInfo,
)
from penstock.errors import BatchTooLarge, InvalidInput, QueueExists, UnknownQueue
from penstock.group_commit.tasks import Committer
from penstock.store.interface import Store

T = TypeVar("T")
FORWARD_BATCH = 100
ALL_STATES = tuple(State)


class Administration:
    def __init__(self, store: Store, committer: Committer, clock: Clock, limits: Limits) -> None:
        self.store = store
        self.limits = limits
        self.events = Events()
        self.worker_registry = WorkerRegistry()
        self._clock = clock
        self._committer = committer
        self._commit = committer.submit
        self._waiters = Waiters(store)
        # Queues that only hold forwarded dead letters, which stay, with values that change when another message dies.
        self._kept: dict[str, tuple[int, int, int]] = {}

    async def peek(
        self, queue: str, *, state: State = State.READY, limit: int = 1, after: str | None = None
    ) -> tuple[list[StoredMessage], str | None]:
        """Read messages without leasing them; return a page and a cursor for the next."""
        check_range("limit", limit, 1, self.limits.page)
        await self._catch_up(queue)
        return await self._committer.call(lambda: self.store.peek(queue, state=state, limit=limit, after=after))

    async def get(self, queue: str, message_id: int) -> StoredMessage | None:
        await self._catch_up(queue)
        return await self._committer.call(lambda: self.store.get(queue, message_id))

    async def dead_errors(
        self, queue: str, *, contains: str = "", limit: int = 1_000, after: str | None = None
    ) -> tuple[list[DeadError], str | None]:
        """Return the errors of dead letters, newest first, without their messages, and a cursor for the next page."""
        check_queue_name(queue)
        check_range("limit", limit, 1, self.limits.page)
        look = partial(self.store.dead_errors, queue, contains=contains, limit=limit, after=after)
        return await self._committer.call(look, background=True)

    async def locate(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        """Return the queue and id of messages by UUID or global key."""
        if len(names) > self.limits.batch_messages:
            raise BatchTooLarge(f"{len(names)} names in one batch", hint=f"at most {self.limits.batch_messages}")
        return await self._committer.call(lambda: self.store.locate(names))

    async def held(self, queue: str, uuids: Sequence[str]) -> set[str]:
        """Return which of these messages are in a queue and not done."""
        check_queue_name(queue)
        if len(uuids) > self.limits.batch_messages:
            raise BatchTooLarge(f"{len(uuids)} UUIDs in one batch", hint=f"at most {self.limits.batch_messages}")
        return await self._committer.call(lambda: self.store.held(queue, uuids))

    async def stats(self, queue: str) -> QueueStats:
        await self._catch_up(queue)
        found = await self._committer.call(lambda: self.store.stats(queue))
        return found if found.info.name == queue else stats_of_dead_letters(found)

    async def find_queue(self, queue: str) -> QueueInfo | None:
        """Return a queue, or the dead letters of one (`<queue>.dlq`) as a queue."""
        check_queue_name(queue)
        if not queue.endswith(DLQ_SUFFIX):
            return await self._committer.call(lambda: self.store.find_queue(queue))
        home = queue.removesuffix(DLQ_SUFFIX)
        found = await self._committer.call(lambda: self.store.find_queue(home)) if home else None
        return None if found is None else info_of_dead_letters(found)

    async def list_queues(self, *, prefix: str = "", after: str | None = None, limit: int = 100) -> list[QueueInfo]:
        check_range("limit", limit, 1, self.limits.page)
        return await self._committer.call(lambda: self.store.list_queues(prefix=prefix, after=after, limit=limit))

    async def roll_ups(
        self, window: Window, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> list[RollUp]:
        """Return queues with their events in each step of a window."""
        self._check_window(window, limit)
        look = partial(self.store.roll_ups, window, prefix=prefix, after=after, limit=limit)
        return await self._committer.call(look, background=True)

    async def latencies(
        self, window: Window, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> list[Latencies]:
        """Return the latencies of queues."""
        self._check_window(window, limit)
        look = partial(self.store.latencies, window, prefix=prefix, after=after, limit=limit)
        return await self._committer.call(look, background=True)

    def _check_window(self, window: Window, limit: int) -> None:
        check_range("limit", limit, 1, self.limits.page)
        check_range("steps", len(window.starts), 1, self.limits.steps)

    def export(self, queue: str) -> Generator[StoredMessage, None, None]:
        return self.store.export(check_queue_name(queue))

    async def _catch_up(self, queue: str) -> None:
        check_queue_name(queue)
        while (await self._commit(commands.CatchUp(queue=queue))).more:
            pass

    async def remove(self, queue: str, ids: Sequence[int]) -> int:
        if len(ids) > self.limits.batch_messages:
            raise BatchTooLarge(f"{len(ids)} ids in one batch", hint=f"at most {self.limits.batch_messages}")
        removed = (await self._commit(commands.Remove(queue=check_queue_name(queue), ids=ids))).removed
        # Removed leases may free slots of a queue's in-flight limit.
        self._waiters.wake(queue, removed)
        self.events.publish(queue, "removed", count=removed)
        return removed

    async def purge(self, queue: str, states: Sequence[State] = (State.READY, State.SCHEDULED)) -> int:
        """Remove all messages in these states; those that arrive meanwhile stay."""
        await self._catch_up(queue)
        removed = 0
        up_to_id: int | None = None
        while True:
            step = await self._commit(commands.Purge(queue=queue, states=states, up_to_id=up_to_id))
            removed += step.removed
            up_to_id = step.up_to_id
            if not step.more:
                self._waiters.wake(queue, 1)
                self.events.publish(queue, "purged", count=removed)
                return removed

    async def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[int] | None = None,
        error_contains: str | None = None,
        groups: Sequence[str] | None = None,
        died_before: int | None = None,
        rate_per_s: float | None = None,
        dry_run: bool = False,
        by: str | None = None,
    ) -> commands.RedriveOutcome:
        """Move dead letters back into their queue; those that die meanwhile stay. `by` is for the journal.

        If the queue names another for its dead letters, those of its own that are there come back, too.
        """
        await self._catch_up(queue)
        if rate_per_s is not None and not 0 < rate_per_s <= 1e6:
            raise InvalidInput("rate_per_s is above 0 and at most 1000000", field="rate_per_s")
        if died_before is None:
            # The clock may have been set back since the messages died.
            newest, _ = await self._committer.call(lambda: self.store.peek(queue, state=State.DEAD))
            died_before = max([self._clock(), *(message.finished_at or 0 for message in newest)])
        command = commands.Redrive(
            queue=queue,
            ids=ids,
            error_contains=error_contains,
            groups=groups,
            died_before=died_before,
            dry_run=dry_run,
            by=by,
        )
        if rate_per_s is not None:
            command.limit = max(1, min(1_000, int(rate_per_s / 10)))
        total = await self._redrive_own(command, rate_per_s)
        info = await self.find_queue(queue.removesuffix(DLQ_SUFFIX))
        if info is not None and isinstance(info.options.dlq, str):
            await self._redrive_forwarded(info.options.dlq, command, rate_per_s, total)
        self.events.publish(queue, "redriven", count=total.moved)
        return total

    async def _redrive_own(self, command: commands.Redrive, rate_per_s: float | None) -> commands.RedriveOutcome:
        total = commands.RedriveOutcome(0, 0)
        while True:
            step = await self._commit(command)
            total.matched += step.matched
            total.moved += step.moved
            self._waiters.wake(command.queue, step.moved)
            command.after = step.after
            if step.after is None or self._waiters.closed:
                return total
            if rate_per_s is not None and step.moved:
                await self._waiters.sleep(step.moved / rate_per_s)

    async def _redrive_forwarded(
        self, source: str, command: commands.Redrive, rate_per_s: float | None, total: commands.RedriveOutcome
    ) -> None:
        """Redrive messages that died in a queue and were forwarded to its dead-letter queue."""
        home = command.queue.removesuffix(DLQ_SUFFIX)
        ids = None if command.ids is None else list(dict.fromkeys(command.ids))
        peek = self.store.peek if ids is None else partial(_peek_at, self.store, ids)
        for state in (State.DEAD, State.READY, State.SCHEDULED):
            after: str | None = None
            while not self._waiters.closed:
                look = partial(peek, source, state=state, limit=command.limit, after=after)
                try:
                    found, after = await self._committer.call(look)
                except UnknownQueue:
                    return
                items = [back_to_origin(each) for each in found if _is_wanted(each, home, command)]
                total.matched += len(items)
                if items and not command.dry_run:
                    move = commands.Move(queue=source, target=home, state=state, items=items)
                    moved = (await self._commit(move)).removed
                    total.moved += moved
                    self._waiters.wake(home, moved)
                    if rate_per_s is not None and moved:
                        await self._waiters.sleep(moved / rate_per_s)
                if after is None:
                    break

    async def forward_dead(self, queue: str) -> int:
        """Forward dead letters to the queue that the option `dlq` names; while it does not exist, they stay. Forwarded
        messages are not forwarded again, which prevents loops."""
        info = await self.find_queue(queue)
        if info is None or not isinstance(info.options.dlq, str) or not info.dead:
            return 0
        deaths = (info.created_at, info.dead, info.totals.dead)
        if self._kept.get(queue) == deaths:
            return 0
        target, after, moved, stay = info.options.dlq, None, 0, True
        while not self._waiters.closed:
            look = partial(self.store.peek, queue, state=State.DEAD, limit=FORWARD_BATCH, after=after)
            found, after = await self._committer.call(look)
            items = [forwarded(each) for each in reversed(found) if origin_of(each) is None]
            if items:
                stay = False
                try:
                    step = await self._commit(commands.Move(queue=queue, target=target, state=State.DEAD, items=items))
                except UnknownQueue:
                    break
                moved += step.removed
                self._waiters.wake(target, step.removed)
            if after is None:
                if stay:
                    self._kept[queue] = deaths
                break
        if moved:
            self.events.publish(target, "pushed", count=moved)
        return moved

    async def sweep(self, *, days_kept: int = 30) -> commands.Swept:
        """Run one bounded step of time-based transitions in all queues. `days_kept`: retention of roll-ups."""
        swept = await self._commit(commands.Sweep(minutes_kept=days_kept * 24 * 60))
        for queue in swept.queues:
            self._waiters.wake(queue + DLQ_SUFFIX, 1)
        forwarders = await self._committer.call(self.store.forwarders)
        self._kept = {queue: deaths for queue, deaths in self._kept.items() if queue in forwarders}
        for queue in forwarders:
            await self.forward_dead(queue)
        return swept

    async def beat(self) -> commands.Beaten:
        """Send a heartbeat of the workers here, and remove stale workers."""
        return await self._commit(self.worker_registry.beat())

    async def leave(self) -> commands.Beaten:
        """Report that all workers of this process have left."""
        return await self._commit(self.worker_registry.leave())

    async def workers(self, *, after: str | None = None, limit: int = 100) -> list[WorkerInfo]:
        """Return servers and consumers with their leases."""
        check_range("limit", limit, 1, self.limits.page)
        return await self._committer.call(lambda: self.store.workers(after=after, limit=limit))

    async def configure(
        self,
        queue: str,
        changes: dict[str, Any] | None = None,
        *,
        create: QueueOptions | None = None,
        exact: bool = False,
    ) -> commands.ConfigureOutcome:
        """Change a queue's options; with `create`, create it if it does not exist."""
        if queue.endswith(DLQ_SUFFIX):
            return await self._configure_dead(queue, changes or {})
        check_new_queue_name(queue)
        for option, value in (changes or {}).items():
            if isinstance(value, str):
                check_text(option, value)
        if create is not None:
            create.changed(changes or {})
        if changes and isinstance(changes.get("dlq"), str):
            changes = changes | {"dlq": await self._checked_dlq(queue, changes["dlq"])}
        found = await self.find_queue(queue)
        if found is not None:
            # Skip the commit if nothing changes: it would wait for open transactions that push to the queue.
            exactly = create if exact else None
            wanted = (exactly or found.options).changed(changes or {})
            if wanted == found.options:
                return commands.ConfigureOutcome(found, created=False, changed=False)
            if exactly is not None:
                raise QueueExists(queue, wanted.differing(found.options))
        configured = await self._commit(
            commands.Configure(queue=queue, changes=changes or {}, create=create, exact=exact)
        )
        self._waiters.wake(queue, 1)
        if configured.changed:
            await self.forward_dead(queue)
        return configured

    async def _configure_dead(self, queue: str, changes: dict[str, Any]) -> commands.ConfigureOutcome:
        """Raise: `<queue>.dlq` exists as long as its queue does and has no options of its own."""
        info = await self.find_queue(queue)
        if info is None:
            check_new_queue_name(queue)
            raise UnknownQueue(queue)
        if changes:
            home = queue.removesuffix(DLQ_SUFFIX)
            raise InvalidInput(
                f"{queue!r} holds the dead letters of {home!r} and has no options of its own",
                field=next(iter(changes)),
                hint=f"set them on {home!r}, or let it name another queue as its dlq",
            )
        return commands.ConfigureOutcome(info, created=False, changed=False)

    async def _checked_dlq(self, queue: str, name: str) -> bool | str:
        """Check the option `dlq` of a queue."""
        if name == queue + DLQ_SUFFIX:
            return True
        if name == queue:
            raise InvalidInput(
                f"queue {queue!r} cannot be its own dead-letter queue", field="dlq", hint="true keeps dead letters"
            )
        check_new_queue_name(name)
        target = await self.find_queue(name)
        if target is None:
            raise InvalidInput(f"there is no queue {name!r} for dead letters", field="dlq", hint="create it first")
        if isinstance(target.options.dlq, str):
            raise InvalidInput(
                f"queue {name!r} passes its own dead letters on to {target.options.dlq!r}",
                field="dlq",
                hint="name a queue that keeps its dead letters",
            )
        if sources := await self._committer.call(lambda: self.store.forwarders(queue)):
            raise InvalidInput(
                f"queue {queue!r} holds the dead letters of {sources[0]!r}, and cannot pass them on to {name!r}",
                field="dlq",
                hint="a dead-letter queue keeps its own dead letters",
            )
        return name

    async def pause(self, queue: str, *, paused: bool = True) -> QueueInfo:
        """Pause or resume leasing; pushes continue."""
        configured = await self._commit(commands.Pause(queue=check_queue_name(queue), paused=paused))
        if not paused:
            self._waiters.wake(queue, max(1, configured.info.ready))
        self.events.publish(queue, "paused" if paused else "resumed")
        return configured.info

    async def drop(self, queue: str, *, force: bool = False) -> int:
        """Delete a queue; with `force`, also its messages."""
        if await self.find_queue(queue) is None:
            raise UnknownQueue(queue)
        if queue.endswith(DLQ_SUFFIX):
            raise InvalidInput(
                f"{queue!r} goes with its queue", field="queue", hint="purge it, or set the queue's option dlq to false"
            )
        removed = await self.purge(queue, ALL_STATES) if force else 0
        removed += (await self._commit(commands.Drop(queue=queue, force=force))).removed
        # Wake its waiters, which then find that the queue is gone.
        self._waiters.wake(queue, 1)
        self._waiters.wake_one(queue + DLQ_SUFFIX)
        self.events.publish(queue, "dropped")
        return removed

    async def add_key(
        self,
        *,
        queue: str | None = None,
        stream: str | None = None,
        id: str,
        name: str,
        hash: bytes,
        rights: Sequence[str],
    ) -> ApiKey:
        """Add an API key to a queue or a stream."""
        check_queue_name(queue or stream or "")
        return await self._commit(
            commands.AddKey(queue=queue, stream=stream, id=id, name=name, hash=hash, rights=rights)
        )

    async def remove_keys(
        self, key_id: str | None = None, *, queue: str | None = None, stream: str | None = None
    ) -> bool:
        """Revoke one key of a queue or a stream, or all; return True if there was one."""
        check_queue_name(queue or stream or "")
        return (await self._commit(commands.RemoveKeys(queue=queue, stream=stream, id=key_id))).removed > 0

    async def list_keys(self, *, queue: str | None = None, stream: str | None = None) -> list[ApiKey]:
        check_queue_name(queue or stream or "")
        return await self._committer.call(lambda: self.store.list_keys(queue, stream=stream))

    async def find_key(self, key_id: str) -> ApiKey | None:
        return await self._committer.call(lambda: self.store.find_key(key_id))

    async def set_secret(self, queue: str, secret: str | None) -> None:
        """Require messages to be signed with this secret; None accepts unsigned ones."""
        await self._commit(commands.SetSecret(queue=check_queue_name(queue), secret=secret))

    async def find_secret(self, queue: str) -> str | None:
        return await self._committer.call(lambda: self.store.find_secret(queue))

    async def catch_up_journal(self) -> None:
        await self._committer.submit(commands.CatchUpJournal())

    async def forget_journal(self, command: commands.ForgetJournal) -> None:
        """Delete events that the journal contains."""
        await self._commit(command)

    async def read(self, look: Callable[[], T]) -> T:
        """Run a long read where it blocks no other work."""
        return await self._committer.call(look, background=True)

    async def backup(self, target: Path, progress: Progress | None = None) -> None:
        await self._committer.call(lambda: self.store.backup(target, progress), background=True)

    async def compact(self) -> None:
        await self._committer.call(self.store.compact, background=True)


def _peek_at(
    store: Store, ids: Sequence[int], queue: str, *, state: State, limit: int, after: str | None
) -> tuple[list[StoredMessage], str | None]:
    """Peek at those of these messages that are in a state, without reading others."""
    start = int(after or 0)
    found = [store.get(queue, message_id) for message_id in ids[start : start + limit]]
    following = str(start + limit) if start + limit < len(ids) else None
    return [message for message in found if message is not None and message.state is state], following


def _is_wanted(message: StoredMessage, origin: str, command: commands.Redrive) -> bool:
    """Return True if a message died in this queue and is to be redriven."""
    return (
        origin_of(message) == origin
        and (command.ids is None or message.id in command.ids)
        and is_wanted(command, error_of(message))
        and (command.died_before is None or message.created_at <= command.died_before)
    )
