"""Group commit of coroutines: a cancelled caller leaves no lease behind."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.core.commands import Command, Configure, Lease, Release, Settled, SettleItem
from penstock.core.model import PushItem, QueueOptions
from penstock.errors import StoreClosed, TryLater
from penstock.group_commit import tasks
from penstock.store.sqlite import SqliteStore

CREATE = QueueOptions(lease_ms=3_600_000)


class GatedStore(SqliteStore):
    """A store whose batches run on a thread and wait there at a gate."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()
        self.is_blocked = False
        self.seen: list[Command[Any]] = []

    def prepare(self, commands: Sequence[Command[Any]]) -> Any:
        self.seen += commands
        return None if self.is_blocked else super().prepare(commands)

    def apply_now(self, command: Command[Any]) -> Any:
        return None  # `prepare` must see every command.

    def apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        self.gate.wait(60)
        return super().apply(commands)

    def shut(self) -> None:
        self.is_blocked = True
        self.gate.clear()

    def open(self) -> None:
        self.is_blocked = False
        self.gate.set()


async def broker_with(path: Path, messages: int) -> tuple[Broker, GatedStore]:
    store = GatedStore(path / "queue.db")
    broker = Broker(store)
    await broker.push("q", [PushItem(payload=b"%d" % n) for n in range(messages)], create=CREATE)
    return broker, store


async def wait_until_released(broker: Broker, ready: int) -> None:
    """Wait until every lease without a recipient is released."""
    async with asyncio.timeout(30):
        while (await broker.stats("q")).info.ready != ready:
            await asyncio.sleep(0.005)
    assert (await broker.stats("q")).info.leased == 0


def test_a_poll_cancelled_before_its_batch_leases_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, store = await broker_with(tmp_path, 1)
        store.shut()
        first = asyncio.create_task(broker.configure("other", create=CREATE))
        async with asyncio.timeout(30):
            while not isinstance(store.seen[-1], Configure):  # The broker first reads the queue on a thread.
                await asyncio.sleep(0.001)
        leaving = asyncio.create_task(broker.lease("q"))
        await asyncio.sleep(0.01)
        leaving.cancel()
        store.open()
        await first
        await wait_until_released(broker, 1)
        assert not any(isinstance(command, Lease | Release) for command in store.seen)
        await broker.close()

    asyncio.run(scenario())


def test_a_poll_cancelled_during_its_batch_releases_the_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, store = await broker_with(tmp_path, 1)
        store.shut()
        leaving = asyncio.create_task(broker.lease("q"))
        await asyncio.sleep(0.01)
        leaving.cancel()
        waiting = asyncio.create_task(broker.lease("q", wait_ms=30_000))
        store.open()
        async with asyncio.timeout(20):
            [message] = await waiting
        assert message.attempts == 1
        assert broker.given_back == 1
        await broker.close()

    asyncio.run(scenario())


def test_a_poll_cancelled_after_its_result_releases_the_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, _ = await broker_with(tmp_path, 1)
        leaving = asyncio.create_task(broker.lease("q"))
        committed = broker.committer.committed

        def cancel_just_then(_: int, __: float) -> None:
            # The outcomes are set right after this call, but the task runs only later.
            asyncio.get_running_loop().call_soon(leaving.cancel)
            broker.committer.committed = committed

        await asyncio.sleep(0)
        broker.committer.committed = cancel_just_then
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await wait_until_released(broker, 1)
        assert broker.given_back == 1
        await broker.close()

    asyncio.run(scenario())


def test_cancelling_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, _ = await broker_with(tmp_path, 20)
        dice = random.Random(1)

        async def lease_and_cancel() -> None:
            task = asyncio.create_task(broker.lease("q", limit=dice.randint(1, 3), wait_ms=dice.choice([0, 50])))
            for _ in range(dice.randint(0, 12)):
                await asyncio.sleep(0)
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random() / 200)
            task.cancel()
            [messages] = await asyncio.gather(task, return_exceptions=True)
            if isinstance(messages, list):
                broker.give_back(messages)

        for _ in range(100):
            await asyncio.gather(*(lease_and_cancel() for _ in range(10)))
        await wait_until_released(broker, 20)
        await broker.close()

    asyncio.run(scenario())


def test_a_push_is_not_undone_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, store = await broker_with(tmp_path, 0)
        store.shut()
        leaving = asyncio.create_task(broker.push("q", [PushItem(payload=b"x")]))
        await asyncio.sleep(0.01)
        leaving.cancel()
        store.open()
        await wait_until_released(broker, 1)
        await broker.close()

    asyncio.run(scenario())


