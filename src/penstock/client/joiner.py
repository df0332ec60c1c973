"""Calls that come at the same time become one request.

There is no timer unless asked for: while one request is on its way, the next gathers. The first caller to find the way
free sends for all who wait, and hands the lead to the next; each caller gets its own result or error.

This is asynchronous; its twin in `penstock._sync.client` is made from it by tools/unasync.py.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

from penstock.client.tasks import Mutex, Slot, shielded, sleep

EntryT = TypeVar("EntryT")
ResultT = TypeVar("ResultT")


class Waiting(Slot, Generic[EntryT, ResultT]):
    __slots__ = ("done", "entry", "error", "gone", "leads", "result")

    def __init__(self, entry: EntryT) -> None:
        super().__init__()
        self.entry = entry
        self.leads = self.done = self.gone = False
        self.result: ResultT | None = None
        self.error: BaseException | None = None


class Attempt:
    """To send a batch: its key stays the same when the one who sent it is interrupted and another sends it again."""

    __slots__ = ("again", "key")

    def __init__(self) -> None:
        self.key = os.urandom(12).hex()
        self.again = False


class Joiner(Generic[EntryT, ResultT]):
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
        """`orphaned` gets the result of a caller that went away meanwhile."""
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
        with self._mutex:
            self._waiting.append(mine)
            if self._free:
                self._free -= 1
                mine.leads = True
        try:
            while not mine.done:
                if mine.leads:
                    mine.leads = False
                    await shielded(self._lead)
                else:
                    await mine.wait()
        except BaseException:
            await self._leave(mine)
            raise
        if mine.leads:  # Another lane was faster than this wake-up.
            self._hand_over()
        if mine.error is not None:
            raise mine.error
        return mine.result  # type: ignore[return-value]

    async def _lead(self) -> None:
        batch: list[Waiting[EntryT, ResultT]] = []
        attempt = Attempt()
        try:
            # Even when it does not linger, those who are about to call now come along.
            await sleep(self._linger)
            batch, attempt = self._take(attempt)
            if batch:
                outcomes = await self._send([waiting.entry for waiting in batch], attempt)
                await self._deliver(batch, outcomes)
        except Exception as error:
            await self._deliver(batch, [error] * len(batch))
        except BaseException:
            # The one who led was interrupted. It may have been carried out: the next sends just the same again.
            attempt.again = True
            if batch:
                with self._mutex:
                    self._interrupted.append((batch, attempt))
            raise
        finally:
            self._hand_over()

    def _take(self, attempt: Attempt) -> tuple[list[Waiting[EntryT, ResultT]], Attempt]:
        batch: list[Waiting[EntryT, ResultT]] = []
        weight = 0
        with self._mutex:
            while self._interrupted:
                again = self._interrupted.popleft()
                if any(_waits(each) for each in again[0]):
                    return again
            while self._waiting:
                first = self._waiting[0]
                if not first.gone:
                    weight += self._weigh(first.entry)
                    if batch and weight > self._weight_max:
                        break
                    batch.append(first)
                self._waiting.popleft()
        return batch, attempt

    async def _deliver(
        self, batch: Sequence[Waiting[EntryT, ResultT]], outcomes: Sequence[ResultT | Exception]
    ) -> None:
        shared: Exception | None = None
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                # An error raised in several places would gather all their tracebacks.
                waiting.error = copy.copy(outcome) if outcome is shared else outcome
                shared = outcome
            else:
                waiting.result = outcome
            waiting.done = True
            waiting.set()
            if waiting.gone and self._orphaned is not None and waiting.result is not None:
                await self._orphaned(waiting.result)

    def _hand_over(self) -> None:
        with self._mutex:
            for waiting in chain(*(batch for batch, _ in self._interrupted), self._waiting):
                if _waits(waiting) and not waiting.leads:
                    waiting.leads = True
                    waiting.set()
                    return
            self._free += 1

    async def _leave(self, mine: Waiting[EntryT, ResultT]) -> None:
        mine.gone = True
        if mine.leads:
            self._hand_over()
        if mine.done and self._orphaned is not None and mine.result is not None:
            await self._orphaned(mine.result)


def _waits(one: Waiting[Any, Any]) -> bool:
    return not one.done and not one.gone
