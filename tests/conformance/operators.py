"""The model's administrative commands: remove, purge, redrive, sweep, configure, pause, drop."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core import commands as c
from penstock.core.ids import DLQ_SUFFIX
from penstock.core.model import State
from penstock.errors import QueueExists, QueueNotEmpty, UnknownQueue
from tests.conformance.world import ModelState, Queue

HOUR_MS = 3_600_000


class AdminCommands(ModelState):
    def _remove(self, command: c.Remove) -> c.Removed:
        queue = self.home(command.queue)
        return self._discard(queue, [i for i in set(command.ids) if i in {e.id for e in self.of(queue, *State)}])

    def _purge(self, command: c.Purge) -> c.Removed:
        """Purge in one step. Which messages a bounded purge removes first is left to each store."""
        queue = self.home(command.queue)
        states: Sequence[State] = command.states
        if command.queue.endswith(DLQ_SUFFIX):
            states = [State.DEAD]
        up_to = self.world.last_id if command.up_to_id is None else command.up_to_id
        found = [e.id for state in states for e in self.of(queue, state) if e.id <= up_to]
        return msgspec.structs.replace(self._discard(queue, found), up_to_id=up_to)

    def _discard(self, queue: Queue, ids: list[int]) -> c.Removed:
        for message_id in ids:
            del self.world.entries[message_id]
        queue.totals["removed"] += len(ids)
        return c.Removed(len(ids))

    def _redrive(self, command: c.Redrive) -> c.RedriveOutcome:
        queue = self.home(command.queue)
        dead = [e for e in self.of(queue, State.DEAD)[::-1] if e.finished_at is not None]
        if command.after is not None:
            at, _, last_id = command.after.partition(":")
            dead = [e for e in dead if (e.finished_at, e.id) > (int(at), int(last_id))]
        if command.died_before is not None:
            dead = [e for e in dead if (e.finished_at or 0) <= command.died_before]
        if command.ids is not None:
            dead = [e for e in dead if e.id in command.ids]
        step = dead[: command.limit]
        matched = [e for e in step if command.error_contains is None or command.error_contains in e.failures[-1].error]
        after = f"{step[-1].finished_at}:{step[-1].id}" if len(step) == command.limit else None
        if command.dry_run:
            return c.RedriveOutcome(len(matched), 0, after)
        for e in matched:
            e.state, e.attempts, e.failures, e.first_leased_at = State.READY, 0, [], None
            e.at = max(self.now, queue.newest_at)
            # A message whose ttl had run out gets no new one; otherwise the redriven message would expire at once.
            e.expires_at = self.now + e.ttl_left_ms if e.ttl_left_ms else None
            queue.totals["redriven"] += 1
        return c.RedriveOutcome(len(matched), len(matched), after)

    def _sweep(self, command: c.Sweep) -> c.Swept:
        swept = c.Swept()
        for queue in self.world.queues.values():
            moved = self._advance(queue)
            swept.due, swept.lapsed = swept.due + moved.due, swept.lapsed + moved.lapsed
            swept.expired += moved.expired
            if moved.due or moved.lapsed:
                swept.queues.append(queue.name)
            keep_ms = queue.options.archive_ms
            for e in self.of(queue, State.ARCHIVED):
                if keep_ms is not None and (e.finished_at or 0) + keep_ms <= self.now:
                    del self.world.entries[e.id]
                    swept.forgotten += 1
        for space_and_key, key in list(self.world.keys.items()):
            if key.check_at <= self.now:
                if self._is_alive(key.id):
                    key.check_at = self.now + HOUR_MS
                else:
                    del self.world.keys[space_and_key]
                    swept.forgotten += 1
        wakes = [self._wake_at(queue) for queue in self.world.queues.values()]
        swept.wake_at = min((at for at in wakes if at is not None), default=None)
        return swept

    def _configure(self, command: c.Configure) -> c.ConfigureOutcome:
        queue = self.world.queues.get(command.queue)
        if queue is None:
            if command.create is None:
                raise UnknownQueue(command.queue)
            options = command.create.changed(command.changes)
            self.world.queues[command.queue] = Queue(command.queue, options, self.now)
            return c.ConfigureOutcome(self.info(command.queue), created=True, changed=True)
        if command.exact and command.create is not None:
            if command.create.changed(command.changes) != queue.options:
                raise QueueExists(command.queue, [])
            return c.ConfigureOutcome(self.info(command.queue), created=False, changed=False)
        before, queue.options = queue.options, queue.options.changed(command.changes)
        return c.ConfigureOutcome(self.info(command.queue), created=False, changed=before != queue.options)

    def _pause(self, command: c.Pause) -> c.ConfigureOutcome:
        queue = self.queue(command.queue)
        before, queue.paused = queue.paused, command.paused
        return c.ConfigureOutcome(self.info(command.queue), created=False, changed=before != queue.paused)

    def _drop(self, command: c.Drop) -> c.Removed:
        queue, world = self.queue(command.queue), self.world
        held = [e.id for e in self.of(queue, *State)]
        if held and not command.force:
            raise QueueNotEmpty(queue.name, len(held))
        for message_id in held:
            del world.entries[message_id]
        for space, key in [at for at, found in world.keys.items() if found.queue == queue.name]:
            if space is None:
                world.keys[space, key].queue = None
            else:
                del world.keys[space, key]
        del world.queues[queue.name]
        return c.Removed(len(held))
