"""Group commit of threads: pending commands share a transaction, and a failed one affects no other."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock import DiskFull, LiteQueue, PenstockError, StoreError, UnknownQueue, errors
from penstock.core.commands import Command, Push, PushOutcome
from penstock.core.model import PushItem, QueueOptions
from penstock.group_commit.threads import BURST_CALLS, ThreadCommitter, _Waiting
from penstock.store.sqlite import SqliteStore

CREATE = QueueOptions()


class GatedStore(SqliteStore):
    """A real store that can block its batches, and counts them."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()
        self.batches: list[int] = []
        self.fail: BaseException | None = None

    def apply(self, commands: Sequence[Command[Any]]) -> list[Any]:
        self.batches.append(len(commands))
        self.arrived.set()
        self.gate.wait(60)
        if self.fail is not None:
            raise self.fail
        return super().apply(commands)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GatedStore]:
    store = GatedStore(tmp_path / "queue.db")
    yield store
    store.close()


def push(data: bytes, queue: str = "q", create: QueueOptions | None = CREATE, **options: Any) -> Push:
    return Push(queue=queue, messages=[PushItem(payload=data, **options)], create=create)


def submit_together(store: GatedStore, committer: ThreadCommitter, commands: Sequence[Push]) -> list[Any]:
    """Submit the first command, and all others while the store is busy with it; return the outcomes or errors."""

    def answer(command: Push) -> Any:
        try:
            return committer.submit(command)
        except BaseException as error:
            return error

    store.gate.clear()
    store.arrived.clear()
    with ThreadPoolExecutor(len(commands)) as pool:
        first = pool.submit(answer, commands[0])
        assert store.arrived.wait(60)
        others = [pool.submit(answer, command) for command in commands[1:]]
        wait_until(lambda: sum(len(lane.waiting) for lane in committer._lanes) == len(others))
        store.gate.set()
        return [future.result(60) for future in [first, *others]]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_waiting_commands_share_one_transaction(store: GatedStore) -> None:
    outcomes = submit_together(store, ThreadCommitter(store), [push(b"%d" % n) for n in range(50)])
    assert store.batches == [1, 49]
    assert len({outcome.receipts[0].id for outcome in outcomes}) == 50
    assert store.stats("q").info.ready == 50


def test_more_commands_than_fit_in_a_batch_are_all_executed(store: GatedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.group_commit.threads.BATCH_COMMANDS_MAX", 3)
    outcomes = submit_together(store, ThreadCommitter(store), [push(b"%d" % n) for n in range(20)])
    assert sum(store.batches) == 20
    assert max(store.batches) == 3
    assert len({outcome.receipts[0].id for outcome in outcomes}) == 20


def test_a_refused_command_does_not_affect_the_others(store: GatedStore) -> None:
    commands = [push(b"%d" % n, "missing", create=None) if n % 3 == 1 else push(b"%d" % n) for n in range(30)]
    outcomes = submit_together(store, ThreadCommitter(store), commands)
    assert [isinstance(outcome, UnknownQueue) for outcome in outcomes] == [n % 3 == 1 for n in range(30)]
    assert store.stats("q").info.ready == 20


def test_a_command_with_an_unexpected_error_does_not_fail_the_others(store: GatedStore) -> None:
    broken = push(b"x", key="half a pair: \ud800")
    outcomes = submit_together(store, ThreadCommitter(store), [push(b"1"), push(b"2"), broken, push(b"3")])
    assert [isinstance(outcome, Exception) for outcome in outcomes] == [False, False, True, False]
    assert store.stats("q").info.ready == 3


def test_an_error_of_the_store_reaches_each_waiter(store: GatedStore) -> None:
    committer = ThreadCommitter(store)
    store.fail = DiskFull("no room left", hint="free some")
    outcomes = submit_together(store, committer, [push(b"%d" % n) for n in range(10)])
    assert [str(outcome) for outcome in outcomes] == ["no room left (free some)"] * 10
    assert len({id(outcome) for outcome in outcomes}) == 10
    store.fail = None
    committer.submit(push(b"after"))
    assert store.stats("q").info.ready == 1


def test_an_interrupt_of_the_committing_thread_is_raised_only_there(store: GatedStore) -> None:
    store.fail = KeyboardInterrupt()
    first, *others = submit_together(store, ThreadCommitter(store), [push(b"%d" % n) for n in range(5)])
    assert isinstance(first, KeyboardInterrupt)
    kinds = [type(outcome) for outcome in others]
    assert kinds.count(KeyboardInterrupt) == 1
    assert kinds.count(StoreError) == 3


def test_an_interrupted_waiter_blocks_no_other_thread(store: GatedStore) -> None:
    committer = ThreadCommitter(store)
    lock = threading.Lock

    class Interrupted:
        """A gate whose thread is interrupted, either when it is woken or while others commit for it."""

        def __init__(self, *, woken: bool) -> None:
            self.lock, self.woken, self.locked = lock(), woken, False

        def acquire(self, timeout: float = -1) -> bool:
            if not self.locked:
                self.locked = self.lock.acquire()
                return True
            if self.woken:
                self.lock.acquire()
            else:
                wait_until(lambda: len(store.batches) == 2)
            raise KeyboardInterrupt

        def release(self) -> None:
            self.lock.release()

    # The first thread leads the group.
    gates = iter([lock(), Interrupted(woken=True), Interrupted(woken=False), *(lock() for _ in range(4))])
    waiting = _Waiting.__init__

    def with_gate(self: _Waiting, command: Command[Any]) -> None:
        waiting(self, command)
        self.gate = next(gates)  # type: ignore[assignment]
        self.gate.acquire()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Waiting, "__init__", with_gate)
        outcomes = submit_together(store, committer, [push(b"%d" % n) for n in range(8)])
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds.count(KeyboardInterrupt) == 2
    assert kinds.count(PushOutcome) == 6


