"""Streams as a server has them: appends that know their key, readers that wait without a thread, and upkeep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.core.model import Clock, system_clock
from penstock.errors import PenstockError, StoreBusy, UnknownStream
from penstock.log.aio import AsyncStreams
from penstock.log.consumers import Kind
from penstock.log.interface import Streams
from penstock.log.model import AppendOutcome, Consumer, Payload, StreamInfo
from penstock.server.append_dedup import AppendDeduplicator
from penstock.server.log_waiters import LogWaiters

T = TypeVar("T")
# A larger append is encoded and written on a thread.
BYTES_ON_LOOP = 64 << 10
# Positions that are committed at the same time, and share a write.
COMMITTING = 16
PAGE = 100


class StreamService:
    def __init__(self, streams: Streams, *, clock: Clock = system_clock) -> None:
        self.streams = streams
        self.log_waiters = LogWaiters(streams, self.call)
        self._clock = clock
        self._appends = AsyncStreams(streams)
        self._keys = AppendDeduplicator(streams, self.call, clock)
        self._committing = ThreadPoolExecutor(COMMITTING, thread_name_prefix="penstock-positions")
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix="penstock-streams-job")
        self._closed = False
        # Told of each append: stream, records, bytes, and the seconds until it was on disk.
        self.appended: Callable[[str, int, int, float], None] | None = None

    async def append(
        self, name: str, payloads: Sequence[Payload], key: str | None = None, since: int | None = None
    ) -> tuple[AppendOutcome, bool]:
        """Answered when on disk; and whether an earlier append with this key, from an offset on, was it."""
        if key is None:
            return await self._append(name, payloads), False
        return await self._keys.append(name, key, payloads, lambda these: self._append(name, these), since)

    async def _append(self, name: str, payloads: Sequence[Payload]) -> AppendOutcome:
        size = sum(len(each if isinstance(each, bytes) else each.data) for each in payloads)
        started = time.perf_counter()
        if size > BYTES_ON_LOOP:
            appended = await self.call(lambda: self.streams.append(name, payloads))
        else:
            appended = await self._appends.append(name, payloads)
        self.log_waiters.wake(name)
        if self.appended is not None:
            self.appended(name, len(payloads), size, time.perf_counter() - started)
        return appended

    async def commit(self, name: str, consumer: str, offset: int, *, force: bool, kind: Kind) -> Consumer:
        return await asyncio.get_running_loop().run_in_executor(
            self._committing, lambda: self.streams.commit(name, consumer, offset, force=force, kind=kind)
        )

    async def call(self, look: Callable[[], T], *, long: bool = False) -> T:
        """Ask the streams on a thread; `long` work does not hold up others."""
        if long:
            return await asyncio.get_running_loop().run_in_executor(self._jobs, look)
        return await self._appends.call(look)

    async def drop(self, name: str, *, force: bool) -> None:
        await self.call(lambda: self.streams.drop(name, force=force), long=True)
        self._keys.forget(name)
        self.log_waiters.wake(name)

    async def trim_all(self) -> None:
        """Remove what the streams' options no longer keep."""
        await self.call(self._trim_all, long=True)

    def _trim_all(self) -> None:
        trouble: PenstockError | None = None
        found = self.streams.list_streams(limit=PAGE)
        while found and not self._closed:
            for info in found:
                # To trim is to write, which is for one process at a time: not without need, and not in its place.
                try:
                    if self._outgrown(info):
                        self.streams.trim(info.name)
                except (StoreBusy, UnknownStream):
                    pass
                except PenstockError as error:
                    trouble = trouble or error
            found = self.streams.list_streams(after=found[-1].name, limit=PAGE)
        if trouble is not None:
            raise trouble

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
        self.log_waiters.close()

    async def close(self) -> None:
        """Finish the appends that were accepted, then close the streams."""
        self._closed = True
        self.log_waiters.close()
        await self._appends.close()
        for executor in (self._committing, self._jobs):
            executor.shutdown()
        self.streams.close()
