"""Batches concurrent calls into one request.

There is no timer unless `linger` is set: while one request is in flight, the next batch gathers. The first caller to
find a free lane leads: it sends one request for all waiting callers, then hands the lead to the next. Each caller gets
its own result or error.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

from penstock.client._concurrency_async import CAN_CANCEL, Mutex, OneShotEvent, shielded, sleep

EntryT = TypeVar("EntryT")
ResultT = TypeVar("ResultT")


class Attempt:
    """An attempt to send a batch. Its key stays the same if the leader is interrupted and another caller resends it."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key = os.urandom(12).hex()


class Waiting(OneShotEvent, Generic[EntryT, ResultT]):
    __slots__ = ("done", "entry", "error", "has_left", "is_leader", "leading", "result", "successor", "taken")

    def __init__(self, entry: EntryT) -> None:
        super().__init__()
        self.entry = entry
        self.is_leader = self.leading = self.done = self.has_left = False
        # The batch that this caller sends as the leader.
        self.taken: tuple[list[Waiting[EntryT, ResultT]], Attempt] | None = None
        # The next leader, still to be woken.
        self.successor: Waiting[EntryT, ResultT] | None = None
        self.result: ResultT | None = None
        self.error: BaseException | None = None


class RequestBatcher(Generic[EntryT, ResultT]):
    def __init__(
        self,
        send: Callable[[list[EntryT], Attempt], Awaitable[Sequence[ResultT | Exception]]],
        *,
        weigh: Callable[[EntryT], int],
        weight_max: int,
        lanes: int = 1,
        linger: float = 0.0,
        orphaned: Callable[[ResultT], Awaitable[None]] | None = None,
    ) -> None:
        """`orphaned` receives the result of a caller that was cancelled meanwhile."""
        self._send = send
        self._weigh = weigh
        self._weight_max = weight_max
        self._linger = linger
        self._orphaned = orphaned
        self._lanes = self._free = lanes
        self._mutex = Mutex()
        self._waiting: deque[Waiting[EntryT, ResultT]] = deque()
        self._interrupted: deque[tuple[list[Waiting[EntryT, ResultT]], Attempt]] = deque()

    @property
    def idle(self) -> bool:
        return self._free == self._lanes and not self._waiting and not self._interrupted

    async def join(self, entry: EntryT) -> ResultT:
        mine: Waiting[EntryT, ResultT] = Waiting(entry)
        try:
            with self._mutex:
                self._waiting.append(mine)
                if self._free:
                    self._free -= 1
                    mine.is_leader = True
            while not mine.done:
                if mine.is_leader:
                    mine.leading = True
                    await shielded(lambda: self._lead(mine))
                else:
                    await mine.wait()
            if mine.is_leader:  # Another lane sent this entry before this caller woke up.
                self._hand_over(mine)
        except BaseException:
            await self._leave(mine)
            raise
        if mine.error is not None:
            raise mine.error
        return mine.result  # type: ignore[return-value]

    async def _lead(self, mine: Waiting[EntryT, ResultT]) -> None:
        try:
            # Even without linger, let callers that are about to call join.
            await sleep(self._linger)
            batch, attempt = self._take(mine)
            try:
                if batch:
                    outcomes = await self._send([waiting.entry for waiting in batch], attempt)
                    await self._deliver(batch, outcomes)
            except Exception as error:
                await self._deliver(batch, [error] * len(batch))
            self._hand_over(mine)
            mine.taken = None
        except BaseException:
            self._give_up(mine)
            raise

    def _take(self, mine: Waiting[EntryT, ResultT]) -> tuple[list[Waiting[EntryT, ResultT]], Attempt]:
        batch: list[Waiting[EntryT, ResultT]] = []
        taken = batch, Attempt()
        weight = 0
        # A caller moves from one collection to the other without a function call in between, where an interrupt could
        # leave it in both (sent twice) or in none (never sent).
        with self._mutex:
            while self._interrupted:
                again = self._interrupted[0]
                if any([_waits(each) for each in again[0]]):  # noqa: C419 - an interrupt while a generator closes is lost
                    mine.taken = again
                    del self._interrupted[0]
                    return again
                del self._interrupted[0]
            mine.taken = taken
            while self._waiting:
                first = self._waiting[0]
                if not first.has_left:
                    weight += self._weigh(first.entry)
                    if batch and weight > self._weight_max:
                        break
                    batch += [first]
                del self._waiting[0]
        return taken

    async def _deliver(
        self, batch: Sequence[Waiting[EntryT, ResultT]], outcomes: Sequence[ResultT | Exception]
    ) -> None:
        shared: Exception | None = None
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                # One error raised in several callers would collect all their tracebacks.
                waiting.error = copy.copy(outcome) if outcome is shared else outcome
                shared = outcome
            else:
                waiting.result = outcome
            waiting.done = True
            waiting.set()
            if waiting.has_left and self._orphaned is not None and waiting.result is not None:
                await self._orphaned(waiting.result)

    def _hand_over(self, mine: Waiting[EntryT, ResultT]) -> None:
        """Pass the lead on, if this caller has it. After an interrupt, call it again to finish."""
        with self._mutex:
            if mine.is_leader:
                successor = None
                for each in chain(*(batch for batch, _ in self._interrupted), self._waiting):
                    if _waits(each) and (each is mine or not each.is_leader):
                        successor = each
                        break
                # No function call from here on, so an interrupt finds all of it done, or nothing.
                mine.is_leader = mine.leading = False
                mine.successor = successor
                if successor is None:
                    self._free += 1
                else:
                    successor.is_leader = True
        if mine.successor is not None:
            mine.successor.set()
            mine.successor = None

    def _give_up(self, mine: Waiting[EntryT, ResultT]) -> None:
        """Give up the lead after an interrupt. The request may have arrived, so the next leader resends it as it is."""
        with self._mutex:
            if mine.taken is not None:
                batch, _ = mine.taken
                for waiting in batch:
                    if waiting.done:
                        waiting.set()
                if batch:
                    self._interrupted.append(mine.taken)
                mine.taken = None
        self._hand_over(mine)

    async def _leave(self, mine: Waiting[EntryT, ResultT]) -> None:
        mine.has_left = True
        # A task goes on leading if its caller is cancelled; an interrupted thread does not.
        if not (CAN_CANCEL and mine.leading):
            self._give_up(mine)
        if mine.done and self._orphaned is not None and mine.result is not None:
            await self._orphaned(mine.result)


def _waits(one: Waiting[Any, Any]) -> bool:
    return not one.done and not one.has_left
