"""Background jobs of a server: sweep, trim streams, watch the WAL, drain the journal, heartbeat and canary."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from penstock import __version__
from penstock.broker.broker import Broker
from penstock.broker.workers import SOON_SECONDS
from penstock.config import Settings
from penstock.core.commands import SettleItem
from penstock.core.model import Presence, PushItem, QueueOptions
from penstock.errors import PenstockError
from penstock.server.journal_drainer import JournalDrainer
from penstock.server.stream_service import StreamService
from penstock.server.telemetry import LogLines, Metrics

CANARY_QUEUE = "penstock.canary"
CANARY_OPTIONS = QueueOptions(lease_ms=10_000, max_attempts=1, dlq=False, ttl_ms=60_000, journal="off")
CANARY_SECONDS_MAX = 10.0
CANARY_PAUSE_SECONDS = 0.02
GOODBYE_SECONDS = 2.0


class BackgroundJobs:
    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        metrics: Metrics,
        log: LogLines,
        streams: StreamService | None = None,
        journal: JournalDrainer | None = None,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._metrics = metrics
        self._log = log
        self._streams = streams
        self._tasks: list[asyncio.Task[None]] = []
        self._journal = journal

    def start(self) -> None:
        if not self._tasks:
            works = (self._sweep_forever(), self._run_canary(), self._heartbeat_forever())
            self._tasks = [asyncio.create_task(work) for work in works]
            if self._journal is not None:
                self._tasks.append(asyncio.create_task(self._journal.run()))
            if self._streams is not None:
                self._tasks.append(asyncio.create_task(self._trim_forever(self._streams)))

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks:
            with suppress(PenstockError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._broker.leave()
        if tasks and self._journal is not None:
            await self._journal.finish()

    async def _sweep_forever(self) -> None:
        """Deliver scheduled messages, expire leases and delete old data; reject pushes while the WAL is too long."""
        while True:
            try:
                while (await self._broker.sweep(days_kept=self._settings.metrics_days)).more:
                    pass
                await self._watch_log()
            except Exception as error:
                self._log.write(level="error", error=str(error), during="sweep")
            await asyncio.sleep(self._settings.sweep_ms / 1000)

    async def _heartbeat_forever(self) -> None:
        """Report this server and the workers that lease through it to the fleet; a new worker is reported at once."""
        worker_registry, settings, new_worker = self._broker.worker_registry, self._settings, asyncio.Event()
        worker_registry.heartbeat_ms, worker_registry.stale_ms = settings.worker_heartbeat_ms, settings.worker_stale_ms
        worker_registry.on_new_worker = new_worker.set
        worker_registry.me = Presence(
            kind="server",
            name=settings.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            started_at=self._broker.store.clock(),
        )
        while True:
            new_worker.clear()
            try:
                await self._broker.beat()
            except Exception as error:
                self._log.write(level="error", error=str(error), during="heartbeat")
            await asyncio.sleep(min(SOON_SECONDS, worker_registry.heartbeat_ms / 1000))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, worker_registry.heartbeat_ms / 1000 - SOON_SECONDS)):
                    await new_worker.wait()

    async def _trim_forever(self, streams: StreamService) -> None:
        while True:
            await asyncio.sleep(self._settings.trim_ms / 1000)
            try:
                await streams.trim_all()
            except Exception as error:
                self._log.write(level="error", error=str(error), during="trim")

    async def _watch_log(self) -> None:
        size = log_bytes(self._broker)
        if size > self._settings.wal_bytes_max:
            # While pushes are rejected, there is no commit that would checkpoint the WAL.
            await self._broker.read(self._broker.store.shorten_log)
            size = log_bytes(self._broker)
        self._metrics.wal_bytes.set(size)
        limit = self._settings.wal_bytes_max
        full = f"the write-ahead log is too long: {size} bytes, at most {limit}" if size > limit else None
        self._broker.pressure = full

    async def _run_canary(self) -> None:
        """Send a synthetic message through the broker at intervals and time it, to measure the latency users see."""
        while self._settings.canary_ms:
            await asyncio.sleep(self._settings.canary_ms / 1000)
            started = time.perf_counter()
            try:
                async with asyncio.timeout(CANARY_SECONDS_MAX):
                    received = await self._canary_round_trip()
            except (PenstockError, TimeoutError):
                received = False
            self._metrics.canary(received, time.perf_counter() - started, self._settings.canary_slo_ms / 1000)

    async def _canary_round_trip(self) -> bool:
        [receipt] = await self._broker.push(CANARY_QUEUE, [PushItem(payload=b"tweet")], create=CANARY_OPTIONS)
        while messages := await self._broker.lease(CANARY_QUEUE, limit=100, wait_ms=5_000):
            leases = {message.id: SettleItem(message.id, message.token) for message in messages}
            mine = leases.pop(receipt.id, None)
            if mine is not None:
                await self._broker.ack(CANARY_QUEUE, [mine])
            if leases:
                # They belong to the canaries of other servers; leftovers expire.
                await self._broker.release(CANARY_QUEUE, list(leases.values()))
            if mine is not None:
                return True
            await asyncio.sleep(CANARY_PAUSE_SECONDS)
        return False


def log_bytes(broker: Broker) -> int:
    path = getattr(broker.store, "path", None)
    wal = Path(f"{path}-wal")
    return wal.stat().st_size if path and wal.exists() else 0
