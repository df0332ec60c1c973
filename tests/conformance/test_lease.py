"""Lease and take: batch sizes, lease times, and when nothing is leased."""

from __future__ import annotations

import pytest

from penstock.core.commands import CatchUp, Lease, Pause, Push, Take
from penstock.core.model import PushItem, State
from penstock.errors import UnknownQueue
from tests.conformance.support import Clock, StoreUnderTest, texts

MANY = 2_500


def push_many(store: StoreUnderTest, **fields: int) -> None:
    store.send(*(PushItem(payload=str(number).encode(), **fields) for number in range(MANY)))


def lease_all(store: StoreUnderTest) -> list[str]:
    """Lease everything as a broker does: repeat while the store reports that there is more to move."""
    outcome = store.try_lease(limit=MANY)
    rounds = 1
    while outcome.more:
        assert outcome.messages == []
        outcome = store.try_lease(limit=MANY)
        rounds += 1
        assert rounds < 10
    assert rounds > 1
    return texts(outcome.messages)


def test_a_lease_returns_at_most_the_limit(store: StoreUnderTest) -> None:
    store.push("a", "b", "c")
    assert texts(store.lease(limit=2)) == ["a", "b"]
    assert texts(store.lease(limit=2)) == ["c"]
    assert store.lease(limit=2) == []


def test_a_leased_message_is_hidden_until_its_lease_expires(store: StoreUnderTest, clock: Clock) -> None:
    store.make(lease_ms=10)
    store.push("a")
    leased = store.lease_one()
    assert leased.leased_until == clock.now + 10
    clock.advance(9)
    assert store.lease() == []
    clock.advance(1)
    assert store.lease_one().attempts == 2


def test_a_lease_may_have_its_own_duration_and_worker(store: StoreUnderTest, clock: Clock) -> None:
    (message_id,) = store.push("a")
    leased = store.lease_one(lease_ms=5, worker="w1")
    stored = store.get("q", message_id)
    assert (stored.worker, stored.leased_at, stored.leased_until) == ("w1", clock.now, clock.now + 5)
    assert leased.leased_until == clock.now + 5