@pytest.fixture
def quick_store(tmp_path: Path) -> Iterator[GatedStore]:
    store = GatedStore(tmp_path / "quick.db", durability="relaxed")
    yield store
    store.close()


def test_threads_with_bursts_of_calls_all_make_progress(quick_store: GatedStore) -> None:
    committer, calls = ThreadCommitter(quick_store), 300

    def burst(name: int) -> None:
        for number in range(calls):
            committer.submit(push(b"%d %d" % (name, number)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(burst, range(8)))
    found = [row[0].decode().split() for row in quick_store._writer.execute("SELECT payload FROM penstock_message")]
    assert sorted(map(tuple, found)) == sorted((str(name), str(number)) for name in range(8) for number in range(calls))


def test_a_waiter_gets_its_turn_after_a_burst_ends(quick_store: GatedStore) -> None:
    committer = ThreadCommitter(quick_store)
    lane = committer._lanes[0]

    def burst() -> None:
        for _ in range(BURST_CALLS * 10):
            committer.submit(push(b"burst"))
        # The next call leaves while its lane reserves the turn for another call of the burst, which never comes.
        burst = committer._bursts[threading.get_ident()]
        burst.calls, burst.left_at = BURST_CALLS, float("inf")
        lane.handed_at = float("inf")
        quick_store.gate.clear()
        quick_store.arrived.clear()
        committer.submit(push(b"last"))

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(burst)
        wait_until(lambda: not quick_store.gate.is_set())
        assert quick_store.arrived.wait(60)
        second = pool.submit(committer.submit, push(b"patient"))
        wait_until(lambda: len(lane.waiting) == 1)
        quick_store.gate.set()
        first.result(60)
        assert second.result(60).receipts


def test_a_failing_clock_leaves_no_open_transaction(tmp_path: Path) -> None:
    broken = False

    def clock() -> int:
        if broken:
            raise OSError("no time")
        return 1_000

    with LiteQueue(tmp_path / "queue.db", clock=clock) as queue, LiteQueue(tmp_path / "queue.db") as other:
        broken = True
        with pytest.raises(OSError, match="no time"):
            queue.put(b"x")
        other.put(b"y")
        broken = False
        queue.put(b"z")
        assert queue.qsize() == 2


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownQueue("q"),
        errors.UnknownMessage("q", 7),
        errors.QueueExists("q", ["lease_ms"]),
        errors.QueueNotEmpty("q", 3),
        errors.LeaseLost("abc"),
        errors.QueueFull("full", retry_after_ms=5),
        errors.WrongType("no", field="data", hint="do so"),
        errors.DiskFull("no room", hint="free some"),
    ],
)
def test_errors_can_be_pickled_completely(error: PenstockError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
