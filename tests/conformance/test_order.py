"""Messages are leased by priority, then by the time they became available, then by id."""

from __future__ import annotations

from penstock.core.model import PushItem, State
from tests.conformance.support import Clock, StoreUnderTest, texts


def test_without_priorities_and_delays_messages_are_fifo(store: StoreUnderTest, clock: Clock) -> None:
    for batch in (["1", "2"], ["3"], ["4", "5", "6"]):
        store.push(*batch)
        clock.advance(1)
    assert texts(store.lease(limit=4)) == ["1", "2", "3", "4"]
    assert store.drain() == ["5", "6"]


def test_higher_priority_comes_first_and_equals_are_fifo(store: StoreUnderTest) -> None:
    for payload, priority in [("0a", 0), ("9a", 9), ("-1", -1), ("9b", 9), ("0b", 0), ("-2", -2)]:
        store.push(payload, priority=priority)
    assert store.drain() == ["9a", "9b", "0a", "0b", "-1", "-2"]


def test_messages_with_and_without_a_ttl_keep_one_order(store: StoreUnderTest, clock: Clock) -> None:
    for number in range(12):
        store.push(str(number), ttl_ms=1_000 if number % 3 == 0 else None)
        clock.advance(number % 2)
    assert texts(store.lease(limit=5)) + texts(store.take(limit=3).messages) + store.drain() == [
        str(number) for number in range(12)
    ]


def test_a_due_message_is_ordered_by_its_due_time(store: StoreUnderTest, clock: Clock) -> None:
    store.push("delayed", delay_ms=10)
    clock.advance(5)
    store.push("earlier")
    clock.advance(5)
    store.push("same time")
    clock.advance(1)
    store.push("later")
    assert store.drain() == ["earlier", "delayed", "same time", "later"]


def test_plain_and_other_messages_share_one_order(store: StoreUnderTest) -> None:
    store.send(
        PushItem(payload=b"a"),
        PushItem(payload=b"b", ttl_ms=1_000),
        PushItem(payload=b"c"),
        PushItem(payload=b"first", priority=1),
    )
    assert texts(store.lease(limit=10)) == ["first", "a", "b", "c"]


def test_a_message_with_an_expired_lease_returns_to_its_place(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a", "b", "c")
    store.lease(limit=2, lease_ms=10)
    clock.advance(10)
    store.push("d")
    assert store.drain() == ["a", "b", "c", "d"]


def test_a_released_message_returns_to_its_place(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a", "b", "c")
    a, b = store.lease(limit=2)
    clock.advance(5)
    store.release(b)
    store.release(a)
    assert store.drain() == ["a", "b", "c"]


def test_a_message_nacked_without_delay_goes_to_the_end(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a", "b")
    a = store.lease_one()
    clock.advance(1)
    store.nack(a, delay_ms=0)
    clock.advance(1)
    store.push("c")
    assert store.drain() == ["b", "a", "c"]


def test_a_nacked_message_keeps_its_priority(store: StoreUnderTest, clock: Clock) -> None:
    store.push("high", priority=1)
    store.push("low")
    store.nack(store.lease_one(), delay_ms=10)
    clock.advance(10)
    assert store.drain() == ["high", "low"]


def test_a_retry_with_an_expired_lease_returns_to_its_place(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a")
    clock.advance(1)
    store.push("b")
    store.nack(store.lease_one(), delay_ms=5)
    clock.advance(5)
    leased = store.lease(limit=2, lease_ms=1)
    assert texts(leased) == ["b", "a"]
    clock.advance(1)
    assert store.drain() == ["b", "a"]


def test_a_clock_that_steps_back_never_reorders_pushes(store: StoreUnderTest, clock: Clock) -> None:
    store.push("1")
    clock.advance(-500)
    store.push("2")
    store.push("3", ttl_ms=10_000)
    clock.advance(-500)
    store.push("4")
    clock.advance(2_000)
    store.push("5")
    assert texts(store.peek("q", state=State.READY, limit=9)[0]) == ["1", "2", "3", "4", "5"]
    assert store.drain() == ["1", "2", "3", "4", "5"]


def test_a_nacked_message_goes_to_the_end_though_the_clock_stepped_back(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=2)
    store.bury("redriven")
    store.push("nacked")
    nacked = store.lease_one()
    clock.advance(10)
    store.push("pushed", "also")
    clock.advance(-5)
    store.nack(nacked, delay_ms=0)
    store.redrive()
    clock.advance(20)
    # All four messages have the same time, so their ids decide the order.
    assert {m.available_at for m in store.pages(State.READY)} == {clock.now - 15}
    assert store.drain() == ["redriven", "nacked", "pushed", "also"]


def test_peek_shows_the_order_of_leases(store: StoreUnderTest, clock: Clock) -> None:
    for number in range(30):
        store.push(str(number), priority=number % 3, ttl_ms=10_000 if number % 2 else None)
        clock.advance(number % 2)
    store.nack(*store.lease(limit=4), delay_ms=0)
    assert texts(store.pages(State.READY, limit=7)) == store.drain()