def test_every_lease_has_a_fresh_token(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a")
    tokens = set()
    for _ in range(3):
        tokens.add(store.lease_one(lease_ms=1).token)
        clock.advance(1)
    assert len(tokens) == 3


def test_first_leased_at_is_the_time_of_the_first_delivery(store: StoreUnderTest, clock: Clock) -> None:
    (message_id,) = store.push("a")
    first = clock.now
    store.lease(lease_ms=1)
    clock.advance(1)
    store.lease()
    assert store.get("q", message_id).first_leased_at == first
    assert store.get("q", message_id).leased_at == clock.now


@pytest.mark.parametrize("command", [Lease(queue="none"), Take(queue="none"), CatchUp(queue="none")])
def test_leasing_from_an_unknown_queue_fails(store: StoreUnderTest, command: Lease) -> None:
    with pytest.raises(UnknownQueue):
        store.do(command)


def test_max_in_flight_bounds_concurrent_leases(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_in_flight=2, lease_ms=10)
    store.push("a", "b", "c", "d")
    first, _ = store.lease(limit=10)
    assert store.try_lease().wake_at == clock.now + 10
    store.ack(first)
    assert texts(store.lease(limit=10)) == ["c"]
    clock.advance(10)
    assert len(store.lease(limit=10)) == 2


def test_nothing_is_leased_until_the_newest_message_is_as_old_as_the_window(
    store: StoreUnderTest, clock: Clock
) -> None:
    store.make(window_ms=100)
    store.push("a")
    clock.advance(60)
    store.push("b")
    clock.advance(99)
    outcome = store.try_lease(limit=5)
    assert (outcome.messages, outcome.wake_at) == ([], clock.now + 1)
    assert store.take().messages == []
    clock.advance(1)
    assert texts(store.lease(limit=5)) == ["a", "b"]


@pytest.mark.parametrize("priority", [0, 1])
def test_a_clock_that_is_set_back_does_not_keep_a_window_closed(
    store: StoreUnderTest, clock: Clock, priority: int
) -> None:
    store.make(window_ms=100)
    store.push("before")
    clock.advance(-3_600_000)
    assert texts(store.lease()) == ["before"]
    store.send(PushItem(payload=b"after", priority=priority))
    clock.advance(99)
    assert store.try_lease().wake_at == clock.now + 1
    clock.advance(1)
    assert texts(store.lease()) == ["after"]


def test_a_paused_queue_accepts_pushes_and_leases_nothing(store: StoreUnderTest) -> None:
    store.push("a")
    store.do(Pause(queue="q"))
    store.push("b")
    assert store.lease() == []
    assert store.take().messages == []
    assert store.info().paused
    store.do(Pause(queue="q", paused=False))
    assert store.drain() == ["a", "b"]


def test_leases_of_a_paused_queue_still_expire_and_can_be_settled(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a", "b")
    a, _ = store.lease(limit=2, lease_ms=10)
    store.do(Pause(queue="q"))
    assert store.ack(a) == ["ok"]
    clock.advance(10)
    store.do(CatchUp(queue="q"))
    assert store.counts() == {"ready": 1}


def test_wake_at_is_when_a_delay_ends_or_a_lease_expires(store: StoreUnderTest, clock: Clock) -> None:
    assert store.make() is not None
    assert store.try_lease().wake_at is None
    store.push("late", delay_ms=100)
    assert store.try_lease().wake_at == clock.now + 100
    store.push("now")
    store.lease(lease_ms=40)
    assert store.try_lease().wake_at == clock.now + 40
    assert store.take().wake_at == clock.now + 40
    assert store.sweep().wake_at == clock.now + 40


def test_wake_at_accounts_for_a_shortened_lease(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a")
    store.extend(store.lease_one(lease_ms=1_000), lease_ms=10)
    assert store.try_lease().wake_at == clock.now + 10
    clock.advance(10)
    assert len(store.lease()) == 1


def test_more_due_messages_than_a_step_are_leased_in_order(store: StoreUnderTest, clock: Clock) -> None:
    push_many(store, delay_ms=10)
    clock.advance(10)
    assert lease_all(store) == [str(number) for number in range(MANY)]


def test_more_expired_leases_than_a_step_are_redelivered_in_order(store: StoreUnderTest, clock: Clock) -> None:
    push_many(store)
    store.lease(limit=MANY, lease_ms=10)
    clock.advance(10)
    assert lease_all(store) == [str(number) for number in range(MANY)]


def test_more_expired_messages_than_a_step_are_never_leased(store: StoreUnderTest, clock: Clock) -> None:
    push_many(store, ttl_ms=10)
    push_many(store, ttl_ms=10, delay_ms=10)
    clock.advance(10)
    store.push("fresh")
    assert lease_all(store) == ["fresh"]
    assert store.info().totals.expired == 2 * MANY


def test_a_sweep_moves_a_bounded_step_and_reports_more(store: StoreUnderTest, clock: Clock) -> None:
    push_many(store, delay_ms=10)
    clock.advance(10)
    swept = store.sweep(limit=MANY - 1)
    assert (swept.due, swept.more) == (MANY - 1, True)
    swept = store.sweep(limit=MANY - 1)
    assert (swept.due, swept.more) == (1, False)
    assert store.counts() == {"ready": MANY}


def test_catching_up_makes_peek_exact(store: StoreUnderTest, clock: Clock) -> None:
    store.push("due", delay_ms=10)
    store.push("gone", ttl_ms=10)
    clock.advance(10)
    store.do(CatchUp(queue="q"))
    assert texts(store.pages(State.READY)) == ["due"]


def test_commands_of_one_batch_see_each_other(store: StoreUnderTest) -> None:
    store.make()
    push = Push(queue="q", messages=[PushItem(payload=b"a")])
    _, first, _, both = store.apply([push, Lease(queue="q", limit=5), push, Lease(queue="q", limit=5)])
    assert [len(first.messages), len(both.messages)] == [1, 1]
    assert store.counts() == {"leased": 2}


@pytest.mark.parametrize(("archive_ms", "kept"), [(0, {}), (50, {"archived": 3}), (None, {"archived": 3})])
def test_a_take_finishes_its_messages(store: StoreUnderTest, archive_ms: int | None, kept: dict[str, int]) -> None:
    store.make(archive_ms=archive_ms)
    store.push("a")
    store.push("b", ttl_ms=500)
    store.push("c")
    taken = store.take(limit=5).messages
    assert texts(taken) == ["a", "b", "c"]
    assert {message.token for message in taken} == {""}
    assert store.counts() == kept
    assert (store.info().totals.leased, store.info().totals.acked) == (3, 3)


def test_a_take_skips_leased_messages(store: StoreUnderTest) -> None:
    store.push("a", "b", "c")
    store.lease()
    assert texts(store.take(limit=1).messages) == ["b"]
    assert store.counts() == {"ready": 1, "leased": 1}


def test_a_take_blocked_by_max_in_flight_hides_nothing(store: StoreUnderTest) -> None:
    store.make(max_in_flight=1)
    store.push("a", "b", priority=5)
    (leased,) = store.lease()
    assert store.take().messages == []
    assert store.ack(leased) == ["ok"]
    assert texts(store.take().messages) == ["b"]


def test_archived_messages_are_deleted_after_archive_ms(store: StoreUnderTest, clock: Clock) -> None:
    store.make(archive_ms=100)
    (message_id,) = store.push("a")
    store.ack(store.lease_one())
    done = store.get("q", message_id)
    assert (done.state, done.finished_at, done.attempts, done.leased_at) == ("archived", clock.now, 1, clock.now)
    clock.advance(99)
    assert store.sweep().forgotten == 0
    clock.advance(1)
    assert store.sweep().forgotten == 1
    assert (store.counts(), store.get("q", message_id)) == ({}, None)


def test_an_archive_without_a_limit_is_kept(store: StoreUnderTest, clock: Clock) -> None:
    store.make(archive_ms=None)
    store.push("a")
    store.take()
    clock.advance(10**12)
    store.sweep()
    assert texts(store.pages(State.ARCHIVED)) == ["a"]
