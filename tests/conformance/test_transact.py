"""Transactions are atomic. In a batch, each command succeeds or fails on its own."""

from __future__ import annotations

import pytest

from penstock.core.commands import (
    Ack,
    Configure,
    Drop,
    Extend,
    Lease,
    Nack,
    Pause,
    Push,
    Remove,
    Settled,
    SettleItem,
    Take,
    Transact,
)
from penstock.core.model import Delivery, PushItem, QueueOptions, State
from penstock.errors import LeaseLost, QueueFull, UnknownMessage, UnknownQueue
from tests.conformance.support import Clock, StoreUnderTest, texts


def push(payload: str, queue: str = "q", create: QueueOptions | None = None, **fields: int) -> Push:
    return Push(queue=queue, messages=[PushItem(payload=payload.encode(), **fields)], create=create)


def ack(leased: Delivery) -> Ack:
    return Ack(queue=leased.queue, items=[SettleItem(leased.id, leased.token)])


def test_an_ack_and_a_push_are_atomic(store: StoreUnderTest) -> None:
    store.make("next")
    store.push("a")
    leased = store.lease_one()
    outcome = store.do(Transact(commands=[ack(leased), push("b", "next")]))
    assert outcome.outcomes[0].results == ["ok"]
    assert len(outcome.outcomes[1].receipts) == 1
    assert (store.counts(), store.drain("next")) == ({}, ["b"])


def test_a_lost_lease_undoes_the_rest(store: StoreUnderTest, clock: Clock) -> None:
    store.push("a", "b")
    lost, kept = store.lease_one(lease_ms=10), store.lease_one(lease_ms=50)
    clock.advance(10)
    with pytest.raises(LeaseLost) as refused:
        store.do(Transact(commands=[push("c"), ack(kept), ack(lost)]))
    assert refused.value.message_id == lost.id
    assert store.counts() == {"leased": 2}
    assert store.ack(kept) == ["ok"]


def test_an_unknown_message_undoes_the_rest(store: StoreUnderTest) -> None:
    store.make()
    nothing = Nack(queue="q", items=[SettleItem(99, None)])
    with pytest.raises(UnknownMessage):
        store.do(Transact(commands=[push("c"), nothing]))
    assert store.counts() == {}


def test_a_refused_command_undoes_the_rest_and_created_queues(store: StoreUnderTest) -> None:
    store.make("full", max_size=1)
    store.push("a", queue="full")
    commands = [
        push("b", "made", create=QueueOptions()),
        Configure(queue="full", changes={"lease_ms": 5}),
        Pause(queue="full"),
        Take(queue="full"),
        push("b", "full"),
        push("c", "full"),
    ]
    with pytest.raises(QueueFull):
        store.do(Transact(commands=commands))
    assert store.find_queue("made") is None
    info = store.info("full")
    assert (info.ready, info.paused, info.options.lease_ms, info.totals.leased) == (1, False, 30_000, 0)


def test_a_rolled_back_drop_restores_the_queue_and_its_messages(store: StoreUnderTest) -> None:
    store.push("a", "b")
    with pytest.raises(UnknownQueue):
        store.do(Transact(commands=[Drop(queue="q", force=True), push("c")]))
    assert store.counts() == {"ready": 2}
    assert store.drain() == ["a", "b"]


def test_messages_of_a_rolled_back_lease_are_ready_again(store: StoreUnderTest) -> None:
    store.push("plain")
    store.push("filed", priority=1)
    with pytest.raises(UnknownQueue):
        store.do(Transact(commands=[Lease(queue="q", limit=5), push("x", "none")]))
    assert store.counts() == {"ready": 2}
    assert store.drain() == ["filed", "plain"]


def test_a_key_of_a_rolled_back_push_is_free_again(store: StoreUnderTest) -> None:
    store.make()
    keyed = Push(queue="q", messages=[PushItem(payload=b"x", key="k")])
    with pytest.raises(UnknownQueue):
        store.do(Transact(commands=[keyed, push("x", "none")]))
    assert not store.do(keyed).receipts[0].duplicate


def test_a_failed_transaction_does_not_affect_its_batch(store: StoreUnderTest) -> None:
    store.make()
    failing = Transact(commands=[push("undone"), push("undone", delay_ms=5), push("x", "none")])
    before, failed, after, leased = store.apply([push("before"), failing, push("after"), Lease(queue="q", limit=9)])
    assert isinstance(failed, UnknownQueue)
    assert after.receipts[0].id > before.receipts[0].id
    assert texts(leased.messages) == ["before", "after"]
    assert store.counts() == {"leased": 2}
    assert (store.info().totals.pushed, store.info().totals.leased) == (2, 2)
    store.push("next")
    assert store.drain() == ["next"]


