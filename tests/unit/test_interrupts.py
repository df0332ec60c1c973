"""Ctrl-C at any moment interrupts only its own thread, and no other thread waits forever."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from penstock import LiteQueue, PenstockError
from penstock.client._sync.batcher import Attempt, RequestBatcher
from penstock.core.commands import Command, Push, PushOutcome
from penstock.core.model import PushItem, QueueOptions
from penstock.group_commit.threads import INTERRUPTED, ThreadCommitter
from penstock.store.sqlite import SqliteStore
from tests.interrupts import each_moment, interrupted
from tests.unit.test_group_commit_threads import wait_until

PATIENCE_SECONDS = 20


class GatedStore(SqliteStore):
    """A real store that can block its batches."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self.gate = threading.Lock()
        self.inside = 0

    def apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        self.inside += 1
        try:
            with self.gate:
                return super().apply(commands)
        finally:
            self.inside -= 1


@pytest.fixture(params=["full", "relaxed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GatedStore]:
    store = GatedStore(tmp_path / "queue.db", durability=request.param)
    yield store
    store.close()


def push() -> Push:
    return Push(queue="q", messages=[PushItem(payload=b"x")], create=QueueOptions())


@pytest.mark.parametrize("which", [0, 1, 2], ids=["first leader", "next leader", "follower"])
def test_an_interrupt_at_any_moment_of_a_commit_blocks_no_other_thread(store: GatedStore, which: int) -> None:
    committer = ThreadCommitter(store)
    (lane,) = committer._lanes
    committer.submit(push())

    def run_threads(moment: int) -> bool:
        outcomes: dict[int, Any] = {}

        def submit(number: int) -> None:
            try:
                outcomes[number] = committer.submit(push())
            except PenstockError as error:
                outcomes[number] = error

        def run(number: int) -> None:
            if number == which:
                was_interrupted.append(interrupted(lambda: submit(number), moment))
            else:
                submit(number)

        was_interrupted: list[bool] = []
        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(4)]
        with store.gate:
            for thread in threads:
                thread.start()
                wait_until(lambda: sum(each.is_alive() for each in threads) == len(lane.waiting) + store.inside)
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), f"hangs after an interrupt at moment {moment}"
        assert not lane.waiting
        assert all(
            type(outcomes[n]) is PushOutcome or str(outcomes[n]) == str(INTERRUPTED) for n in range(4) if n != which
        )
        return was_interrupted[0]

    assert len(list(each_moment(run_threads))) > 10


def test_an_interrupt_at_any_moment_leaves_an_embedded_queue_usable_by_every_thread(tmp_path: Path) -> None:
    with LiteQueue(tmp_path / "queue.db", durability="relaxed") as queue:

        def use() -> None:
            queue.put(b"x")
            with queue.process(wait=0.001):
                pass

        def other() -> None:
            queue.put(b"y")
            queue.pop(wait=0.001)

        def once(moment: int) -> bool:
            was_interrupted = interrupted(use, moment)
            thread = threading.Thread(target=other, daemon=True)
            thread.start()
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), f"hangs after an interrupt at moment {moment}"
            queue.clear()
            return was_interrupted

        assert len(list(each_moment(once))) > 100


@pytest.mark.parametrize("which", [0, 1, 2], ids=["first leader", "next leader", "follower"])
def test_an_interrupt_at_any_moment_of_a_batched_call_blocks_no_other_thread(which: int) -> None:
    gate = threading.Lock()
    inside: list[list[int]] = []

    def send(entries: list[int], attempt: Attempt) -> list[int]:
        inside.append(entries)
        try:
            with gate:
                return entries
        finally:
            inside.pop()

    batcher: RequestBatcher[int, int] = RequestBatcher(send, weigh=lambda _: 1, weight_max=2)

    def run_threads(moment: int) -> bool:
        answers: dict[int, int] = {}
        was_interrupted: list[bool] = []

        def join(number: int) -> None:
            answers[number] = batcher.join(number)

        def run(number: int) -> None:
            if number == which:
                was_interrupted.append(interrupted(lambda: join(number), moment))
            else:
                join(number)

        def is_settled(number: int, thread: threading.Thread) -> bool:
            pending = [*chain(*inside), *(each.entry for each in list(batcher._waiting))]
            return number in pending or not thread.is_alive()

        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(4)]
        with gate:
            for number, thread in enumerate(threads):
                thread.start()
                wait_until(partial(is_settled, number, thread))
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), f"hangs after an interrupt at moment {moment}"
        assert all(answers[number] == number for number in range(4) if number != which)
        return was_interrupted[0]

    assert len(list(each_moment(run_threads))) > 10
