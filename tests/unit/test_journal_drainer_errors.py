"""A failure to write the journal is reported, and retried at growing intervals."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.errors import InvariantBroken
from penstock.server import journal_drainer
from penstock.server.journal_drainer import DrainableStore, JournalDrainer
from penstock.server.telemetry import LogLines, Metrics
from penstock.store.sqlite import SqliteStore


class Opener:
    """Fails to open a drain as long as it has an error, and then reports that another process drains."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.calls = 0

    def __call__(self) -> DrainableStore | None:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return None


@pytest.mark.parametrize("error", [InvariantBroken("a hole in the journal"), ValueError("not an event")])
def test_a_persistent_error_is_reported_and_retried_without_spinning(tmp_path: Path, error: Exception) -> None:
    async def scenario() -> None:
        broker, written, opener = Broker(SqliteStore(tmp_path / "queue.db")), io.BytesIO(), Opener(error)
        metrics = Metrics(broker)
        drainer = JournalDrainer(broker, opener, metrics, LogLines(written))
        task = asyncio.create_task(drainer.run())
        for _ in range(30):
            drainer.drain_now()
            await asyncio.sleep(0.01)
        assert opener.calls == 1
        assert drainer.error == str(error)
        assert b"penstock_journal_failing 1.0" in metrics.text()
        [line] = map(json.loads, written.getvalue().splitlines())
        assert (line["level"], line["during"], line["error"]) == ("error", "journal", str(error))
        task.cancel()
        await drainer.finish()
        await broker.close()

    asyncio.run(scenario())


def test_a_resolved_error_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_drainer, "RETRY_SECONDS", 0.01)

    async def scenario() -> None:
        broker, opener = Broker(SqliteStore(tmp_path / "queue.db")), Opener(InvariantBroken("a hole"))
        metrics = Metrics(broker)
        drainer = JournalDrainer(broker, opener, metrics, LogLines(io.BytesIO()))
        task = asyncio.create_task(drainer.run())
        async with asyncio.timeout(60):
            while opener.calls < 3:
                await asyncio.sleep(0.01)
            assert drainer.error is not None
            opener.error = None
            while drainer.error is not None:
                await asyncio.sleep(0.01)
        assert b"penstock_journal_failing 0.0" in metrics.text()
        task.cancel()
        await drainer.finish()
        await broker.close()

    asyncio.run(scenario())
