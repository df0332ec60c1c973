"""Group commit: commands that wait at the same time share one transaction and one fsync.

There is no timer: while one batch commits, the next gathers. A command is answered only when the commit that holds it
is on disk. This is for coroutines; `penstock.group_commit.threads` is for threads.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from operator import itemgetter
from queue import SimpleQueue
from typing import Any, TypeVar

from penstock.core.commands import Command
from penstock.errors import PenstockError, StoreClosed, TryLater
from penstock.group_commit.batch_order import arranged
from penstock.group_commit.interface import BATCH_COMMANDS_MAX, CommandSink, PendingReply

T = TypeVar("T")
Undo = Callable[[Command[Any], Any], None]
CAN_WATCH = sys.platform != "win32"
"""Whether event loops watch sockets that are not theirs."""
QUICK_SECONDS = 0.002
"""A wait for the disk that is no longer than the statements of a larger batch."""

Batch = Sequence[tuple[Command[Any], "asyncio.Future[Any]"]]


class _TaskLane:
    """Commands that wait for a batch of their kind, and the task that commits them; one batch at a time."""

    __slots__ = ("alone", "commit_is_instant", "running", "waiting", "writer")

    def __init__(self) -> None:
        self.waiting: deque[tuple[Command[Any], asyncio.Future[Any]]] = deque()
        self.running: asyncio.Future[None] | None = None
        self.alone = False
        """Whether the last batch was a single command, and nobody waited: then the next need not wait for others."""
        self.commit_is_instant = False
        """Whether the last wait for the disk was a short one."""
        self.writer = BatchWriter()


class Committer:
    """As many batches are with the store at once as it has lanes. Where it can, statements run on the event loop, where
    they cost least; the wait for the disk, or for a database's answers, is on a thread, while the next batch gathers.
    While a disk is quick, a command that is alone waits for it on the loop: the way to a thread and back takes longer.
    """

    def __init__(self, store: CommandSink, undo: Undo | None = None, *, depth_max: int = 20_000) -> None:
        self._store = store
        self._undo = undo
        self._lanes = [_TaskLane() for _ in range(store.lanes)]
        self._waiting = 0
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="penstock-read")
        self._long_reader = ThreadPoolExecutor(2, thread_name_prefix="penstock-job")
        self._closed = False
        self.depth_max = depth_max
        self.committed: Callable[[int, float], None] | None = None
        """Told of each batch: how many commands, and the seconds it took."""

    @property
    def depth(self) -> int:
        """Commands that wait for a batch."""
        return self._waiting

    async def submit(self, command: Command[T]) -> T:
        if self._closed:
            raise StoreClosed("the broker is shutting down")
        if self._waiting >= self.depth_max:
            raise TryLater(f"{self._waiting} commands wait for the disk already", retry_after_ms=1_000)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._enqueue(command, future)
        try:
            return await future
        except asyncio.CancelledError:
            # Cancelled after the answer had come, but before it was taken.
            if not future.cancelled() and future.exception() is None:
                self._abandon(command, future.result())
            raise

    def post(self, command: Command[T], done: Callable[[T], None]) -> None:
        """Submit for nobody in particular; `done` is told the outcome, unless there is none."""

        def tell(future: asyncio.Future[T]) -> None:
            if not future.cancelled() and future.exception() is None:
                done(future.result())

        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.add_done_callback(tell)
        self._enqueue(command, future)

    def _enqueue(self, command: Command[Any], future: asyncio.Future[Any]) -> None:
        lane = self._lanes[self._store.lane(command)]
        if lane.running is None and lane.alone and CAN_WATCH:
            asked = self._store.ask([command])
            if asked is not None:
                self._ask_alone(lane, command, future, asked)
                return
        lane.waiting.append((command, future))
        self._waiting += 1
        if lane.running is None:
            lane.running = asyncio.get_running_loop().create_task(self._run(lane))

    def _ask_alone(
        self, lane: _TaskLane, command: Command[Any], future: asyncio.Future[Any], asked: PendingReply
    ) -> None:
        """Without a task: each turn of the loop costs a single caller as much as a statement costs the database."""
        started, loop = time.perf_counter(), asyncio.get_running_loop()

        def come() -> None:
            outcomes = asked.outcomes()
            lane.running = None
            if outcomes is None:
                lane.running = loop.create_task(self._finish_alone(lane, command, future, asked, started))
            else:
                self._tell([(command, future)], outcomes, started)
                if lane.waiting:
                    lane.running = loop.create_task(self._run(lane))
            over.set_result(None)

        lane.running = over = loop.create_future()
        _BatchReply(asked, come)

    async def _finish_alone(
        self, lane: _TaskLane, command: Command[Any], future: asyncio.Future[Any], asked: PendingReply, started: float
    ) -> None:
        outcomes = await self._outcomes(lane.writer.run(asked.finish), 1)
        self._tell([(command, future)], outcomes, started)
        await self._run(lane)

    async def _run(self, lane: _TaskLane) -> None:
        try:
            while lane.waiting:
                batch: list[tuple[Command[Any], asyncio.Future[Any]]] = []
                while lane.waiting and len(batch) < BATCH_COMMANDS_MAX:
                    command, future = lane.waiting.popleft()
                    self._waiting -= 1
                    # Whoever has gone before the batch was taken asks for nothing any more.
                    if not future.cancelled():
                        batch.append((command, future))
                lane.alone = len(batch) == 1 and not lane.waiting
                if batch:
                    await self._commit(arranged(batch, itemgetter(0)), lane)
                    if len(batch) > 1 or lane.waiting:
                        # One turn to answer, one to read: what is asked in return may be in the next batch.
                        await asyncio.sleep(0)
                        await asyncio.sleep(0)
        finally:
            lane.running = None

    async def _commit(self, batch: Batch, lane: _TaskLane) -> None:
        started = time.perf_counter()
        outcomes = await self._outcomes(self._carry_out([command for command, _ in batch], lane), len(batch))
        self._tell(batch, outcomes, started)

    async def _outcomes(self, carried_out: Awaitable[Sequence[Any]], count: int) -> Sequence[Any]:
        try:
            return await carried_out
        except PenstockError as error:
            return [copy(error) for _ in range(count)]
        except Exception as error:
            return [error] * count

    def _tell(self, batch: Batch, outcomes: Sequence[Any], started: float) -> None:
        if self.committed is not None:
            self.committed(len(batch), time.perf_counter() - started)
        for (command, future), outcome in zip(batch, outcomes, strict=True):
            if future.cancelled():
                self._abandon(command, outcome)
            elif isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    async def _carry_out(self, commands: Sequence[Command[Any]], lane: _TaskLane) -> Sequence[Any]:
        writer = lane.writer
        asked = self._store.ask(commands) if CAN_WATCH else None
        if asked is not None:
            await _answer(asked)
            outcomes = asked.outcomes()
            return await writer.run(asked.finish) if outcomes is None else outcomes
        prepared = self._store.prepare(commands)
        if prepared is None:
            return await writer.run(lambda: self._store.apply(commands))
        try:
            if not prepared.waits_for_disk:
                prepared.commit()
            else:
                started = time.perf_counter()
                if lane.alone and lane.commit_is_instant:
                    prepared.commit()
                else:
                    await writer.run(prepared.commit)
                lane.commit_is_instant = time.perf_counter() - started < QUICK_SECONDS
        finally:
            prepared.release()
        return prepared.outcomes

    def _abandon(self, command: Command[Any], outcome: Any) -> None:
        """Its caller left while the command was with the store."""
        if self._undo is not None and not isinstance(outcome, BaseException):
            self._undo(command, outcome)

    async def call(self, look: Callable[[], T], *, long: bool = False) -> T:
        """Read from the store, without holding up the loop; `long` work does not hold up other reads either."""
        if self._closed:
            raise StoreClosed("the broker is shutting down")
        executor = self._long_reader if long else self._reader
        return await asyncio.get_running_loop().run_in_executor(executor, look)

    async def close(self) -> None:
        """Finish what was accepted, then stop."""
        self._closed = True
        while running := [lane.running for lane in self._lanes if lane.running is not None]:
            await asyncio.wait(running)
        for lane in self._lanes:
            lane.writer.close()
        for executor in (self._reader, self._long_reader):
            executor.shutdown()


class _BatchReply:
    """Waits for a database without a thread: the way to one and back costs more than many a batch."""

    __slots__ = ("_asked", "_loop", "_over", "_sending", "_then", "_timer", "_watching")

    def __init__(self, asked: PendingReply, then: Callable[[], None]) -> None:
        """`then` is called when the answer has come, never before this returns."""
        self._asked = asked
        self._then = then
        self._loop = loop = asyncio.get_running_loop()
        self._over = self._watching = False
        self._sending = not asked.send()
        self._timer: asyncio.TimerHandle | None = None
        if asked.failed:
            self.leave()
            loop.call_soon(then)
            return
        self._watching = True
        loop.add_reader(asked.socket, self._take_in)
        if self._sending:
            loop.add_writer(asked.socket, self._send)
        if asked.patience_seconds is not None:
            self._timer = loop.call_later(asked.patience_seconds, self._give_up)

    def _take_in(self) -> None:
        if self._asked.receive():
            self._end()

    def _send(self) -> None:
        if self._asked.send():
            self._sending = False
            self._loop.remove_writer(self._asked.socket)

    def _give_up(self) -> None:
        self._forget()
        self._asked.abandon()
        self._end()

    def _end(self) -> None:
        self.leave()
        self._then()

    def leave(self) -> None:
        """At once when the line is lost: another may be given its number."""
        if not self._over:
            self._over = True
            self._forget()
            if self._timer is not None:
                self._timer.cancel()
            self._asked.let_go()

    def _forget(self) -> None:
        if self._watching:
            self._watching = False
            self._loop.remove_reader(self._asked.socket)
            if self._sending:
                self._loop.remove_writer(self._asked.socket)


async def _answer(asked: PendingReply) -> None:
    come = asyncio.get_running_loop().create_future()
    answer = _BatchReply(asked, lambda: None if come.done() else come.set_result(None))
    try:
        await come
    finally:
        answer.leave()


class BatchWriter:
    """One thread that waits for the disk. An executor's way there and back costs more than many a commit."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="penstock-commit", daemon=True)
            self._thread.start()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((call, future))
        return future

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            result, error = None, None
            try:
                result = call()
            except BaseException as problem:
                error = problem
            # A loop that has ended meanwhile waits for nothing.
            with suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            del item, call, future, result, error

    def close(self) -> None:
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
