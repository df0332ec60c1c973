"""The server's part in the journal: it drains the store into the log while it runs, and trims the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from penstock.broker import Broker
from penstock.errors import PenstockError
from penstock.journal.drain import Drain
from penstock.server.telemetry import LogLines, Metrics
from penstock.store.protocol import Journalled

T = TypeVar("T")
BUSY_SECONDS = 0.1
"""Between steps while there is something to copy: long enough that many commits share the two fsyncs of a step."""
IDLE_SECONDS = 0.25
TRIM_SECONDS = 10.0
RETRY_SECONDS = 1.0


class JournalKeeper:
    def __init__(self, broker: Broker, store: Journalled, folder: Path, metrics: Metrics, lines: LogLines) -> None:
        self._broker = broker
        self._store = store
        self._folder = folder
        self._metrics = metrics
        self._lines = lines
        self._drain: Drain | None = None
        self._trim_at = 0.0
        # Its own, because the drain is for one thread, and because the disk must not hold up other reading.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-journal")

    async def run(self) -> None:
        """Until it is cancelled. While another process drains, this one looks again from time to time."""
        while True:
            try:
                pause = await self._turn()
            except PenstockError as error:
                self._lines.write(time=time.time(), level="error", error=str(error), during="journal")
                await self._let_go()
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)

    async def finish(self) -> None:
        """Copy the rest, so that the log is whole when the server has gone."""
        try:
            await self._apart(lambda: None)
            while await self._step():
                pass
        except PenstockError as error:
            self._lines.write(time=time.time(), level="error", error=str(error), during="journal")
        await self._let_go()
        self._thread.shutdown(wait=False)

    async def _turn(self) -> float:
        if self._drain is None:
            await self._apart(self._open)
            if self._drain is None:
                return RETRY_SECONDS
        copied = await self._step()
        self._metrics.journal_offset.set(self._drain.log.next_offset)
        if time.monotonic() >= self._trim_at:
            self._trim_at = time.monotonic() + TRIM_SECONDS
            await self._apart(self._drain.trim)
        return BUSY_SECONDS if copied else IDLE_SECONDS

    def _open(self) -> None:
        # Here and not by whoever waits for it, who may be cancelled: it holds a lock that must be let go.
        self._drain = Drain.open(self._store, self._folder)

    async def _step(self) -> bool:
        if self._drain is None:
            return False
        if self._store.journal_waits:
            await self._broker.catch_up_journal()
        told = await self._apart(self._drain.step)
        if told is not None:
            await self._broker.forget_journal(told)
        return told is not None

    async def _let_go(self) -> None:
        drain, self._drain = self._drain, None
        if drain is not None:
            await self._apart(drain.close)

    async def _apart(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
