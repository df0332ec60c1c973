"""A batch lease acts as many single leases: each message is settled alone, in any order, and expires on its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest

from penstock.core.commands import (
    Ack,
    Command,
    Drop,
    Extend,
    Lease,
    Nack,
    Purge,
    Push,
    Release,
    Remove,
    Settled,
    SettledAll,
    SettleItem,
    Transact,
)
from penstock.core.model import Delivery, PushItem, State
from penstock.errors import LeaseLost, UnknownMessage, UnknownQueue
from penstock.store.interface import Store
from tests.conformance.support import Clock, StoreUnderTest, ids, push_command, texts

OK, STALE, UNKNOWN = Settled.OK, Settled.STALE, Settled.UNKNOWN
COUNT = 6
LEASE_MS = 1_000
PARTS = [[0], [5], [2], [0, 1], [4, 5], [2, 3], [0, 5], [1, 3, 5], [0, 2, 4], [5, 4, 0], list(range(COUNT))]
Verb = Callable[..., Command[SettledAll]]
parts = pytest.mark.parametrize("part", PARTS, ids=str)


@pytest.fixture(params=["one after the other", "with gaps"])
def batch(request: pytest.FixtureRequest, store: StoreUnderTest) -> list[Delivery]:
    """A leased batch. With gaps, ids in between belong to another queue and to a delayed message."""
    for number in range(COUNT):
        store.push(str(number))
        if request.param == "with gaps":
            store.push("elsewhere", queue="other")
            if number == 3:
                store.push("later", delay_ms=10 * LEASE_MS)
    leased = store.lease(limit=COUNT, lease_ms=LEASE_MS, worker="w")
    assert texts(leased) == [str(number) for number in range(COUNT)]
    return leased


def split_batch(batch: Sequence[Delivery], part: Sequence[int]) -> tuple[list[Delivery], list[Delivery]]:
    """Return the messages at these positions, and all others."""
    return [batch[number] for number in part], [each for number, each in enumerate(batch) if number not in part]


@parts
@pytest.mark.parametrize("archive_ms", [0, None])
def test_part_of_a_batch_is_acked(
    store: StoreUnderTest, batch: list[Delivery], part: list[int], archive_ms: int | None
) -> None:
    store.make(archive_ms=archive_ms)
    acked, others = split_batch(batch, part)
    assert store.ack(*acked) == [OK] * len(acked)
    assert sorted(ids(store.pages(State.LEASED))) == ids(others)
    assert sorted(ids(store.pages(State.ARCHIVED))) == (sorted(ids(acked)) if archive_ms is None else [])
    assert store.info().leased == len(others)
    if others:
        assert store.ack(*others) == [OK] * len(others)
    assert store.info().totals.acked == COUNT
    assert store.lease(limit=COUNT) == []


@parts
def test_acking_the_same_part_again_succeeds_without_effect(
    store: StoreUnderTest, batch: list[Delivery], part: list[int]
) -> None:
    acked, _ = split_batch(batch, part)
    for _ in range(2):
        assert store.ack(*acked) == [OK] * len(acked)
    assert store.info().totals.acked == len(acked)
    assert store.ack(*batch) == [OK] * COUNT
    assert store.ack(*batch) == [OK] * COUNT
    assert (store.info().totals.acked, store.info().leased) == (COUNT, 0)


@parts
def test_a_nacked_part_is_redelivered_and_the_rest_stays_leased(
    store: StoreUnderTest, batch: list[Delivery], part: list[int]
) -> None:
    nacked, others = split_batch(batch, part)
    outcome = store.nack(*nacked, delay_ms=0, error="broken")
    assert outcome.states == [State.READY] * len(nacked)
    again = store.lease(limit=COUNT)
    assert sorted(ids(again)) == sorted(ids(nacked))
    assert {each.attempts for each in again} == {2}
    assert sorted(ids(store.pages(State.LEASED))) == ids(batch)
    assert store.ack(*nacked) == [STALE] * len(nacked)
    if others:
        assert store.ack(*others) == [OK] * len(others)
    assert store.ack(*again) == [OK] * len(again)


@parts
def test_a_released_part_keeps_its_order_and_attempts(
    store: StoreUnderTest, batch: list[Delivery], part: list[int]
) -> None:
    released, others = split_batch(batch, part)
    assert store.release(*released) == [OK] * len(released)
    again = store.lease(limit=COUNT)
    assert ids(again) == sorted(ids(released))
    assert {each.attempts for each in again} == {1}
    assert store.ack(*again, *others) == [OK] * COUNT


@parts
def test_an_extended_part_outlives_the_rest(
    store: StoreUnderTest, clock: Clock, batch: list[Delivery], part: list[int]
) -> None:
    extended, others = split_batch(batch, part)
    assert store.extend(*extended, lease_ms=5 * LEASE_MS).results == [OK] * len(extended)
    assert {each.leased_until for each in store.pages(State.LEASED) if each.id in ids(extended)} == {
        clock.now + 5 * LEASE_MS
    }
    clock.advance(LEASE_MS)
    again = store.lease(limit=COUNT)
    assert ids(again) == ids(others)
    assert store.ack(*extended) == [OK] * len(extended)
    if others:
        assert store.ack(*others) == [STALE] * len(others)


@parts
def test_removing_a_message_leaves_the_rest_of_its_batch(
    store: StoreUnderTest, clock: Clock, batch: list[Delivery], part: list[int]
) -> None:
    removed, others = split_batch(batch, part)
    assert store.do(Remove(queue="q", ids=ids(removed))).removed == len(removed)
    assert store.ack(*removed) == [UNKNOWN] * len(removed)
    assert sorted(ids(store.pages(State.LEASED))) == ids(others)
    clock.advance(LEASE_MS)
    assert ids(store.lease(limit=COUNT)) == ids(others)


@parts
def test_the_unsettled_rest_of_a_batch_expires(
    store: StoreUnderTest, clock: Clock, batch: list[Delivery], part: list[int]
) -> None:
    acked, others = split_batch(batch, part)
    store.ack(*acked)
    clock.advance(LEASE_MS)
    again = store.lease(limit=COUNT)
    assert ids(again) == ids(others)
    assert [each.attempts for each in again] == [2] * len(others)
    assert store.info().totals.lapsed == len(others)
    for each in others:
        assert store.ack(each) == [STALE]


def test_each_message_of_a_batch_is_acked_alone_in_any_order(store: StoreUnderTest, batch: list[Delivery]) -> None:
    for number in (3, 0, 5, 1, 4, 2):
        assert store.ack(batch[number]) == [OK]
    assert store.counts() in ({}, {"scheduled": 1})
    assert [store.ack(each) for each in batch] == [[OK]] * COUNT


def test_a_batch_is_acked_piece_by_piece_from_its_start(store: StoreUnderTest, batch: list[Delivery]) -> None:
    for piece in (batch[:2], batch[2:4]):
        assert store.ack(*piece) == [OK] * 2
        assert store.ack(*piece) == [OK] * 2
    assert store.info().leased == 2
    assert store.ack(batch[4]) == [OK]
    assert store.ack(batch[3], batch[5]) == [OK, OK]
    assert store.info().leased == 0


def test_the_rest_after_a_partly_acked_batch_expires(
    store: StoreUnderTest, batch: list[Delivery], clock: Clock
) -> None:
    store.ack(*batch[:2])
    clock.advance(LEASE_MS)
    assert store.ack(*batch[2:4]) == [STALE, STALE]
    assert texts(store.lease(limit=COUNT)) == ["2", "3", "4", "5"]


@pytest.mark.parametrize("number", [0, 99, 100, 120, 249])
def test_one_message_of_a_large_batch_is_nacked_and_the_others_stay_leased(store: StoreUnderTest, number: int) -> None:
    store.push(*map(str, range(250)))
    leased = store.lease(limit=250)
    one = leased.pop(number)
    store.nack(one, delay_ms=0)
    assert ids(store.lease(limit=250)) == [one.id]
    assert store.ack(*leased[100:]) == [OK] * 149
    assert [store.ack(each) for each in leased[:100]] == [[OK]] * 100
    assert store.info().leased == 1


def test_a_message_of_a_batch_is_settled_without_its_token(store: StoreUnderTest, batch: list[Delivery]) -> None:
    for verb, number in ((Ack, 2), (Nack, 3), (Release, 4), (Extend, 1)):
        outcome = store.do(verb(queue="q", items=[SettleItem(batch[number].id, None)]))
        assert outcome.results == [OK]
    assert sorted(ids(store.pages(State.LEASED))) == [batch[0].id, batch[1].id, batch[5].id]


def test_an_id_between_the_ids_of_a_batch_is_not_acked(store: StoreUnderTest) -> None:
    store.push("a")
    (elsewhere,) = store.push("elsewhere", queue="other")
    (urgent,) = store.push("urgent", delay_ms=LEASE_MS)
    store.push("b")
    batch = store.lease(limit=2)
    assert texts(batch) == ["a", "b"]
    token = batch[0].token
    items = [SettleItem(message_id, token) for message_id in (batch[0].id, elsewhere, urgent, batch[1].id)]
    for verb in (Nack, Extend, Release):
        assert store.do(verb(queue="q", items=items[1:3])).results == [UNKNOWN, STALE]
    assert store.do(Ack(queue="q", items=items)).results == [OK, UNKNOWN, STALE, OK]
    assert store.do(Ack(queue="q", items=items)).results == [OK, UNKNOWN, STALE, OK]
    assert (store.state(urgent), store.state(elsewhere, "other")) == (State.SCHEDULED, State.READY)


def test_a_batch_is_not_acked_by_the_token_of_another(store: StoreUnderTest) -> None:
    store.push(*"abcd")
    first, second = store.lease(limit=2), store.lease(limit=2)
    items = [SettleItem(each.id, second[0].token) for each in first]
    assert store.do(Ack(queue="q", items=items)).results == [STALE, STALE]
    assert store.ack(*first, *second) == [OK] * 4


def test_a_batch_with_an_id_twice_is_acked_once(store: StoreUnderTest, batch: list[Delivery]) -> None:
    assert store.ack(*batch[:3], batch[1]) == [OK] * 4
    assert store.info().totals.acked == 3


def test_batches_of_one_commit_have_their_own_leases(store: StoreUnderTest) -> None:
    store.push(*"abcdefg")
    leased = store.store.apply([Lease(queue="q", limit=limit) for limit in (3, 1, 2, 5)])
    batches = [each.messages for each in leased]
    assert [texts(each) for each in batches] == [["a", "b", "c"], ["d"], ["e", "f"], ["g"]]
    acks = [Ack(queue="q", items=[SettleItem(each.id, each.token) for each in batch]) for batch in batches]
    assert [outcome.results for outcome in store.store.apply(acks)] == [[OK] * len(batch) for batch in batches]
    assert store.counts() == {}


def test_a_batch_may_include_a_message_that_was_leased_before(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a")
    store.release(store.lease_one())
    store.push("b", "c")
    store.push("urgent", priority=1)
    batch = store.lease(limit=9, lease_ms=LEASE_MS)
    assert texts(batch) == ["urgent", "a", "b", "c"]
    assert store.ack(batch[0], batch[2]) == [OK, OK]
    clock.advance(LEASE_MS)
    assert texts(store.lease(limit=9)) == ["a", "c"]


@pytest.mark.parametrize("verb", [Ack, Nack, Release, Extend])
def test_another_process_settles_part_of_a_batch(shared: StoreUnderTest, verb: Verb) -> None:
    shared.push(*"abcdef")
    batch = shared.lease(limit=6)
    with closing(shared.open_another()) as other:
        assert settle(other, verb, batch[2:4]) == [OK, OK]
        expected = {Ack: OK, Nack: STALE, Release: STALE, Extend: OK}[verb]
        assert shared.ack(*batch) == [OK, OK, expected, expected, OK, OK]
        assert settle(other, Ack, batch[:2]) == [OK, OK]


def settle(store: Store, verb: Verb, batch: Sequence[Delivery]) -> Any:
    (outcome,) = store.apply([verb(queue="q", items=[SettleItem(each.id, each.token) for each in batch])])
    return outcome.results


def test_a_batch_is_acked_after_its_process_was_killed(shared: StoreUnderTest) -> None:
    shared.push(*"abcdef")
    batch = shared.lease(limit=6, worker="w")
    # Abandon the store without closing it, and let another one open what it wrote.
    shared.store = shared.open_another()
    assert {each.worker for each in shared.pages(State.LEASED)} == {"w"}
    assert shared.ack(*batch[:3]) == [OK] * 3
    shared.store = shared.open_another()
    assert shared.ack(*batch) == [OK] * 6


def test_a_rolled_back_transaction_leaves_the_batch_unchanged(store: StoreUnderTest, clock: Clock) -> None:
    store.push(*"abcd")
    batch = store.lease(limit=4, lease_ms=LEASE_MS)
    stale = SettleItem(batch[0].id, "00" * 16)
    acks = [Ack(queue="q", items=[SettleItem(each.id, each.token) for each in batch[:2]])]
    for part in (acks, [Ack(queue="q", items=[SettleItem(each.id, each.token) for each in batch])]):
        with pytest.raises((LeaseLost, UnknownMessage)):
            store.do(Transact(commands=[*part, Nack(queue="q", items=[SettleItem(batch[3].id, "00" * 16)])]))
        assert store.info().leased == 4
    assert store.do(Ack(queue="q", items=[stale])).results == [STALE]
    assert store.ack(*batch) == [OK] * 4


@pytest.mark.parametrize("verb", [Ack, Nack])
def test_a_rolled_back_single_settle_leaves_the_batch_unchanged(store: StoreUnderTest, verb: Any) -> None:
    store.push(*"abcde")
    batch = store.lease(limit=5)
    first, second, *rest = (SettleItem(each.id, each.token) for each in batch)
    with pytest.raises(UnknownQueue):
        store.do(
            Transact(
                commands=[verb(queue="q", items=[first]), Push(queue="missing", messages=[PushItem(payload=b"x")])]
            )
        )
    assert store.do(Ack(queue="q", items=[first])).results == [OK]
    assert store.do(Transact(commands=[Ack(queue="q", items=[second])])).outcomes[0].results == [OK]
    for item in rest:
        assert store.do(Ack(queue="q", items=[item])).results == [OK]


def test_a_rolled_back_lease_leaves_nothing_behind(store: StoreUnderTest) -> None:
    store.push(*"abcde")
    with pytest.raises((UnknownMessage, LeaseLost)):
        store.do(Transact(commands=[Lease(queue="q", limit=1), Ack(queue="q", items=[SettleItem(1 << 40, "00" * 16)])]))
    batch = store.lease(limit=5)
    assert [store.ack(each) for each in batch] == [[OK]] * 5


def test_a_lease_that_expired_in_a_rolled_back_transaction_expires_again(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a", queue="ns/t/q")
    store.do(Lease(queue="ns/t/q", lease_ms=LEASE_MS))
    clock.advance(LEASE_MS + 100)
    with pytest.raises((UnknownMessage, LeaseLost)):
        store.do(
            Transact(
                commands=[
                    Lease(scope="ns"),
                    Ack(queue="ns/t/q", items=[SettleItem(1 << 40, "00" * 16)]),
                ]
            )
        )
    assert texts(store.do(Lease(scope="ns")).messages) == ["a"]


def test_a_purge_removes_leased_messages_in_steps(store: StoreUnderTest) -> None:
    store.push(*map(str, range(30)))
    store.lease(limit=25)
    (up_to,) = store.push("newer")
    store.lease(limit=9)
    removed, steps = 0, 0
    while True:
        outcome = store.do(Purge(queue="q", states=[State.LEASED], up_to_id=up_to - 1, limit=7))
        assert outcome.removed <= 7
        removed += outcome.removed
        steps += 1
        if not outcome.more:
            break
    assert (removed, steps) == (30, 5)
    assert ids(store.pages(State.LEASED)) == [up_to]


def test_a_purge_up_to_an_id_keeps_leases_of_newer_messages(store: StoreUnderTest) -> None:
    store.push(*map(str, range(10)))
    store.lease(limit=5, lease_ms=60_000)
    first, *_ = store.lease(limit=5, lease_ms=10_000)
    store.ack(first)
    outcome = store.do(Purge(queue="q", states=[State.LEASED], up_to_id=first.id, limit=4))
    assert (outcome.removed, outcome.more) == (4, True)
    outcome = store.do(Purge(queue="q", states=[State.LEASED], up_to_id=first.id, limit=4))
    assert (outcome.removed, outcome.more) == (1, False)
    assert store.info().leased == 4


def test_a_large_batch_expires_in_steps(store: StoreUnderTest, clock: Clock) -> None:
    count = 2_500
    store.push(*map(str, range(count)))
    assert len(store.lease(limit=count, lease_ms=LEASE_MS)) == count
    clock.advance(LEASE_MS)
    steps = []
    while (swept := store.sweep(limit=1_000)).lapsed:
        steps.append((swept.lapsed, swept.more))
    assert steps == [(1_000, True), (1_000, True), (500, False)]
    assert texts(store.lease(limit=count)) == [str(number) for number in range(count)]


def test_every_message_of_a_batch_is_listed_page_by_page(store: StoreUnderTest) -> None:
    for _ in range(4):
        store.push(*"abcde")
        store.push("elsewhere", queue="other")
        store.lease(limit=4)
    store.lease(limit=2)
    everything = ids(store.pages(State.LEASED, limit=100))
    assert len(everything) == 18
    for limit in (1, 3, 18):
        assert ids(store.pages(State.LEASED, limit=limit)) == everything
    assert sorted(ids(store.export("q"))) == sorted([*everything, *ids(store.pages(State.READY))])
    for each in everything:
        found = store.get("q", each)
        assert found is not None
        assert (found.state, found.attempts) == (State.LEASED, 1)


def test_a_message_with_an_id_within_a_batch_has_its_own_lease(store: StoreUnderTest) -> None:
    store.push("a")
    (urgent,) = store.push("urgent", priority=1)
    store.push("b")
    assert store.lease_one(worker="first", lease_ms=LEASE_MS).id == urgent
    assert texts(store.lease(limit=2, worker="second")) == ["a", "b"]
    assert store.get("q", urgent).worker == "first"
    assert {each.payload: each.worker for each in store.pages(State.LEASED)} == {
        b"urgent": "first",
        b"a": "second",
        b"b": "second",
    }


def test_a_batch_counts_against_max_in_flight(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_in_flight=4)
    store.push(*"abcdefgh")
    batch = store.lease(limit=9, lease_ms=LEASE_MS)
    assert texts(batch) == ["a", "b", "c", "d"]
    assert store.lease(limit=9) == []
    store.ack(batch[1])
    assert texts(store.lease(limit=9, lease_ms=5 * LEASE_MS)) == ["e"]
    clock.advance(LEASE_MS)
    assert texts(store.lease(limit=9)) == ["a", "c", "d"]


def test_messages_of_a_batch_are_dead_lettered_one_by_one(store: StoreUnderTest, clock: Clock) -> None:
    store.make(max_attempts=1)
    store.push(*"abcd")
    batch = store.lease(limit=4, lease_ms=LEASE_MS)
    assert store.nack(batch[1]).states == [State.DEAD]
    assert store.ack(batch[2]) == [OK]
    clock.advance(LEASE_MS)
    assert store.sweep().lapsed == 2
    assert texts(store.pages(State.DEAD))[::-1] == ["b", "a", "d"]
    assert store.counts() == {"dead": 3}


def test_a_dropped_queue_leaves_no_lease_behind(store: StoreUnderTest) -> None:
    store.push(*"abc")
    batch = store.lease(limit=3)
    store.do(Drop(queue="q", force=True))
    store.do(push_command("new"))
    assert store.ack(*batch) == [UNKNOWN] * 3
    assert texts(store.lease(limit=9)) == ["new"]
