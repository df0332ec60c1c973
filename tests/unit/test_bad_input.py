"""An invalid value is refused with a typed error and a hint, and nothing is lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    BatchTooLarge,
    CannotOpen,
    InvalidInput,
    InvalidName,
    LeaseLost,
    LiteQueue,
    Message,
    PayloadTooLarge,
    StoreClosed,
    WrongType,
)
from penstock.core.limits import Limits

NO_INT = [True, 1.5, "1", None, [1], b"1"]
NO_TEXT = [1, True, b"x", ["x"], object()]
NO_SECONDS = [True, "1", b"1", [1], {}, 1j]
NO_TIME = [-1, -0.5, math.nan, math.inf, -math.inf, 10**30, 1e300]
NO_NAME = [
    "",
    "a/b",
    "/a/b",
    "a//b",
    "a/b/c/d",
    "nul\0",
    "\U0001f600",
    "é",
    "a b",
    "a\n",
    "x" * 256,
    "\ud800",
]


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteQueue]:
    with LiteQueue(tmp_path_factory.mktemp("bad") / "tasks.db", max_bytes=1_000) as queue:
        queue.put_many([b"1", b"2"])
        queue.put(b"held")
        yield queue


@pytest.fixture(autouse=True)
def unchanged(queue: LiteQueue) -> Iterator[None]:
    """Check that a refused call changes nothing and that the queue still works."""
    before = queue._broker.stats("default").info
    yield
    assert queue._broker.stats("default").info == before
    id_ = queue.put(b"works", "probe")
    message = queue.pop("probe")
    assert message is not None
    assert message.id == id_
    queue.ack(message)


def peeked_message(queue: LiteQueue) -> Message:
    """Return a message without a lease, which is refused before the store is called."""
    message = queue.peek()
    assert message is not None
    return message


def assert_refused(call: Callable[[], Any], kind: type[InvalidInput], field: str | None = None) -> None:
    with pytest.raises(kind) as raised:
        call()
    assert type(raised.value) is kind
    assert str(raised.value)
    if field is not None:
        assert raised.value.field == field


@pytest.mark.parametrize("data", ["text", bytearray(b"x"), memoryview(b"x"), None, 1, [b"x"], True])
def test_data_must_be_bytes(queue: LiteQueue, data: Any) -> None:
    assert_refused(lambda: queue.put(data), WrongType, "data")
    assert_refused(lambda: queue.put_many([b"fine", data]), WrongType, "data")
    with pytest.raises(TypeError):
        queue.put(data)


@pytest.mark.parametrize("data", [b"one", bytearray(b"one"), "one", 5, None])
def test_put_many_requires_a_collection(queue: LiteQueue, data: Any) -> None:
    assert_refused(lambda: queue.put_many(data), WrongType, "data")


@pytest.mark.parametrize("qname", [1, True, b"default", ["default"], {"a": 1}, ("a",)])
def test_a_queue_name_must_be_a_str(queue: LiteQueue, qname: Any) -> None:
    for call in calls_of_every_verb(queue, qname):
        assert_refused(call, WrongType, "queue")


def test_every_verb_refuses_a_missing_queue_name(queue: LiteQueue) -> None:
    for call in calls_of_every_verb(queue, None):
        with pytest.raises(InvalidInput):
            call()


@pytest.mark.parametrize("qname", NO_NAME)
def test_every_verb_refuses_an_invalid_queue_name(queue: LiteQueue, qname: str) -> None:
    for call in calls_of_every_verb(queue, qname):
        assert_refused(call, InvalidName, "queue")


def calls_of_every_verb(queue: LiteQueue, qname: Any) -> list[Callable[[], Any]]:
    def process() -> None:
        with queue.process(qname):
            pass

    return [
        lambda: queue.put(b"x", qname),
        lambda: queue.put_many([b"x"], qname),
        lambda: queue.pop(qname),
        lambda: queue.pop_many(2, qname),
        lambda: queue.pop(qname, wait=0.01),
        lambda: queue.peek(qname),
        lambda: queue.qsize(qname),
        lambda: queue.clear(qname),
        lambda: queue.dlq(qname),
        lambda: queue.redrive(qname),
        process,
    ]


def test_the_longest_name_and_a_path_of_three_are_valid(queue: LiteQueue) -> None:
    for qname in ("x" * 255, "ns/task/queue", "A-b_c.9"):
        queue.put(b"x", qname)
        assert queue.clear(qname) == 1


def test_a_dead_letter_name_can_be_popped_but_not_put_to(queue: LiteQueue) -> None:
    assert_refused(lambda: queue.put(b"x", "default.dlq"), InvalidName, "queue")
    assert_refused(lambda: queue.put_many([b"x"], "default.dlq"), InvalidName, "queue")
    assert queue.pop("default.dlq") is None


@pytest.mark.parametrize("value", [*NO_SECONDS, *NO_TIME])
def test_a_time_must_be_a_valid_number_of_seconds(queue: LiteQueue, value: Any) -> None:
    kind = WrongType if value in NO_SECONDS and type(value) not in (int, float) else InvalidInput
    assert_refused(lambda: queue.put(b"x", delay=value), kind, "delay")
    assert_refused(lambda: queue.put_many([b"x"], delay=value), kind, "delay")
    assert_refused(lambda: queue.put(b"x", ttl=value), kind, "ttl")
    assert_refused(lambda: queue.pop(timeout=value), kind, "timeout")
    assert_refused(lambda: queue.pop_many(1, timeout=value), kind, "timeout")
    assert_refused(lambda: queue.pop(wait=value), kind, "wait")
    assert_refused(lambda: queue.extend(peeked_message(queue), value), kind, "timeout")
    assert_refused(lambda: queue.nack(peeked_message(queue), delay=value), kind, "delay")


@pytest.mark.parametrize("value", [None, "", (), False])
def test_an_empty_value_is_not_a_time(queue: LiteQueue, value: Any) -> None:
    assert_refused(lambda: queue.put(b"x", delay=value), WrongType, "delay")
    assert_refused(lambda: queue.pop(timeout=value), WrongType, "timeout")
    assert_refused(lambda: queue.pop(wait=value), WrongType, "wait")


def test_a_lease_or_ttl_of_zero_is_refused(queue: LiteQueue) -> None:
    assert_refused(lambda: queue.pop(timeout=0), InvalidInput, "timeout")
    assert_refused(lambda: queue.pop(timeout=0.0001), InvalidInput, "timeout")
    assert_refused(lambda: queue.put(b"x", ttl=0), InvalidInput, "ttl")


@pytest.mark.parametrize("value", [*NO_INT, 2**31, -(2**31), 10**30])
def test_a_priority_must_be_an_int_in_range(queue: LiteQueue, value: Any) -> None:
    assert_refused(
        lambda: queue.put(b"x", priority=value), InvalidInput if type(value) is int else WrongType, "priority"
    )


@pytest.mark.parametrize("value", [*NO_INT, 0, -1, 10_001, 10**30])
def test_a_limit_must_be_an_int_in_range(queue: LiteQueue, value: Any) -> None:
    kind = InvalidInput if type(value) is int else WrongType
    assert_refused(lambda: queue.pop_many(value), kind, "limit")
    assert_refused(lambda: queue.dlq(limit=value), kind, "limit")


@pytest.mark.parametrize("value", NO_TEXT)
def test_keys_and_reasons_must_be_text(queue: LiteQueue, value: Any) -> None:
    assert_refused(lambda: queue.put(b"x", key=value), WrongType, "key")
    assert_refused(lambda: queue.nack(peeked_message(queue), error=value), WrongType, "error")
    assert_refused(lambda: queue.redrive(reason_contains=value), WrongType, "reason_contains")


@pytest.mark.parametrize("key", ["", "x" * 513, "\ud800"])
def test_a_key_must_be_short_valid_text(queue: LiteQueue, key: str) -> None:
    assert_refused(lambda: queue.put(b"x", key=key), InvalidInput, "key")


def test_an_oversized_payload_is_refused_with_the_limit(queue: LiteQueue) -> None:
    assert_refused(lambda: queue.put(b"x" * 1_001), PayloadTooLarge, "payload")
    assert_refused(lambda: queue.put_many([b"x", b"x" * 1_001]), PayloadTooLarge, "payload")
    with pytest.raises(PayloadTooLarge, match="the limit is 1000"):
        queue.put(b"x" * 1_001)
    queue.put(b"x" * 1_000, "large")
    assert queue.clear("large") == 1


def test_a_batch_with_too_many_items_is_refused_without_reading_its_source_to_the_end(queue: LiteQueue) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x"

    assert_refused(lambda: queue.put_many([b"x"] * 10_001), BatchTooLarge)
    assert_refused(lambda: queue.put_many(endless()), BatchTooLarge)


def test_a_batch_with_too_many_bytes_is_refused(queue: LiteQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue._broker, "limits", Limits(batch_bytes=5_000))
    assert_refused(lambda: queue.put_many([b"x" * 1_000] * 6), BatchTooLarge)


def test_the_largest_batch_is_accepted(queue: LiteQueue) -> None:
    assert len(set(queue.put_many([b""] * 10_000, "batch"))) == 10_000
    messages = queue.pop_many(10_000, "batch")
    assert queue.ack_many(messages) == []


@pytest.mark.parametrize("message", [None, 1, "id", b"x", {}, object()])
def test_only_messages_can_be_settled(queue: LiteQueue, message: Any) -> None:
    for settle in (queue.ack, queue.nack, queue.extend):
        assert_refused(lambda settle=settle: settle(message), WrongType, "message")
    assert_refused(lambda: queue.ack_many([message]), WrongType, "message")
    assert_refused(lambda: queue.nack_many([message]), WrongType, "message")


@pytest.mark.parametrize("messages", [None, 1])
def test_settling_many_requires_a_list_of_messages(queue: LiteQueue, messages: Any) -> None:
    assert_refused(lambda: queue.ack_many(messages), WrongType, "messages")
    assert_refused(lambda: queue.nack_many(messages), WrongType, "messages")


def test_an_invalid_message_fails_the_whole_settle(queue: LiteQueue) -> None:
    queue.put(b"x", "both")
    message = queue.pop("both")
    assert message is not None
    for settle in (queue.ack_many, queue.nack_many):
        assert_refused(lambda settle=settle: settle([message, None]), WrongType, "message")
    queue.ack(message)


def test_a_peeked_message_cannot_be_settled(queue: LiteQueue) -> None:
    for settle in (queue.ack, queue.nack, queue.extend):
        assert_refused(lambda settle=settle: settle(peeked_message(queue)), InvalidInput, "message")
    with pytest.raises(InvalidInput, match="pop it"):
        queue.ack(peeked_message(queue))


def test_a_message_of_another_file_cannot_be_settled(queue: LiteQueue, tmp_path: Path) -> None:
    with LiteQueue(tmp_path / "other.db") as other:
        for qname in ("default", "only-there"):
            other.put(b"theirs", qname)
            theirs = other.pop(qname)
            assert theirs is not None
            for settle in (queue.ack, queue.nack, queue.extend):
                with pytest.raises(LeaseLost):
                    settle(theirs)
            other.ack(theirs)


def test_a_message_of_a_dropped_queue_cannot_be_settled(queue: LiteQueue) -> None:
    queue.put(b"x", "doomed")
    message = queue.pop("doomed")
    assert message is not None
    queue._broker.drop("doomed", force=True)
    for settle in (queue.ack, queue.nack, queue.extend):
        with pytest.raises(LeaseLost):
            settle(message)
    assert queue.ack_many([message]) == [message]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        *[({"max_retries": value}, "max_retries") for value in (-1, 1_000, True, 1.0, "3")],
        *[({"max_bytes": value}, "max_bytes") for value in (0, -1, True, 1.0, "3", None, 10**10)],
        *[({"busy_ms": value}, "busy_ms") for value in (-1, True, 1.0, "3", None, 10**10)],
        *[({"durability": value}, "durability") for value in ("FULL", "", None, 1, ["full"])],
        *[({"clock": value}, "clock") for value in (None, 1, "now")],
        *[({"journal": value}, "journal") for value in ("yes", 1, 0, [])],
    ],
)
def test_an_invalid_option_is_refused_before_a_file_is_created(
    tmp_path: Path, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        LiteQueue(tmp_path / "never.db", **options)
    assert raised.value.field == field
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, 1, b"bytes.db", ["a"], "", "nul\0.db"])
def test_a_path_must_be_text_that_names_a_file(path: Any) -> None:
    with pytest.raises(InvalidInput) as raised:
        LiteQueue(path)
    assert raised.value.field == "path"


@pytest.mark.parametrize("length", [300, 5_000])
def test_a_name_too_long_for_a_file_cannot_be_opened(tmp_path: Path, length: int) -> None:
    with pytest.raises(CannotOpen, match="file name too long"):
        LiteQueue(tmp_path / ("x" * length))
    assert list(tmp_path.iterdir()) == []


def test_a_closed_queue_raises_store_closed_and_can_be_closed_again(tmp_path: Path) -> None:
    queue = LiteQueue(tmp_path / "closed.db")
    queue.put(b"x")
    message = queue.pop()
    assert message is not None
    queue.close()
    queue.close()
    for call in [*calls_of_every_verb(queue, "default"), lambda: queue.ack(message), lambda: queue.nack(message)]:
        with pytest.raises(StoreClosed, match="open it again"):
            call()
