"""LiteQueue: bytes, whole seconds, leases, retries and dead letters."""

from __future__ import annotations

import doctest
import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
import penstock.lite
from penstock import LeaseLost, LiteQueue

NOON = 1_732_450_000_000


class Clock:
    """A clock in milliseconds that moves only on request."""

    def __init__(self) -> None:
        self.now_ms = NOON + 123

    def __call__(self) -> int:
        return self.now_ms

    def pass_seconds(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def queue(path: Path, clock: Clock) -> Iterator[LiteQueue]:
    with LiteQueue(path, clock=clock) as queue:
        yield queue


def test_the_public_names_are_exactly_those_listed() -> None:
    assert sorted(penstock.__all__) == penstock.__all__
    for name in penstock.__all__:
        assert getattr(penstock, name).__name__ == name
    ours = {name for name, value in vars(penstock).items() if getattr(value, "__module__", "").startswith("penstock")}
    assert {name for name in ours if not name.startswith("_")} == set(penstock.__all__)
    assert set(penstock.__all__) <= set(dir(penstock))


def test_the_example_in_the_docstring_runs() -> None:
    result = doctest.testmod(penstock.lite)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"a\x00b\x00",
        bytes(range(256)),
        "snow ☃".encode(),
        b"x" * 100_000,
        random.Random(1).randbytes(5_000),
    ],
)
def test_bytes_are_returned_unchanged(queue: LiteQueue, data: bytes) -> None:
    queue.put(data)
    for look in (queue.peek, queue.pop):
        message = look()
        assert message is not None
        assert type(message.data) is bytes
        assert message.data == data


def test_random_payloads_are_returned_in_order(queue: LiteQueue) -> None:
    chance = random.Random(7)
    noise = [chance.randbytes(chance.randrange(300)) for _ in range(1_000)]
    queue.put_many(noise)
    assert [message.data for message in queue.pop_many(1_000)] == noise


def test_times_are_whole_seconds(queue: LiteQueue, clock: Clock) -> None:
    queue.put(b"x")
    message = queue.pop()
    assert message is not None
    assert type(message.created_at) is int
    assert message.created_at == clock.now_ms // 1000 == NOON // 1000


def test_an_id_is_a_time_ordered_uuid(queue: LiteQueue, clock: Clock) -> None:
    ids = []
    for _ in range(20):
        ids.append(queue.put(b"x"))
        clock.pass_seconds(0.001)
    assert ids == sorted(ids)
    assert {uuid.UUID(each).version for each in ids} == {7}
    assert [message.id for message in queue.pop_many(100)] == ids


def test_an_empty_queue_returns_none_or_nothing(queue: LiteQueue) -> None:
    for qname in ("default", "never-used", "never-used.dlq"):
        assert queue.pop(qname) is None
        assert queue.pop_many(10, qname) == []
        assert queue.peek(qname) is None
        assert queue.qsize(qname) == 0
        assert queue.clear(qname) == 0
        assert queue.dlq(qname) == []
        assert queue.redrive(qname) == 0
        with queue.process(qname) as message:
            assert message is None
    assert queue.ack_many([]) == []
    assert queue.nack_many([]) == []
    assert queue.put_many([]) == []


def test_a_popped_message_is_hidden_until_its_lease_expires(queue: LiteQueue, clock: Clock) -> None:
    id_ = queue.put(b"x")
    first = queue.pop(timeout=2)
    assert first is not None
    assert queue.pop() is None
    clock.pass_seconds(1.999)
    assert queue.pop() is None
    clock.pass_seconds(0.001)
    second = queue.pop()
    assert second is not None
    assert (second.id, second.retry_count) == (id_, 1)


def test_a_delayed_message_is_hidden_until_it_is_due(queue: LiteQueue, clock: Clock) -> None:
    queue.put(b"later", delay=10)
    queue.put(b"soon", delay=0.5)
    assert queue.pop() is None
    assert queue.peek() is None
    assert queue.qsize() == 2
    clock.pass_seconds(0.5)
    assert [message.data for message in queue.pop_many(10)] == [b"soon"]
    clock.pass_seconds(9.5)
    assert [message.data for message in queue.pop_many(10)] == [b"later"]