def test_the_number_of_pending_commands_is_limited(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, store = await broker_with(tmp_path, 0)
        broker.committer.depth_max = 2
        store.shut()
        first = asyncio.create_task(broker.lease("q"))
        await asyncio.sleep(0.01)
        others = [asyncio.create_task(broker.lease("q")) for _ in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(TryLater):
            await broker.lease("q")
        store.open()
        await asyncio.gather(first, *others)
        await broker.close()
        with pytest.raises(StoreClosed):
            await broker.lease("q")

    asyncio.run(scenario())


class ThreadRecordingStore(SqliteStore):
    """A store that records which threads waited for the disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.waited_on: list[threading.Thread] = []

    def prepare(self, commands: Sequence[Command[Any]]) -> Any:
        prepared = super().prepare(commands)
        return None if prepared is None else _RecordingBatch(prepared, self.waited_on)

    def apply_now(self, command: Command[Any]) -> Any:
        outcome = super().apply_now(command)
        if outcome is not None:
            self.waited_on.append(threading.current_thread())
        return outcome


class _RecordingBatch:
    def __init__(self, prepared: Any, waited_on: list[threading.Thread]) -> None:
        self._prepared, self._waited_on = prepared, waited_on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prepared, name)

    def commit(self) -> None:
        self._waited_on.append(threading.current_thread())
        self._prepared.commit()


@pytest.mark.parametrize(("quick_seconds", "callers", "on_the_loop"), [(60.0, 1, 3), (60.0, 2, 0), (0.0, 1, 0)])
def test_only_a_single_command_on_an_instant_store_commits_in_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_seconds: float, callers: int, on_the_loop: int
) -> None:
    monkeypatch.setattr(tasks, "QUICK_SECONDS", quick_seconds)

    async def scenario() -> None:
        store = ThreadRecordingStore(tmp_path / "queue.db")
        broker = Broker(store)
        for _ in range(4):
            pushes = [broker.push("q", [PushItem(payload=b"x")], create=CREATE) for _ in range(callers)]
            await asyncio.gather(*pushes)
        await broker.close()
        assert len(store.waited_on) == 4
        assert store.waited_on.count(threading.current_thread()) == on_the_loop

    asyncio.run(scenario())


def test_single_commands_without_a_transaction_are_kept_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "QUICK_SECONDS", 60.0)

    async def scenario() -> None:
        alone: list[str] = []

        class Counting(SqliteStore):
            def apply_now(self, command: Command[Any]) -> Any:
                outcome = super().apply_now(command)
                if outcome is not None:
                    alone.append(type(command).__name__)
                return outcome

        broker = Broker(Counting(tmp_path / "queue.db", journal=True))
        for number in range(10):
            await broker.push("q", [PushItem(payload=b"%d" % number)], create=CREATE)
        for number in range(9):
            [message] = await broker.lease("q")
            assert message.payload == b"%d" % number
            assert await broker.ack("q", [SettleItem(message.id, message.token)]) == [Settled.OK]
            assert await broker.ack("q", [SettleItem(message.id, message.token)]) == [Settled.OK]
        info = (await broker.stats("q")).info
        assert (info.ready, info.leased, info.totals.pushed, info.totals.acked) == (1, 0, 10, 9)
        await broker.close()
        assert {"Push", "Lease", "Ack"} <= set(alone)

    asyncio.run(scenario())
    reopened = SqliteStore(tmp_path / "queue.db")
    [left] = reopened.apply([Lease(queue="q")])[0].messages
    assert left.payload == b"9"
    reopened.close()


def test_a_command_posted_just_before_closing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "QUICK_SECONDS", 60.0)

    async def scenario() -> None:
        broker, _ = await broker_with(tmp_path, 1)
        [message] = await broker.lease("q")
        broker.give_back([message])
        await broker.close()

    asyncio.run(scenario())
    reopened = SqliteStore(tmp_path / "queue.db")
    assert [message.payload for message in reopened.apply([Lease(queue="q")])[0].messages] == [b"0"]
    reopened.close()


def test_a_file_locked_by_another_process_does_not_block_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "QUICK_SECONDS", 60.0)

    async def scenario() -> None:
        broker = Broker(SqliteStore(tmp_path / "queue.db"))
        for _ in range(4):
            await broker.push("q", [PushItem(payload=b"x")], create=CREATE)
        with closing(sqlite3.connect(tmp_path / "queue.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            pushing = asyncio.create_task(broker.push("q", [PushItem(payload=b"x")]))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not pushing.done()
            other.execute("ROLLBACK")
        await pushing
        assert (await broker.stats("q")).info.ready == 5
        await broker.close()

    asyncio.run(scenario())