def test_a_refused_command_does_not_affect_its_batch(store: StoreUnderTest) -> None:
    store.make()
    outcomes = store.apply([push("a"), push("x", "none"), Remove(queue="none", ids=[1]), push("b")])
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "PushOutcome",
        "UnknownQueue",
        "UnknownQueue",
        "PushOutcome",
    ]
    assert store.drain() == ["a", "b"]


def test_transactions_nest(store: StoreUnderTest) -> None:
    store.make()
    inner = Transact(commands=[push("inner"), push("x", "none")])
    with pytest.raises(UnknownQueue):
        store.do(Transact(commands=[push("outer"), inner]))
    assert store.counts() == {}
    store.do(Transact(commands=[push("a"), Transact(commands=[push("b")]), push("c")]))
    assert store.drain() == ["a", "b", "c"]


def test_an_empty_transaction_succeeds(store: StoreUnderTest) -> None:
    assert store.apply([]) == []
    assert store.do(Transact(commands=[])).outcomes == []


def test_an_unexpected_error_does_not_affect_its_batch(store: StoreUnderTest) -> None:
    store.make()
    broken = Push(queue="q", messages=[PushItem(payload=b"x", headers={"a": object()})])  # type: ignore[dict-item]
    fine, failed, also_fine = store.apply([push("a"), broken, push("b")])
    assert isinstance(failed, Exception)
    assert (len(fine.receipts), len(also_fine.receipts)) == (1, 1)
    assert store.drain() == ["a", "b"]
    with pytest.raises(TypeError):
        store.apply([broken])
    assert texts(store.pages(State.LEASED)) == ["a", "b"]


def test_commands_of_one_batch_get_separate_results(store: StoreUnderTest, clock: Clock) -> None:
    store.make()
    pushes = [Push(queue="q", messages=[PushItem(payload=text.encode()) for text in texts]) for texts in ("ab", "c")]
    first, second = store.apply(pushes)
    assert [len(first.receipts), len(second.receipts)] == [2, 1]
    leases = [Lease(queue="q", limit=1, worker="one"), Lease(queue="q", limit=2, lease_ms=5), Lease(queue="q", limit=1)]
    a, bc, none = (leased.messages for leased in store.apply(leases))
    assert [[m.payload for m in each] for each in (a, bc, none)] == [[b"a"], [b"b", b"c"], []]
    assert a[0].token != bc[0].token == bc[1].token
    assert bc[0].leased_until == clock.now + 5
    items = [SettleItem(m.id, m.token) for m in (*a, *bc)]
    assert [s.results for s in store.apply([Ack(queue="q", items=[i]) for i in items])] == [[Settled.OK]] * 3
    assert store.counts() == {}


def test_acks_of_one_batch_are_checked_one_by_one(store: StoreUnderTest, clock: Clock) -> None:
    store.push(*"abcdef")
    held = [store.lease_one(lease_ms=1_000) for _ in range(6)]
    good, extended, stale, twice, nacked, last = (SettleItem(m.id, m.token) for m in held)
    store.do(Extend(queue="q", items=[extended], lease_ms=9_000))
    store.do(Nack(queue="q", items=[nacked]))
    wrong = SettleItem(stale.id, good.token)
    items = [good, extended, wrong, twice, twice, nacked, last]
    outcomes = store.apply([Ack(queue="q", items=[item]) for item in items])
    ok, lost = Settled.OK, Settled.STALE
    assert [each.results[0] for each in outcomes] == [ok, ok, lost, ok, ok, lost, ok]
    assert store.counts() == {"leased": 1, "scheduled": 1}


def test_acks_of_one_batch_notice_a_message_removed_by_another_process(shared: StoreUnderTest) -> None:
    shared.push(*"abc")
    items = [SettleItem(m.id, m.token) for m in (shared.lease_one() for _ in range(3))]
    shared.open_another().apply([Remove(queue="q", ids=[items[1].id])])
    outcomes = shared.apply([Ack(queue="q", items=[item]) for item in items])
    assert [each.results[0] for each in outcomes] == [Settled.OK, Settled.UNKNOWN, Settled.OK]


@pytest.mark.parametrize("limit", [1, 3])
def test_an_ack_of_many_notices_a_message_removed_by_another_process(shared: StoreUnderTest, limit: int) -> None:
    shared.push(*"abc")
    items = [SettleItem(m.id, m.token) for _ in range(3 // limit) for m in shared.lease(limit=limit)]
    shared.open_another().apply([Remove(queue="q", ids=[items[1].id])])
    assert shared.do(Ack(queue="q", items=items)).results == [Settled.OK, Settled.UNKNOWN, Settled.OK]
    assert shared.counts() == {}