def test_a_worker_with_an_expired_lease_cannot_settle_it(queue: LiteQueue, clock: Clock) -> None:
    queue.put(b"x")
    slow = queue.pop(timeout=1)
    assert slow is not None
    clock.pass_seconds(1)
    for settle in (queue.ack, queue.nack, queue.extend):
        with pytest.raises(LeaseLost):
            settle(slow)
    quick = queue.pop()
    assert quick is not None
    with pytest.raises(LeaseLost):
        queue.ack(slow)
    assert queue.ack_many([slow, quick]) == [slow]
    assert queue.qsize() == 0


def test_an_extended_lease_lasts_from_now(queue: LiteQueue, clock: Clock) -> None:
    queue.put(b"x")
    message = queue.pop(timeout=2)
    assert message is not None
    clock.pass_seconds(1)
    queue.extend(message, timeout=5)
    clock.pass_seconds(4)
    assert queue.pop() is None
    queue.ack(message)
    clock.pass_seconds(100)
    assert queue.pop() is None


def test_an_ack_is_final(queue: LiteQueue, clock: Clock, path: Path) -> None:
    queue.put(b"x")
    message = queue.pop()
    assert message is not None
    queue.ack(message)
    queue.ack(message)
    with pytest.raises(LeaseLost):
        queue.nack(message)
    clock.pass_seconds(1e6)
    assert queue.pop() is None
    with LiteQueue(path, clock=clock) as again:
        assert again.pop() is None


def test_one_queue_never_sees_the_messages_of_another(queue: LiteQueue) -> None:
    queue.put(b"a", "A")
    queue.put(b"b", "B")
    assert queue.pop() is None
    assert [queue.qsize(name) for name in ("A", "B", "default")] == [1, 1, 0]
    message = queue.pop("A")
    assert message is not None
    assert (message.data, message.queue_name) == (b"a", "A")
    assert queue.pop("A") is None
    assert queue.clear("A") == 0
    assert queue.qsize("B") == 1


def test_peek_shows_the_next_message_without_leasing_it(queue: LiteQueue, clock: Clock) -> None:
    queue.put(b"first")
    queue.put(b"second")
    peeked = queue.peek()
    assert peeked == queue.peek() == queue.pop(timeout=1)
    clock.pass_seconds(1)
    assert queue.peek() == queue.pop()


def test_qsize_counts_undelivered_messages(queue: LiteQueue, clock: Clock) -> None:
    queue.put_many([b"1", b"2"])
    queue.put(b"3", delay=5)
    assert queue.qsize() == 3
    queue.pop(timeout=1)
    assert queue.qsize() == 2
    clock.pass_seconds(1)
    assert queue.qsize() == 3


def test_clear_removes_undelivered_messages(queue: LiteQueue, clock: Clock) -> None:
    queue.put_many([b"held", b"lapsed", b"ready"])
    held, _ = queue.pop(timeout=60), queue.pop(timeout=1)
    queue.put(b"delayed", delay=60)
    clock.pass_seconds(2)
    assert queue.clear() == 3
    assert queue.qsize() == 0
    assert queue.pop() is None
    assert held is not None
    queue.ack(held)


def test_messages_survive_closing(path: Path, clock: Clock) -> None:
    with LiteQueue(path, clock=clock) as queue:
        ids = queue.put_many([b"1", b"2"])
    with LiteQueue(os.fspath(path), clock=clock) as queue:
        assert [message.id for message in queue.pop_many(10)] == ids


def test_a_queue_in_memory_works_the_same_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with LiteQueue(":memory:") as queue:
        queue.put(b"x")
        with queue.process() as message:
            assert message is not None
        assert queue.qsize() == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_changing_the_working_directory_does_not_change_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    with LiteQueue("tasks.db") as queue:
        monkeypatch.chdir(other)
        queue.put(b"x")
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        assert queue.qsize() == 1
    assert list(other.iterdir()) == []


def test_a_clock_that_is_set_back_does_not_hide_dead_letters(path: Path, clock: Clock) -> None:
    with LiteQueue(path, clock=clock, max_retries=0) as queue:
        queue.put(b"x")
        message = queue.pop()
        assert message is not None
        queue.nack(message)
        clock.pass_seconds(-3600)
        assert queue.redrive() == 1
