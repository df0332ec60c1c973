"""Drains the store's outbox into the journal while the server runs, and trims the journal."""

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
from penstock.journal.reader import Journal, JournalReader
from penstock.log.interface import Streams
from penstock.server.telemetry import LogLines, Metrics
from penstock.store.sqlite import SqliteStore

T = TypeVar("T")
# Pause between steps, long enough that many commits share the two fsyncs of one.
STEP_SECONDS = 0.25
# Pause also when a subscriber requests a drain.
PAUSE_SECONDS_MIN = 0.05
TRIM_SECONDS = 10.0
RETRY_SECONDS = 1.0
# Longest pause after errors. One that does not go away, such as a broken invariant, needs an operator, not retries.
RETRY_SECONDS_MAX = 60.0


class DrainableStore(Protocol):
    """Moves the events of a store into its journal."""

    @property
    def next_offset(self) -> int: ...

    @property
    def must_catch_up(self) -> bool:
        """True if the store may have events that are not in its outbox yet."""

    def step(self) -> ForgetJournal | bool | None:
        """Move a batch. Return True if something was moved, or the command that removes it from the store."""

    def trim(self) -> None: ...

    def close(self) -> None: ...


Open = Callable[[], DrainableStore | None]


def journal_of(broker: Broker, streams: Streams | None) -> tuple[Journal, Open] | None:
    """Return the journal of the broker's store, and a function that opens its drain.

    The function returns None while another process drains.
    """
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
        self._drain_requested = asyncio.Event()
        # Cause of the last failure; None if the last step succeeded.
        self.error: str | None = None
        # A thread of its own, because a drain is not thread-safe and its fsyncs must not delay reads.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-journal")

    async def run(self) -> None:
        """Drain until cancelled. While another process drains, try again every second; after errors, ever later."""
        retry_seconds = RETRY_SECONDS
        while True:
            try:
                pause = await self._drain_step()
            except Exception as error:
                await self._fail(error)
                # Not shortened by a subscriber, so that an error that stays does not keep the server busy.
                await asyncio.sleep(retry_seconds)
                retry_seconds = min(2 * retry_seconds, RETRY_SECONDS_MAX)
                continue
            retry_seconds = RETRY_SECONDS
            self._set_error(None)
            await asyncio.sleep(PAUSE_SECONDS_MIN)
            with suppress(TimeoutError):
                # Not wait_for, which before Python 3.12 loses a cancellation that arrives together with the event.
                async with asyncio.timeout(pause):
                    await self._drain_requested.wait()
            self._drain_requested.clear()

    def drain_now(self) -> None:
        """Drain without the usual pause, because a subscriber waits for events."""
        self._drain_requested.set()

    async def finish(self) -> None:
        """Drain the rest, so that the journal is complete when the server has stopped."""
        try:
            await self._on_thread(lambda: None)
            while await self._step():
                pass
        except PenstockError as error:
            await self._fail(error)
        await self._release()
        self._thread.shutdown(wait=False)

    async def _fail(self, error: Exception) -> None:
        """Report an error, and open the journal again for the next step."""
        self._set_error(str(error) or type(error).__name__)
        self._lines.write(level="error", error=self.error, during="journal")
        with suppress(PenstockError, OSError):  # The first error says more.
            await self._release()

    def _set_error(self, error: str | None) -> None:
        self.error = error
        self._metrics.journal_failing.set(error is not None)

    async def _drain_step(self) -> float:
        if self._drain is None:
            await self._on_thread(self._open)
            if self._drain is None:
                return RETRY_SECONDS
        await self._step()
        self._metrics.journal_offset.set(
            await self._on_thread(lambda: 0 if self._drain is None else self._drain.next_offset)
        )
        if time.monotonic() >= self._trim_at:
            self._trim_at = time.monotonic() + TRIM_SECONDS
            await self._on_thread(self._drain.trim)
        return STEP_SECONDS

    def _open(self) -> None:
        # Assigned here and not by the awaiting task, which may be cancelled: the drain holds a lock to release.
        self._drain = self._open_drain()

    async def _step(self) -> bool:
        if self._drain is None:
            return False
        if self._drain.must_catch_up:
            await self._broker.catch_up_journal()
        result = await self._on_thread(self._drain.step)
        if isinstance(result, ForgetJournal):
            await self._broker.forget_journal(result)
        return bool(result)

    async def _release(self) -> None:
        drain, self._drain = self._drain, None
        if drain is not None:
            await self._on_thread(drain.close)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
