"""Ack, nack, extend and release require the current lease."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.commands import Ack, Command, Extend, Nack, Release, Settled, SettledAll, SettleItem
from penstock.core.model import QueueOptions, State, backoff_ms
from penstock.errors import LeaseTokenRequired, UnknownQueue
from tests.conformance.support import Clock, StoreUnderTest, texts

OK, STALE, UNKNOWN = Settled.OK, Settled.STALE, Settled.UNKNOWN
Verb = Callable[..., Command[SettledAll]]
every_verb = pytest.mark.parametrize("verb", [Ack, Nack, Extend, Release])


@every_verb
def test_a_stale_token_changes_nothing(store: StoreUnderTest, clock: Clock, verb: Verb) -> None:
    (message_id,) = store.push("a")
    stale = store.lease_one(lease_ms=10)
    clock.advance(10)
    store.lease_one(worker="next")
    before = store.get("q", message_id)
    assert store.settle(verb, [stale]).results == [STALE]
    assert store.get("q", message_id) == before


@every_verb
@pytest.mark.parametrize("many", [False, True])
def test_a_queue_may_require_the_token(store: StoreUnderTest, verb: Verb, many: bool) -> None:
    store.make(require_lease_token=True)
    (message_id,) = store.push("a")
    leased = store.lease_one()
    before = store.get("q", message_id)
    items = [SettleItem(leased.id, None)]
    with pytest.raises(LeaseTokenRequired):
        store.do(verb(queue="q", items=[SettleItem(leased.id, leased.token), *items] if many else items))
    assert store.get("q", message_id) == before
    assert store.settle(verb, [leased]).results == [OK]


@every_verb
def test_a_lease_expires_on_time_even_if_nobody_leased_again(store: StoreUnderTest, clock: Clock, verb: Verb) -> None:
    store.push("a", "b")
    a, b = store.lease(limit=2, lease_ms=10)
    clock.advance(9)
    assert store.settle(verb, [a]).results == [OK]
    clock.advance(1)
    assert store.settle(verb, [b]).results == [STALE]


@every_verb
@pytest.mark.parametrize("token", ["", "zz", "00", "0" * 32, "é"])
def test_an_invalid_token_is_stale(store: StoreUnderTest, verb: Verb, token: str) -> None:
    (message_id,) = store.push("a")
    store.lease()
    outcome = store.do(verb(queue="q", items=[SettleItem(message_id, token)]))
    assert outcome.results == [STALE]
    assert store.counts() == {"leased": 1}


@every_verb
def test_without_a_token_the_current_lease_is_settled(store: StoreUnderTest, clock: Clock, verb: Verb) -> None:
    leased_id, ready_id = store.push("a", "b")
    store.lease(lease_ms=10)
    items = [SettleItem(leased_id, None), SettleItem(ready_id, None), SettleItem(99, None)]
    assert store.do(verb(queue="q", items=items)).results == [OK, STALE, UNKNOWN]


@every_verb
@pytest.mark.parametrize("message_id", [0, -1, 99, 1 << 44, (1 << 44) + 1, (1 << 45) + 1, 2**80])
def test_a_message_that_never_existed_is_unknown(store: StoreUnderTest, verb: Verb, message_id: int) -> None:
    store.push("a", priority=1)
    store.lease()
    item = SettleItem(message_id, None)
    assert store.do(verb(queue="q", items=[item])).results == [UNKNOWN]
    other, another = SettleItem(message_id, "f" * 32), SettleItem(message_id + 1_000, "f" * 32)
    assert store.do(verb(queue="q", items=[other, another])).results == [UNKNOWN, UNKNOWN]
    assert store.counts() == {"leased": 1}


@every_verb
def test_a_message_is_settled_in_its_own_queue_only(store: StoreUnderTest, verb: Verb) -> None:
    store.push("a")
    store.make("other")
    leased = store.lease_one()
    assert store.do(verb(queue="other", items=[SettleItem(leased.id, leased.token)])).results == [UNKNOWN]
    assert store.do(verb(queue="other", items=[SettleItem(leased.id, None)])).results == [UNKNOWN]
    assert store.counts() == {"leased": 1}
    with pytest.raises(UnknownQueue):
        store.do(verb(queue="none", items=[]))


@every_verb
def test_one_batch_may_mix_tokens_of_many_leases(store: StoreUnderTest, clock: Clock, verb: Verb) -> None:
    store.push("stale", "a", "b", "c", "d")
    stale = store.lease_one(lease_ms=1)
    clock.advance(1)
    a, b = store.lease(limit=2)[0], store.lease(limit=2)
    good = [a, *b]
    wrong = SettleItem(store.lease_one().id, a.token)
    items = [
        SettleItem(stale.id, stale.token),
        *(SettleItem(m.id, m.token) for m in good),
        wrong,
        SettleItem(99, a.token),
    ]
    outcome = store.do(verb(queue="q", items=items))
    assert outcome.results == [STALE, OK, OK, OK, STALE, UNKNOWN]


@every_verb
def test_a_message_twice_in_one_batch_is_settled_once(store: StoreUnderTest, verb: Verb) -> None:
    store.push("a", "b")
    a, b = store.lease(limit=2)
    assert store.settle(verb, [a, b, a]).results == [OK, OK, OK]
    assert sum(store.counts().values()) == (0 if verb is Ack else 2)


@pytest.mark.parametrize(("verb", "others"), [(Ack, UNKNOWN), (Nack, STALE), (Release, STALE), (Extend, OK)])
def test_a_repeated_message_is_settled_by_the_first_valid_token(
    store: StoreUnderTest, verb: Verb, others: Settled
) -> None:
    store.push("a", "b")
    a, b = store.lease(limit=2)
    wrong, right, any_token = (SettleItem(a.id, token) for token in ("f" * 32, a.token, None))
    items = [wrong, right, SettleItem(b.id, b.token), right, *[any_token] * 500]
    results = store.do(verb(queue="q", items=items)).results
    assert results[:4] == [STALE, OK, OK, OK]
    assert set(results[4:]) == {others}


def test_an_acked_message_is_gone_and_unknown(store: StoreUnderTest) -> None:
    (message_id,) = store.push("a")
    leased = store.lease_one()
    assert store.ack(leased) == [OK]
    assert store.do(Ack(queue="q", items=[SettleItem(leased.id, "f" * 32)])).results == [UNKNOWN]
    assert (store.get("q", message_id), store.counts()) == (None, {})


def test_an_archived_message_is_unknown_to_its_consumer(store: StoreUnderTest) -> None:
    store.make(archive_ms=None)
    store.push("a")
    leased = store.lease_one()
    assert store.ack(leased) == [OK]
    assert store.do(Ack(queue="q", items=[SettleItem(leased.id, "f" * 32)])).results == [UNKNOWN]
    assert store.counts() == {"archived": 1}


def test_an_ack_of_many_leaves_the_rest_alone(store: StoreUnderTest) -> None:
    store.push(*"abcdef")
    leased = store.lease(limit=6)
    assert store.ack(*leased[::2]) == [OK] * 3
    assert texts(store.pages(State.LEASED)) == ["b", "d", "f"]
    assert store.ack(*leased[1:4:2]) == [OK] * 2
    assert texts(store.pages(State.LEASED)) == ["f"]


def test_a_nacked_message_waits_for_its_backoff(store: StoreUnderTest, clock: Clock) -> None:
    options = store.make(backoff_ms=100, backoff_max_ms=350, max_attempts=9).options
    (message_id,) = store.push("a")
    waits = []
    for attempt in (1, 2, 3, 4):
        outcome = store.nack(store.lease_one())
        assert outcome.states == [State.SCHEDULED]
        waits.append(store.get("q", message_id).available_at - clock.now)
        assert waits[-1] == backoff_ms(options, message_id, attempt)
        clock.advance(waits[-1] - 1)
        assert store.lease() == []
        clock.advance(1)
    assert 100 <= waits[0] <= 125
    assert 200 <= waits[1] <= 250
    assert waits[2:] == [350, 350]


def test_a_fixed_backoff_does_not_grow(store: StoreUnderTest, clock: Clock) -> None:
    store.make(backoff="fixed", backoff_ms=70)
    (message_id,) = store.push("a")
    for _ in range(3):
        store.nack(store.lease_one())
        assert store.get("q", message_id).available_at == clock.now + 70
        clock.advance(70)


def test_backoff_never_overflows() -> None:
    options = QueueOptions(max_attempts=1_000, backoff_max_ms=5_000)
    assert {backoff_ms(options, 1, attempts) for attempts in (13, 40, 41, 1_000)} == {5_000}


def test_a_nack_may_set_its_own_delay(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a")
    assert store.nack(store.lease_one(), delay_ms=7).states == [State.SCHEDULED]
    clock.advance(7)
    assert store.nack(store.lease_one(), delay_ms=0).states == [State.READY]
    assert store.lease_one().attempts == 3


def test_errors_are_kept_newest_first_with_their_attempt(store: StoreUnderTest, clock: Clock) -> None:
    (message_id,) = store.push("a")
    store.nack(store.lease_one(), delay_ms=0, error="first")
    clock.advance(1)
    store.lease(lease_ms=5)
    clock.advance(5)
    store.nack(store.lease_one(), delay_ms=0, error="third")
    failures = store.get("q", message_id).errors
    assert [(f.attempt, f.error) for f in failures] == [(3, "third"), (2, "the lease expired"), (1, "first")]


def test_only_the_newest_errors_are_kept(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=100)
    (message_id,) = store.push("a")
    for attempt in range(1, 31):
        store.nack(store.lease_one(), delay_ms=0, error=str(attempt))
        clock.advance(1)
    assert [f.attempt for f in store.get("q", message_id).errors] == list(range(30, 10, -1))


def test_an_extended_lease_lasts_from_now(store: StoreUnderTest, clock: Clock) -> None:
    store.make(lease_ms=100)
    store.push("a")
    leased = store.lease_one()
    clock.advance(60)
    assert store.extend(leased).leased_until == clock.now + 100
    clock.advance(99)
    assert store.extend(leased, lease_ms=10).leased_until == clock.now + 10
    clock.advance(9)
    assert store.lease() == []
    assert store.ack(leased) == [OK]


def test_a_lease_extended_to_the_same_time_can_be_settled(shared: StoreUnderTest) -> None:
    shared.push("a", "b", "c")
    leased = shared.lease(limit=3, lease_ms=10)
    shared.extend(*leased, lease_ms=10)
    assert shared.ack(*leased[:2]) == [OK, OK]
    assert shared.nack(leased[2], delay_ms=0).results == [OK]
    shared.check()


def test_a_lease_extended_and_shortened_is_settled_with_its_first_token(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a", "b", "c")
    a, b, c = store.lease(limit=3, lease_ms=50)
    store.extend(a, b, lease_ms=100)
    store.extend(b, lease_ms=20)
    clock.advance(20)
    assert store.ack(a, b, c) == [OK, STALE, OK]
    assert texts(store.lease(limit=9)) == ["b"]


def test_a_release_does_not_count_as_an_attempt(store: StoreUnderTest) -> None:
    store.make(max_attempts=1)
    (message_id,) = store.push("a")
    for _ in range(3):
        leased = store.lease_one()
        assert leased.attempts == 1
        assert store.release(leased) == [OK]
    message = store.get("q", message_id)
    assert (message.state, message.attempts, message.first_leased_at) == (State.READY, 0, None)
    assert store.ack(leased) == [STALE]


def test_a_ttl_that_ends_during_a_lease_applies_after_it(store: StoreUnderTest, clock: Clock) -> None:
    store.push("acked", "nacked", "released", "lapsed", ttl_ms=10)
    acked, nacked, released, _ = store.lease(limit=4, lease_ms=30)
    clock.advance(20)
    assert store.ack(acked) == [OK]
    store.nack(nacked, delay_ms=100)
    store.release(released)
    clock.advance(10)
    assert store.lease(limit=9) == []
    assert store.counts() == {}
    assert store.info().totals.expired == 3


def test_settling_nothing_succeeds(store: StoreUnderTest) -> None:
    store.make()
    for verb in (Ack, Nack, Extend, Release):
        assert store.do(verb(queue="q", items=[])).results == []


def test_an_ack_is_journalled_with_its_own_lease_after_an_earlier_one_expired(
    store: StoreUnderTest, clock: Clock
) -> None:
    """The fixture replays the journal after the test and matches each settlement with its lease."""
    store.push("a", "b")
    store.lease(limit=2, lease_ms=10)
    clock.advance(10)
    again = store.lease(limit=2)
    clock.advance(1)
    assert store.ack(*again) == [OK, OK]


def test_a_backoff_of_zero_does_not_grow(store: StoreUnderTest) -> None:
    store.make(backoff_ms=0, max_attempts=100)
    store.push("a")
    for _ in range(60):
        store.nack(*store.lease())
    assert len(store.lease()) == 1
