"""Group commit for coroutines: commands that wait at the same time share one transaction and one fsync.

There is no timer: while one batch commits, the next one collects. A command gets its outcome only once its commit is
durable. `penstock.group_commit.threads` is the counterpart for threads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import partial
from operator import itemgetter
from queue import SimpleQueue
from typing import Any, TypeVar

from penstock.core.commands import Command
from penstock.errors import PenstockError, StoreClosed, TryLater
from penstock.group_commit.batch_order import group_compatible
from penstock.group_commit.interface import BATCH_COMMANDS_MAX, CommandSink, PreparedBatch

T = TypeVar("T")
Undo = Callable[[Command[Any], Any], None]
# An fsync below this takes no longer than the statements of a larger batch.
QUICK_SECONDS = 0.002

Batch = Sequence[tuple[Command[Any], "asyncio.Future[Any]"]]


class _TaskLane:
    """A queue of pending commands and the task that commits them, one batch at a time."""

    __slots__ = ("is_disk_quick", "is_single", "is_starting", "running", "waiting", "writer")

    def __init__(self) -> None:
        self.waiting: deque[tuple[Command[Any], asyncio.Future[Any]]] = deque()
        # True from the first pending command until the loop's next iteration, so that others can join it.
        self.is_starting = False
        self.running: asyncio.Future[None] | None = None
        # True if the batch is a single command with none behind it.
        self.is_single = False
        # True if the last fsync took less than QUICK_SECONDS.
        self.is_disk_quick = False
        self.writer = BatchWriter()


class Committer:
    """Batches concurrent commands into one transaction per lane of the store.

    Where possible, statements run on the event loop, where they cost least, and a thread waits for the fsync or for the
    database while the next batch collects. While the disk is quick, a single command waits for the fsync on the loop,
    because the switch to a thread and back takes longer, and without a transaction if the store can.
    """

    def __init__(self, store: CommandSink, undo: Undo | None = None, *, depth_max: int = 20_000) -> None:
        self._store = store
        self._undo = undo
        self._lanes = [_TaskLane() for _ in range(store.lanes)]
        self._waiting = 0
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="penstock-read")
        self._background_reader = ThreadPoolExecutor(2, thread_name_prefix="penstock-job")
        self._closed = False
        self.depth_max = depth_max
        # Called after each batch with the number of commands and the seconds it took.
        self.committed: Callable[[int, float], None] | None = None

    @property
    def depth(self) -> int:
        """Number of commands that wait for a batch."""
        return self._waiting

    async def submit(self, command: Command[T]) -> T:
        if self._closed:
            raise StoreClosed("the broker is shutting down")
        if self._waiting >= self.depth_max:
            raise TryLater(f"too many pending commits ({self._waiting})", retry_after_ms=1_000)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._enqueue(command, future)
        try:
            return await future
        except asyncio.CancelledError:
            # Cancelled after the outcome arrived, but before the caller got it.
            if not future.cancelled() and future.exception() is None:
                self._abandon(command, future.result())
            raise

    def post(self, command: Command[T], done: Callable[[T], None]) -> None:
        """Submit without waiting; call `done` with the outcome if the command succeeds."""

        def notify(future: asyncio.Future[T]) -> None:
            if not future.cancelled() and future.exception() is None:
                done(future.result())

        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.add_done_callback(notify)
        self._enqueue(command, future)

    def _enqueue(self, command: Command[Any], future: asyncio.Future[Any]) -> None:
        lane = self._lanes[self._store.lane(command)]
        lane.waiting.append((command, future))
        self._waiting += 1
        if lane.running is None and not lane.is_starting:
            lane.is_starting = True
            asyncio.get_running_loop().call_soon(self._start, lane)

    def _start(self, lane: _TaskLane) -> None:
        lane.is_starting = False
        if len(lane.waiting) != 1 or not self._execute_alone(lane):
            lane.running = asyncio.get_running_loop().create_task(self._run(lane))

    def _execute_alone(self, lane: _TaskLane) -> bool:
        """Execute the only pending command here and now; return False if it needs a transaction or a thread."""
        command, future = lane.waiting[0]
        if (command.durable and not lane.is_disk_quick) or future.cancelled():
            return False
        lane.waiting.clear()
        started = time.perf_counter()
        outcome: Any
        try:
            outcome = self._store.apply_now(command)
        except Exception as error:
            outcome = error
        if outcome is None:
            lane.waiting.append((command, future))
            return False
        self._waiting -= 1
        if command.durable:
            lane.is_disk_quick = time.perf_counter() - started < QUICK_SECONDS
        self._resolve([(command, future)], [outcome], started)
        return True

    async def _run(self, lane: _TaskLane) -> None:
        try:
            while lane.waiting:
                batch = self._next_batch(lane)
                if batch:
                    started = time.perf_counter()
                    outcomes = await self._execute([command for command, _ in batch], lane)
                    self._resolve(batch, outcomes, started)
                    if len(batch) > 1 or lane.waiting:
                        # One turn to deliver outcomes, one to read: the callers' next requests can join the next batch.
                        await asyncio.sleep(0)
                        await asyncio.sleep(0)
        finally:
            lane.running = None

    def _next_batch(self, lane: _TaskLane) -> Batch:
        batch: list[tuple[Command[Any], asyncio.Future[Any]]] = []
        while lane.waiting and len(batch) < BATCH_COMMANDS_MAX:
            command, future = lane.waiting.popleft()
            self._waiting -= 1
            # A caller that was cancelled before the batch started needs no execution.
            if not future.cancelled():
                batch.append((command, future))
        lane.is_single = len(batch) == 1 and not lane.waiting
        return group_compatible(batch, itemgetter(0))

    async def _execute(self, commands: Sequence[Command[Any]], lane: _TaskLane) -> Sequence[Any]:
        """Return the outcome of each command, or its error, once it is durable."""
        try:
            prepared = self._store.prepare(commands)
            if prepared is None:
                return await lane.writer.run(partial(self._store.apply, commands))
            try:
                await self._commit(prepared, lane)
            finally:
                prepared.release()
            return prepared.outcomes
        except PenstockError as error:
            return [copy(error) for _ in commands]
        except Exception as error:
            return [error] * len(commands)

    async def _commit(self, prepared: PreparedBatch, lane: _TaskLane) -> None:
        if not prepared.waits_for_disk:
            prepared.commit()
            return
        started = time.perf_counter()
        if lane.is_single and lane.is_disk_quick:
            prepared.commit()
        else:
            await lane.writer.run(prepared.commit)
        lane.is_disk_quick = time.perf_counter() - started < QUICK_SECONDS

    def _resolve(self, batch: Batch, outcomes: Sequence[Any], started: float) -> None:
        if self.committed is not None:
            self.committed(len(batch), time.perf_counter() - started)
        for (command, future), outcome in zip(batch, outcomes, strict=True):
            if future.cancelled():
                self._abandon(command, outcome)
            elif isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _abandon(self, command: Command[Any], outcome: Any) -> None:
        """Undo a command whose caller was cancelled while the store executed it."""
        if self._undo is not None and not isinstance(outcome, BaseException):
            self._undo(command, outcome)

    async def call(self, read: Callable[[], T], *, background: bool = False) -> T:
        """Read from the store without blocking the loop; a `background` read does not delay other reads either."""
        if self._closed:
            raise StoreClosed("the broker is shutting down")
        executor = self._background_reader if background else self._reader
        return await asyncio.get_running_loop().run_in_executor(executor, read)

    async def close(self) -> None:
        """Finish the accepted commands, then stop."""
        self._closed = True
        while any(lane.is_starting for lane in self._lanes):
            await asyncio.sleep(0)
        while running := [lane.running for lane in self._lanes if lane.running is not None]:
            await asyncio.wait(running)
        for lane in self._lanes:
            lane.writer.close()
        for executor in (self._reader, self._background_reader):
            executor.shutdown()


class BatchWriter:
    """A thread that waits for fsyncs. Switching to an executor and back would cost more than many commits."""

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
            # A loop that was closed meanwhile needs no result.
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
