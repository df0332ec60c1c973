"""The server's part in the journal: it drains the store into it while it runs, and trims it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, TypeVar

from penstock.broker.broker import Broker
from penstock.core.commands import ForgetJournal
from penstock.errors import PenstockError
from penstock.journal.drainer import Drain, journal_folder
from penstock.journal.reader import JournalReader
from penstock.log.interface import Streams
from penstock.server.api.journal import Journal
from penstock.server.telemetry import LogLines, Metrics
from penstock.store.sqlite import SqliteStore

T = TypeVar("T")
# Between steps: long enough that many commits share the two fsyncs of one.
STEP_SECONDS = 0.25
# At least, also when someone waits.
HURRY_SECONDS = 0.05
TRIM_SECONDS = 10.0
RETRY_SECONDS = 1.0


class DrainableStore(Protocol):
    @property
    def next_offset(self) -> int: ...

    @property
    def waits(self) -> bool:
        """Whether the store may have something to tell that it has not told yet."""

    def step(self) -> ForgetJournal | bool | None:
        """Whether something was moved, or what the store is to be told of it."""

    def trim(self) -> None: ...

    def close(self) -> None: ...


Open = Callable[[], DrainableStore | None]


def journal_of(broker: Broker, streams: Streams | None) -> tuple[Journal, Open] | None:
    """Where the journal of a broker's store is read, and what opens its drain: None while another has it."""
    store = broker.store
    if isinstance(store, SqliteStore):
        if store.path == ":memory:":
            return None
        folder = journal_folder(store.path)
        return JournalReader(folder), lambda: Drain.open(store, folder)
    database = getattr(streams, "database", None)
    if database is None:
        return None
    from penstock.journal.postgres import PostgresDrain, PostgresJournal

    return PostgresJournal(database), lambda: PostgresDrain(database)


class JournalDrainer:
    def __init__(self, broker: Broker, open_drain: Open, metrics: Metrics, lines: LogLines) -> None:
        self._broker = broker
        self._open_drain = open_drain
        self._metrics = metrics
        self._lines = lines
        self._drain: DrainableStore | None = None
        self._trim_at = 0.0
        self._hurry = asyncio.Event()
        # Its own, because the drain is for one thread, and because the disk must not hold up other reading.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-journal")

    async def run(self) -> None:
        """Until it is cancelled. While another process drains, this one looks again from time to time."""
        while True:
            try:
                pause = await self._turn()
            except PenstockError as error:
                self._lines.write(level="error", error=str(error), during="journal")
                await self._let_go()
                pause = RETRY_SECONDS
            await asyncio.sleep(HURRY_SECONDS)
            with suppress(TimeoutError):
                # Not wait_for, which before Python 3.12 loses a cancellation that comes together with the event.
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
            self._hurry.clear()

    def hurry(self) -> None:
        """Someone waits to be told."""
        self._hurry.set()

    async def finish(self) -> None:
        """Copy the rest, so that the log is whole when the server has gone."""
        try:
            await self._apart(lambda: None)
            while await self._step():
                pass
        except PenstockError as error:
            self._lines.write(level="error", error=str(error), during="journal")
        await self._let_go()
        self._thread.shutdown(wait=False)

    async def _turn(self) -> float:
        if self._drain is None:
            await self._apart(self._open)
            if self._drain is None:
                return RETRY_SECONDS
        await self._step()
        self._metrics.journal_offset.set(
            await self._apart(lambda: 0 if self._drain is None else self._drain.next_offset)
        )
        if time.monotonic() >= self._trim_at:
            self._trim_at = time.monotonic() + TRIM_SECONDS
            await self._apart(self._drain.trim)
        return STEP_SECONDS

    def _open(self) -> None:
        # Here and not by whoever waits for it, who may be cancelled: it holds a lock that must be let go.
        self._drain = self._open_drain()

    async def _step(self) -> bool:
        if self._drain is None:
            return False
        if self._drain.waits:
            await self._broker.catch_up_journal()
        told = await self._apart(self._drain.step)
        if isinstance(told, ForgetJournal):
            await self._broker.forget_journal(told)
        return bool(told)

    async def _let_go(self) -> None:
        drain, self._drain = self._drain, None
        if drain is not None:
            await self._apart(drain.close)

    async def _apart(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
