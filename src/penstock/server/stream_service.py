"""The server's access to streams: deduplicated appends, long polls without a thread each, and retention."""

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
# Larger appends are encoded and written on a thread, so that they do not block the event loop.
BYTES_ON_LOOP = 64 << 10
# Position commits that run at the same time and share a write.
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
        # Called after each append with stream, records, bytes, and the seconds until it was on disk.
        self.appended: Callable[[str, int, int, float], None] | None = None

    async def append(
        self, name: str, payloads: Sequence[Payload], key: str | None = None, since: int | None = None
    ) -> tuple[AppendOutcome, bool]:
        """Append durably. Return the outcome, and True if an earlier append with this key was it."""
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

    async def call(self, work: Callable[[], T], *, background: bool = False) -> T:
        """Run `work` on a thread; `background` work has a thread of its own and does not delay other calls."""
        if background:
            return await asyncio.get_running_loop().run_in_executor(self._jobs, work)
        return await self._appends.call(work)

    async def drop(self, name: str, *, force: bool) -> None:
        await self.call(lambda: self.streams.drop(name, force=force), background=True)
        self._keys.forget(name)
        self.log_waiters.wake(name)

    async def trim_all(self) -> None:
        """Apply the retention options of every stream."""
        await self.call(self._trim_all, background=True)

    def _trim_all(self) -> None:
        first_error: PenstockError | None = None
        found = self.streams.list_streams(limit=PAGE)
        while found and not self._closed:
            for info in found:
                # Trimming takes the stream's write lock: only do it if needed, and not while another process writes.
                try:
                    if self._exceeds_retention(info):
                        self.streams.trim(info.name)
                except (StoreBusy, UnknownStream):
                    pass
                except PenstockError as error:
                    first_error = first_error or error
            found = self.streams.list_streams(after=found[-1].name, limit=PAGE)
        if first_error is not None:
            raise first_error

    def _exceeds_retention(self, info: StreamInfo) -> bool:
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
