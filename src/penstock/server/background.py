"""What a server does by itself: sweep, watch the write-ahead log, and send the canary."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from penstock.broker import Broker
from penstock.commands import SettleItem
from penstock.config import Settings
from penstock.errors import PenstockError, TryLater
from penstock.model import NewMessage, QueueOptions
from penstock.server.telemetry import LogLines, Metrics

CANARY_QUEUE = "penstock.canary"
CANARY_OPTIONS = QueueOptions(lease_ms=10_000, max_attempts=1, dlq=False, ttl_ms=60_000, journal="off")


async def sweep_forever(broker: Broker, settings: Settings, metrics: Metrics, log: LogLines | None) -> None:
    """Move what time moves, so that nobody needs a cron; and hold pushes back while the log is too long."""
    while True:
        try:
            while (await broker.sweep()).more:
                pass
            watch_wal(broker, settings, metrics)
        except PenstockError as error:
            if log is not None:
                log.write(time=time.time(), level="error", error=str(error), during="sweep")
        await asyncio.sleep(settings.sweep_ms / 1000)


def watch_wal(broker: Broker, settings: Settings, metrics: Metrics) -> None:
    path = getattr(broker.store, "path", None)
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size if path and wal.exists() else 0
    metrics.wal_bytes.set(size)
    if size > settings.wal_bytes_max:
        message = f"the write-ahead log has {size} bytes, more than {settings.wal_bytes_max}"
        broker.pressure = TryLater(message, retry_after_ms=2_000, hint="a long-running reader keeps it from shrinking")
    else:
        broker.pressure = None


async def sing(broker: Broker, settings: Settings, metrics: Metrics) -> None:
    """A synthetic message through the whole of the broker, timed: what a user would feel."""
    while settings.canary_ms:
        started = time.perf_counter()
        try:
            await broker.push(CANARY_QUEUE, [NewMessage(payload=b"tweet")], create=CANARY_OPTIONS)
            messages = await broker.lease(CANARY_QUEUE, limit=100, wait_ms=5_000)
            await broker.ack(CANARY_QUEUE, [SettleItem(message.id, message.token) for message in messages])
            metrics.canary_seconds.observe(time.perf_counter() - started)
        except PenstockError:
            metrics.canary_failures.inc()
        await asyncio.sleep(settings.canary_ms / 1000)
