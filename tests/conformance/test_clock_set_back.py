"""When the clock is set back, earlier leases expire at once, except after a small step."""

from __future__ import annotations

import pytest

from penstock.core.commands import Ack, Extend, Lease, Settled, SettleItem
from penstock.core.model import State
from tests.conformance.support import Clock, StoreUnderTest, texts

HOUR_MS = 3_600_000
LEASE_MS = 30_000
# A step back that does not expire leases.
SMALL_MS = 4_000


@pytest.mark.parametrize("jump_ms", [10_000 + LEASE_MS, HOUR_MS, 365 * 24 * HOUR_MS])
@pytest.mark.parametrize("priority", [0, 3])
def test_a_lease_expires_when_the_clock_is_set_back(
    store: StoreUnderTest, clock: Clock, jump_ms: int, priority: int
) -> None:
    store.push("a", priority=priority)
    first = store.lease_one()
    clock.set(clock.now - jump_ms)
    second = store.lease_one()
    assert (second.id, second.attempts) == (first.id, 2)
    assert store.ack(first) == [Settled.STALE]
    assert store.ack(second) == [Settled.OK]
    assert store.counts() == {}


def test_an_extended_lease_expires_when_the_clock_is_set_back(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a")
    first = store.lease_one()
    for _ in range(4):
        clock.advance(LEASE_MS - 1)
        assert store.settle(Extend, [first]).results == [Settled.OK]
    clock.set(clock.now - 3 * LEASE_MS)
    assert store.lease_one().id == first.id


@pytest.mark.parametrize("step_ms", [1, 12, 999, SMALL_MS])
def test_a_small_step_back_expires_no_lease(store: StoreUnderTest, clock: Clock, step_ms: int) -> None:
    store.push("a", "b")
    first, second = store.lease(limit=2)
    assert store.settle(Extend, [second]).results == [Settled.OK]
    clock.set(clock.now - step_ms)
    assert store.lease(limit=2) == []
    assert store.sweep().lapsed == 0
    assert store.ack(first, second) == [Settled.OK, Settled.OK]


def test_a_long_lease_survives_if_it_began_before_the_new_time(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a")
    held = store.lease_one(lease_ms=12 * HOUR_MS)
    clock.advance(2 * HOUR_MS)
    clock.set(clock.now - HOUR_MS)
    assert store.lease() == []
    clock.advance(1_000)
    assert store.lease() == []
    assert store.ack(held) == [Settled.OK]


def test_a_consumer_may_still_ack_until_the_message_is_leased_again(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a")
    held = store.lease_one()
    clock.set(clock.now - HOUR_MS)
    assert store.ack(held) == [Settled.OK]


def test_an_extension_after_a_step_back_starts_at_the_new_time(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a")
    held = store.lease_one()
    clock.set(clock.now - HOUR_MS)
    assert store.settle(Extend, [held]).results == [Settled.OK]
    assert store.lease() == []
    clock.advance(LEASE_MS)
    assert store.lease_one().id == held.id


def test_leased_dead_letters_are_dead_again_after_a_step_back(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=1)
    store.push("a")
    store.nack(store.lease_one())
    store.lease(queue="q.dlq")
    clock.set(clock.now - HOUR_MS)
    assert store.sweep().lapsed == 1
    assert store.counts() == {"dead": 1}


def test_all_earlier_leases_are_found_in_bounded_steps(store: StoreUnderTest, clock: Clock) -> None:
    count = 450
    store.push(*map(str, range(count)))
    assert len(store.lease(limit=count)) == count
    clock.set(clock.now - HOUR_MS)
    steps = 0
    while (swept := store.sweep()).more:
        assert swept.lapsed <= 200
        steps += 1
    assert 1 <= steps <= 3
    assert store.counts() == {"ready": count}


def test_long_leases_hide_an_earlier_one_only_briefly(store: StoreUnderTest, clock: Clock) -> None:
    store.push(*map(str, range(301)))
    long = store.lease(limit=300, lease_ms=12 * HOUR_MS)
    clock.advance(2 * HOUR_MS)
    hidden = store.lease_one(lease_ms=11 * HOUR_MS)
    clock.set(clock.now - HOUR_MS)
    for _ in range(4):
        if found := store.lease():
            break
        clock.advance(1_000)
    assert [message.id for message in found] == [hidden.id]
    assert store.counts() == {"leased": 301}
    assert set(store.do(Ack(queue="q", items=[SettleItem(m.id, m.token) for m in long])).results) == {Settled.OK}


@pytest.mark.parametrize("limit", [1, 2])
def test_the_cost_of_a_lease_does_not_grow_with_long_leases(on_file: StoreUnderTest, clock: Clock, limit: int) -> None:
    work: list[int] = []
    for count in (400, 4_000):
        on_file.push(*map(str, range(count)))
        while on_file.lease(limit=limit, lease_ms=12 * HOUR_MS):
            clock.advance(1_000)
        steps = 0

        def count_step() -> int:
            nonlocal steps
            steps += 1
            return 0

        on_file.store._writer.set_progress_handler(count_step, 1)  # type: ignore[attr-defined]
        clock.advance(1_000)
        assert on_file.do(Lease(queue="q")).messages == []
        on_file.store._writer.set_progress_handler(None, 0)  # type: ignore[attr-defined]
        work.append(steps)
    assert work[1] < 1.2 * work[0]


def test_an_expired_message_of_a_busy_queue_is_redelivered(store: StoreUnderTest, clock: Clock) -> None:
    store.push("stuck")
    stuck = store.lease_one()
    clock.set(clock.now - HOUR_MS)
    store.push("a", "b")
    found = texts(store.lease(limit=3))
    assert sorted(found) == ["a", "b", "stuck"]
    assert store.get("q", stuck.id).state is State.LEASED
