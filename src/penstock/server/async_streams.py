"""Streams for an event loop: appends that wait at the same time share one write and one fsync, readers share threads,
and who waits for a record has none.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from penstock.commands import Command
from penstock.committer import Committer
from penstock.errors import InvalidInput, PenstockError, StoreBusy, StoreClosed, UnknownStream
from penstock.log.consumers import Kind
from penstock.log.model import Appended, Consumer, Payload, StreamInfo
from penstock.log.protocol import Streams
from penstock.model import Clock, system_clock
from penstock.server.appended import AppendedKeys
from penstock.server.tails import Tails
from penstock.store.protocol import Prepared

T = TypeVar("T")
BYTES_ON_LOOP = 256 << 10
"""More than this is encoded and written on a thread."""
READERS = 4
COMMITTING = 16
"""Positions that are committed at the same time, and share a write."""
COMMITTERS_MAX = 128
PAGE = 100


class Append(Command[Appended], kw_only=True):
    payloads: Sequence[Payload]
    size: int


class _OneStream:
    """What a committer commits to."""

    def __init__(self, streams: Streams, name: str) -> None:
        self._streams = streams
        self._name = name

    def apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        try:
            return list(self._streams.append_many(self._name, _batches(commands)))
        except InvalidInput as error:
            if len(commands) == 1:
                return [error]
        # One of them can never be appended, which is no trouble of the others.
        return [outcome for command in commands for outcome in self.apply([command])]

    def prepare(self, commands: Sequence[Command[Any]]) -> Prepared | None:
        if sum(command.size for command in commands) > BYTES_ON_LOOP:  # type: ignore[attr-defined]
            return None
        try:
            return self._streams.prepare(self._name, _batches(commands))
        except InvalidInput:
            return None


def _batches(commands: Sequence[Any]) -> list[Sequence[Payload]]:
    return [command.payloads for command in commands]


class AsyncStreams:
    def __init__(self, streams: Streams, *, clock: Clock = system_clock, depth_max: int = 20_000) -> None:
        self.streams = streams
        self.tails = Tails(streams, self.call)
        self._clock = clock
        self._depth_max = depth_max
        self._keys = AppendedKeys()
        self._committers: OrderedDict[str, Committer] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="penstock-streams")
        self._committing = ThreadPoolExecutor(COMMITTING, thread_name_prefix="penstock-positions")
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix="penstock-streams-job")
        self._closed = False
        self.appended: Callable[[str, int, int, float], None] | None = None
        """Told of each append: stream, records, bytes, and the seconds until it was on disk."""

    async def append(self, name: str, payloads: Sequence[Payload], key: str | None = None) -> tuple[Appended, bool]:
        """Answered when on disk; and whether an earlier append with this key was it."""
        if key is None:
            return await self._append(name, payloads), False
        return await self._keys.once(name, key, len(payloads), lambda: self._append(name, payloads))

    async def _append(self, name: str, payloads: Sequence[Payload]) -> Appended:
        size = sum(len(each if isinstance(each, bytes) else each.data) for each in payloads)
        started = time.perf_counter()
        appended = await self._committer(name).submit(Append(payloads=payloads, size=size))
        self.tails.wake(name)
        if self.appended is not None:
            self.appended(name, len(payloads), size, time.perf_counter() - started)
        return appended

    def _committer(self, name: str) -> Committer:
        if self._closed:
            raise StoreClosed("the server is shutting down")
        committer = self._committers.get(name)
        if committer is None:
            if len(self._committers) >= COMMITTERS_MAX:
                self._close_idle()
            committer = Committer(_OneStream(self.streams, name), depth_max=self._depth_max)
            self._committers[name] = committer
        self._committers.move_to_end(name)
        return committer

    def _close_idle(self) -> None:
        for name, committer in self._committers.items():
            if committer.idle:
                del self._committers[name]
                closing = asyncio.ensure_future(committer.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
                return

    async def call(self, look: Callable[[], T], *, long: bool = False) -> T:
        """Ask the streams on a thread; `long` work does not hold up readers."""
        return await asyncio.get_running_loop().run_in_executor(self._jobs if long else self._readers, look)

    async def commit(self, name: str, consumer: str, offset: int, *, force: bool, kind: Kind) -> Consumer:
        return await asyncio.get_running_loop().run_in_executor(
            self._committing, lambda: self.streams.commit(name, consumer, offset, force=force, kind=kind)
        )

    async def drop(self, name: str, *, force: bool) -> None:
        await self.call(lambda: self.streams.drop(name, force=force), long=True)
        self._keys.forget(name)
        self.tails.wake(name)

    async def trim_all(self) -> None:
        """Remove what the streams' options no longer keep."""
        await self.call(self._trim_all, long=True)

    def _trim_all(self) -> None:
        found = self.streams.list_streams(limit=PAGE)
        while found and not self._closed:
            for info in found:
                # To trim is to write, which is for one process at a time: not without need, and not in its place.
                with suppress(StoreBusy, UnknownStream):
                    if self._outgrown(info):
                        self.streams.trim(info.name)
            found = self.streams.list_streams(after=found[-1].name, limit=PAGE)

    def _outgrown(self, info: StreamInfo) -> bool:
        options = info.options
        if options.retention_bytes is not None and info.bytes > options.retention_bytes and info.segments > 1:
            return True
        if options.retention_ms is None or info.next == info.first:
            return False
        try:
            oldest = self.streams.read(info.name, limit=1, bytes_max=1).records
        except PenstockError:
            return True
        return not oldest or oldest[0].time_ms < self._clock() - options.retention_ms

    def stop_waiting(self) -> None:
        self.tails.close()

    async def close(self) -> None:
        """Finish the appends that were accepted, then close the streams."""
        self._closed = True
        self.tails.close()
        await asyncio.gather(*(committer.close() for committer in self._committers.values()), *self._closing)
        for executor in (self._readers, self._committing, self._jobs):
            executor.shutdown()
        self.streams.close()
