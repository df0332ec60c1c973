"""Retries, dead letters and the `process` block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import DeadMessage, LiteQueue, StoreClosed
from tests.unit.test_lite import Clock

NOISE = bytes(range(256)) + b"\x00"


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


def deliveries(queue: LiteQueue, clock: Clock) -> list[int]:
    """Pop and let the lease expire until the queue is empty; return the retry counts."""
    retry_counts = []
    while message := queue.pop(timeout=1):
        retry_counts.append(message.retry_count)
        clock.pass_seconds(1)
    return retry_counts


@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_a_message_is_delivered_once_and_then_max_retries_times(path: Path, clock: Clock, max_retries: int) -> None:
    with LiteQueue(path, max_retries, clock=clock) as queue:
        queue.put(NOISE)
        assert deliveries(queue, clock) == list(range(max_retries + 1))
        (dead,) = queue.dlq()
        assert (dead.data, dead.retry_count) == (NOISE, max_retries)


def test_five_retries_are_the_default(queue: LiteQueue, clock: Clock) -> None:
    queue.put(b"x")
    assert deliveries(queue, clock) == [0, 1, 2, 3, 4, 5]


def test_an_explicit_max_retries_changes_an_existing_queue(path: Path, clock: Clock) -> None:
    with LiteQueue(path, clock=clock) as queue:
        queue.put(b"x")
    with LiteQueue(path, max_retries=1, clock=clock) as queue:
        queue.put(b"y")
        assert deliveries(queue, clock) == [0, 1, 0, 1]


def test_an_explicit_max_retries_applies_for_a_consumer_that_never_puts(path: Path, clock: Clock) -> None:
    with LiteQueue(path, clock=clock) as producer, LiteQueue(path, max_retries=0, clock=clock) as consumer:
        assert consumer.pop() is None
        producer.put(b"x")
        assert deliveries(consumer, clock) == [0]
        assert len(consumer.dlq()) == 1


def test_the_default_max_retries_leaves_an_existing_queue_unchanged(path: Path, clock: Clock) -> None:
    with LiteQueue(path, max_retries=1, clock=clock) as queue:
        queue.put(b"x")
    with LiteQueue(path, clock=clock) as queue:
        queue.put(b"y")
        assert deliveries(queue, clock) == [0, 1, 0, 1]


def test_a_nacked_message_backs_off_longer_each_time(queue: LiteQueue, clock: Clock) -> None:
    queue.put(b"x")
    for wait in (1, 2, 4):
        message = queue.pop()
        assert message is not None
        queue.nack(message)
        clock.pass_seconds(wait - 0.001)
        assert queue.pop() is None
        clock.pass_seconds(wait * 0.25 + 0.001)


def test_a_message_nacked_with_a_delay_is_redelivered_after_it(queue: LiteQueue, clock: Clock) -> None:
    queue.put_many([b"1", b"2"])
    first, second = queue.pop_many(2)
    queue.nack(first, delay=10)
    queue.nack(second, delay=0)
    assert [message.data for message in queue.pop_many(5)] == [b"2"]
    clock.pass_seconds(10)
    (back,) = queue.pop_many(5)
    assert (back.id, back.data, back.retry_count) == (first.id, b"1", 1)


def test_dead_letters_keep_bytes_times_and_reason(path: Path, clock: Clock) -> None:
    with LiteQueue(path, max_retries=0, clock=clock) as queue:
        id_ = queue.put(NOISE, "jobs")
        message = queue.pop("jobs")
        assert message is not None
        clock.pass_seconds(7)
        queue.nack(message, error="no such customer")
        assert queue.dlq("jobs") == [
            DeadMessage(id_, NOISE, "jobs", 0, message.created_at, clock.now_ms // 1000, "no such customer")
        ]
        assert queue.dlq() == []
        assert queue.qsize("jobs") == 0


def test_dead_letters_come_newest_first_up_to_the_limit(path: Path, clock: Clock) -> None:
    with LiteQueue(path, max_retries=0, clock=clock) as queue:
        for data in (b"1", b"2", b"3"):
            queue.put(data)
            queue.pop(timeout=1)
            clock.pass_seconds(1)
        assert [dead.data for dead in queue.dlq()] == [b"3", b"2", b"1"]
        assert [dead.data for dead in queue.dlq(limit=2)] == [b"3", b"2"]
        assert queue.dlq()[0].reason == "the lease expired"


def test_redrive_resets_the_attempts_of_dead_letters(path: Path, clock: Clock) -> None:
    with LiteQueue(path, max_retries=1, clock=clock) as queue:
        id_ = queue.put(NOISE)
        assert deliveries(queue, clock) == [0, 1]
        assert queue.redrive() == 1
        assert queue.dlq() == []
        message = queue.pop()
        assert message is not None
        assert (message.id, message.data, message.retry_count) == (id_, NOISE, 0)


def test_redrive_finds_a_message_whose_last_lease_has_just_expired(path: Path, clock: Clock) -> None:
    with LiteQueue(path, max_retries=0, clock=clock) as queue:
        queue.put(b"x")
        queue.pop(timeout=1)
        clock.pass_seconds(1)
        assert queue.redrive() == 1


def test_redrive_can_filter_by_reason(path: Path, clock: Clock) -> None:
    with LiteQueue(path, max_retries=0, clock=clock) as queue:
        queue.put_many([b"1", b"2"])
        for message, error in zip(queue.pop_many(2), ("timeout: 5 s", "bad input"), strict=True):
            queue.nack(message, error=error)
        assert queue.redrive(reason_contains="timeout") == 1
        assert [dead.reason for dead in queue.dlq()] == ["bad input"]


def test_dead_letters_can_be_popped_and_acked_by_their_own_name(path: Path, clock: Clock) -> None:
    with LiteQueue(path, max_retries=2, clock=clock) as queue:
        queue.put(b"x")
        deliveries(queue, clock)
        peeked, popped = queue.peek("default.dlq"), queue.pop("default.dlq")
        assert popped is not None
        assert peeked is not None
        assert (peeked.id, peeked.data, peeked.retry_count) == (popped.id, b"x", popped.retry_count)
        assert popped.retry_count == 2
        queue.ack(popped)
        assert queue.dlq() == []


def test_a_clean_exit_from_process_acks(queue: LiteQueue, clock: Clock) -> None:
    queue.put(b"x")
    with queue.process() as message:
        assert message is not None
        assert message.data == b"x"
    clock.pass_seconds(1e6)
    assert queue.pop() is None
    assert queue.dlq() == []


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_an_error_in_process_counts_a_retry_and_is_raised(queue: LiteQueue, clock: Clock, error: BaseException) -> None:
    queue.put(b"x")
    with pytest.raises(type(error)) as raised, queue.process():
        raise error
    assert raised.value is error
    assert queue.pop() is None
    clock.pass_seconds(2)
    message = queue.pop()
    assert message is not None
    assert message.retry_count == 1


def test_a_message_that_always_fails_is_dead_lettered_with_its_error(path: Path, clock: Clock) -> None:
    with LiteQueue(path, max_retries=1, clock=clock) as queue:
        queue.put(NOISE)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), queue.process():
                _ = 1 / 0
            clock.pass_seconds(100)
        (dead,) = queue.dlq()
        assert (dead.data, dead.reason) == (NOISE, "ZeroDivisionError: division by zero")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [UnprintableError(), ValueError("half a pair: \ud800"), ValueError("x" * 100_000)])
def test_an_error_whose_text_cannot_be_stored_still_counts_a_retry(path: Path, clock: Clock, error: Exception) -> None:
    with LiteQueue(path, max_retries=0, clock=clock) as queue:
        queue.put(b"x")
        with pytest.raises(type(error)) as raised, queue.process():
            raise error
        assert raised.value is error
        assert queue.dlq()[0].reason.startswith(type(error).__name__)


def test_the_blocks_error_is_raised_even_if_the_lease_was_lost(queue: LiteQueue, clock: Clock) -> None:
    queue.put(b"x")

    def work() -> None:
        with queue.process(timeout=1):
            clock.pass_seconds(5)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        work()


def test_the_blocks_error_is_raised_even_if_the_queue_was_closed(queue: LiteQueue) -> None:
    queue.put(b"x")

    def work() -> None:
        with queue.process():
            queue.close()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as raised:
        work()
    assert "could not be nacked" in raised.value.__notes__[0]
    with pytest.raises(StoreClosed):
        queue.qsize()
